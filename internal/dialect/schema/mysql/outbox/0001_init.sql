-- One row per recorded event. A foreign writer needs to give event_id, topic, type, partition_key and payload only.
-- state: 0 pending, 1 held, 2 failed, 3 published, 4 discarded. Times are UTC. available_at: not before; null is at once.
-- replayed_at: when a published row was last made pending again, by an operator.
--
-- Ids, topics and keys are bytes: a text column takes "a" and "a " for the same, and one of the two events would be lost.
-- DDL commits by itself here, so every statement can be run again where an earlier run broke off.
CREATE TABLE IF NOT EXISTS seambus_outbox (
	seq               BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
	event_id          VARBINARY(255)  NOT NULL,
	source            TEXT            NOT NULL DEFAULT (''),
	topic             VARBINARY(255)  NOT NULL,
	type              VARCHAR(255)    NOT NULL,
	schema_version    VARCHAR(255)    NOT NULL DEFAULT '',
	content_type      VARCHAR(255)    NOT NULL DEFAULT 'application/json',
	partition_key     VARBINARY(255)  NOT NULL DEFAULT '',
	aggregate_version BIGINT UNSIGNED,
	payload           LONGBLOB        NOT NULL,
	metadata          MEDIUMTEXT      NOT NULL DEFAULT (''),
	created_at        DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
	available_at      DATETIME(6),
	last_attempt_at   DATETIME(6),
	published_at      DATETIME(6),
	replayed_at       DATETIME(6),
	attempts          INT             NOT NULL DEFAULT 0,
	error_class       VARCHAR(255)    NOT NULL DEFAULT '',
	last_error        TEXT            NOT NULL DEFAULT (''),
	generation        INT             NOT NULL DEFAULT 0,
	shard             SMALLINT        NOT NULL DEFAULT -1,
	state             TINYINT         NOT NULL DEFAULT 0,
	-- topic, zero byte, key of a row that is held or failed: there are no partial indexes here
	blocked_key       VARBINARY(511),
	UNIQUE KEY seambus_outbox_event (event_id),
	-- The head is the part with state 0: what the other states hold costs it nothing.
	KEY seambus_outbox_head (state, seq, shard),
	KEY seambus_outbox_blocked (blocked_key, seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- A lease covers a range of shards. The token grows with every claim; a change of rows under an older one is refused.
CREATE TABLE IF NOT EXISTS seambus_outbox_leases (
	range_id   SMALLINT       NOT NULL PRIMARY KEY,
	owner      VARBINARY(255) NOT NULL DEFAULT '',
	token      BIGINT         NOT NULL DEFAULT 0,
	expires_at DATETIME(6)
) ENGINE = InnoDB;
INSERT IGNORE INTO seambus_outbox_leases (range_id)
VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15);

-- The live relays, so that ranges spread over them.
CREATE TABLE IF NOT EXISTS seambus_outbox_relays (
	owner      VARBINARY(255) NOT NULL PRIMARY KEY,
	expires_at DATETIME(6)    NOT NULL
) ENGINE = InnoDB;

-- A row is locked while somebody does what only one may do at a time.
-- changes counts what operators did that a relay must look at again.
CREATE TABLE IF NOT EXISTS seambus_outbox_locks (
	name    VARBINARY(64) NOT NULL PRIMARY KEY,
	changes BIGINT        NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT IGNORE INTO seambus_outbox_locks (name) VALUES ('sweep'), ('operator');

-- What operators did: who, why, and what was chosen. event_id is empty where one line stands for many rows.
CREATE TABLE IF NOT EXISTS seambus_outbox_audit (
	seq      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
	at       DATETIME(6)    NOT NULL,
	who      VARCHAR(255)   NOT NULL,
	why      TEXT           NOT NULL,
	action   VARCHAR(16)    NOT NULL,
	chosen   TEXT           NOT NULL,
	event_id VARBINARY(255) NOT NULL,
	rows_changed BIGINT     NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The consumer group is called grp because "group" is a reserved word. Times are UTC.
--
-- Ids, groups, topics and keys are bytes: a text column takes "a" and "a " for the same, and one of two events would be lost.
-- DDL commits by itself here, so every statement can be run again where an earlier run broke off.

-- Handled ids. seq is the order in which they were claimed. No index on handled_at: the sweeper follows seq.
CREATE TABLE IF NOT EXISTS seambus_inbox (
	seq           BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
	grp           VARBINARY(255) NOT NULL,
	source        VARBINARY(1024) NOT NULL,
	event_id      VARBINARY(255) NOT NULL,
	topic         VARBINARY(255) NOT NULL,
	partition_key VARBINARY(255) NOT NULL,
	handled_at    DATETIME(6)    NOT NULL,
	stale         TINYINT        NOT NULL DEFAULT 0,
	UNIQUE KEY seambus_inbox_event (grp, source, event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS seambus_versions (
	grp           VARBINARY(255)  NOT NULL,
	topic         VARBINARY(255)  NOT NULL,
	partition_key VARBINARY(255)  NOT NULL,
	version       BIGINT UNSIGNED NOT NULL,
	PRIMARY KEY (grp, topic, partition_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS seambus_attempts (
	grp        VARBINARY(255)  NOT NULL,
	source     VARBINARY(1024) NOT NULL,
	event_id   VARBINARY(255)  NOT NULL,
	attempts   INT             NOT NULL,
	history    MEDIUMTEXT      NOT NULL DEFAULT ('[]'),
	began_at   DATETIME(6)     NOT NULL,
	updated_at DATETIME(6)     NOT NULL,
	PRIMARY KEY (grp, source, event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Parked events: seq orders them within a key. metadata is JSON; see the package inbox for its form. state is 'dead' (given up),
-- 'held' (behind another of its key), 'ready' (to be handled again) or 'discarded'; a dead one with holds holds the rest of its
-- key. revision grows with every decision about the event. history is of failed attempts, JSON.
CREATE TABLE IF NOT EXISTS seambus_parked (
	seq           BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
	grp           VARBINARY(255)  NOT NULL,
	topic         VARBINARY(255)  NOT NULL,
	partition_key VARBINARY(255)  NOT NULL,
	source        VARBINARY(1024) NOT NULL,
	event_id      VARBINARY(255)  NOT NULL,
	event_type    VARCHAR(255)    NOT NULL,
	handler       VARCHAR(255)    NOT NULL,
	message_uuid  VARBINARY(1024) NOT NULL,
	metadata      MEDIUMTEXT      NOT NULL,
	payload       LONGBLOB        NOT NULL,
	state         VARCHAR(16)     NOT NULL,
	holds         TINYINT         NOT NULL DEFAULT 0,
	attempts      INT             NOT NULL,
	class         VARCHAR(64)     NOT NULL,
	reason        TEXT            NOT NULL,
	history       MEDIUMTEXT      NOT NULL DEFAULT ('[]'),
	first_attempt BIGINT          NOT NULL DEFAULT 0,
	parked_at     BIGINT          NOT NULL,
	revision      INT             NOT NULL DEFAULT 0,
	UNIQUE KEY seambus_parked_event (grp, source, event_id),
	KEY seambus_parked_key (grp, topic, partition_key, seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Keys whose new events are parked instead of handled: 'held' until somebody decides about a dead letter, 'replay' while what
-- is parked is handled in its order. not_before is when the next of it is due, or until when a process is at it; null is at
-- once. touched is written to lock the row.
CREATE TABLE IF NOT EXISTS seambus_held (
	grp           VARBINARY(255) NOT NULL,
	topic         VARBINARY(255) NOT NULL,
	partition_key VARBINARY(255) NOT NULL,
	state         VARCHAR(16)    NOT NULL,
	not_before    DATETIME(6),
	since         DATETIME(6)    NOT NULL,
	touched       BIGINT         NOT NULL DEFAULT 0,
	PRIMARY KEY (grp, topic, partition_key),
	KEY seambus_held_due (grp, topic, state, not_before)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- What operators did, one row for each event.
CREATE TABLE IF NOT EXISTS seambus_audit (
	seq           BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
	at            DATETIME(6)     NOT NULL,
	who           VARCHAR(255)    NOT NULL,
	why           TEXT            NOT NULL,
	action        VARCHAR(16)     NOT NULL,
	grp           VARBINARY(255)  NOT NULL,
	topic         VARBINARY(255)  NOT NULL,
	partition_key VARBINARY(255)  NOT NULL,
	source        VARBINARY(1024) NOT NULL,
	event_id      VARBINARY(255)  NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row per recorded event. A foreign writer needs to give event_id, topic, type, partition_key and payload only.
--
-- seq is the rowid without AUTOINCREMENT, which would write one more page per commit. A new row must come after all that were
-- ever there, so the row with the highest seq is never deleted: the sweep leaves it until a later row exists.
--
-- STRICT refuses a foreign writer's wrong type when it writes, not when the relay reads. payload takes bytes or text.
--
-- Times are microseconds since 1970. state: 0 pending, 1 held, 2 failed, 3 published, 4 discarded. replayed_at: when a published
-- row was last made pending again, by an operator.
CREATE TABLE seambus_outbox (
	seq               INTEGER PRIMARY KEY,
	event_id          TEXT    NOT NULL UNIQUE,
	source            TEXT    NOT NULL DEFAULT '',
	topic             TEXT    NOT NULL,
	type              TEXT    NOT NULL,
	schema_version    TEXT    NOT NULL DEFAULT '',
	content_type      TEXT    NOT NULL DEFAULT 'application/json',
	partition_key     TEXT    NOT NULL DEFAULT '',
	aggregate_version TEXT,
	payload           ANY     NOT NULL DEFAULT x'',
	metadata          TEXT    NOT NULL DEFAULT '',
	created_at        INTEGER NOT NULL DEFAULT 0,
	available_at      INTEGER NOT NULL DEFAULT 0,
	last_attempt_at   INTEGER,
	published_at      INTEGER,
	replayed_at       INTEGER,
	attempts          INTEGER NOT NULL DEFAULT 0,
	error_class       TEXT    NOT NULL DEFAULT '',
	last_error        TEXT    NOT NULL DEFAULT '',
	generation        INTEGER NOT NULL DEFAULT 0,
	shard             INTEGER NOT NULL DEFAULT -1,
	state             INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The head. Published, held and failed rows are not in it, so they cost it nothing.
CREATE INDEX seambus_outbox_head ON seambus_outbox (seq, shard) WHERE state = 0;

-- What waits beside the head, by key, with all that the relay asks about it.
CREATE INDEX seambus_outbox_blocked ON seambus_outbox (topic, partition_key, seq, state, shard, available_at, created_at, replayed_at)
	WHERE state IN (1, 2);

-- A lease covers a range of shards. The token grows with every claim; a mark under an older one is refused.
CREATE TABLE seambus_outbox_leases (
	range_id   INTEGER PRIMARY KEY,
	owner      TEXT    NOT NULL DEFAULT '',
	token      INTEGER NOT NULL DEFAULT 0,
	expires_at INTEGER NOT NULL DEFAULT 0
);
INSERT INTO seambus_outbox_leases (range_id) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15);

-- The live relays, so that ranges spread over them.
CREATE TABLE seambus_outbox_relays (
	owner      TEXT PRIMARY KEY,
	expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What operators changed that a relay must look at again is counted here, so that it need not look otherwise.
CREATE TABLE seambus_outbox_locks (
	name    TEXT    PRIMARY KEY,
	changes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO seambus_outbox_locks (name) VALUES ('operator');

-- What operators did: who, why, and what was chosen. event_id is empty where one line stands for many rows.
CREATE TABLE seambus_outbox_audit (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT,
	at       INTEGER NOT NULL,
	who      TEXT    NOT NULL,
	why      TEXT    NOT NULL,
	action   TEXT    NOT NULL,
	chosen   TEXT    NOT NULL,
	event_id TEXT    NOT NULL,
	rows_changed INTEGER NOT NULL
) STRICT;

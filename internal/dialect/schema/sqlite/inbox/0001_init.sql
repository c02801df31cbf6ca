-- Times are microseconds since 1970, UTC; 0 is none. The consumer group is called grp because "group" is a reserved word.

-- Handled ids. seq is the order in which events were applied; it is the rowid, so that a commit dirties the last page of
-- the table and one page of the index, and it survives VACUUM. No index on handled_at: the sweeper follows seq.
CREATE TABLE seambus_inbox (
    seq           INTEGER PRIMARY KEY,
    grp           TEXT    NOT NULL,
    source        TEXT    NOT NULL,
    event_id      TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    partition_key TEXT    NOT NULL,
    handled_at    INTEGER NOT NULL,
    stale         INTEGER NOT NULL DEFAULT 0,
    UNIQUE (grp, source, event_id)
) STRICT;

-- version is ANY because versions are unsigned: up to 2^63-1 they are integers, above that zero-padded text, which SQLite
-- sorts after every integer.
CREATE TABLE seambus_versions (
    grp           TEXT NOT NULL,
    topic         TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    version       ANY  NOT NULL,
    PRIMARY KEY (grp, topic, partition_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE seambus_attempts (
    grp        TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    event_id   TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    history    TEXT    NOT NULL DEFAULT '[]', -- of failures, JSON
    began_at   INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (grp, source, event_id)
) STRICT, WITHOUT ROWID;

-- Parked events: seq orders them within a key. metadata is JSON; see the package inbox for its form. state is 'dead' (given up),
-- 'held' (behind another of its key), 'ready' (to be handled again) or 'discarded'; a dead one with holds holds the rest of its
-- key. revision grows with every decision about the event.
CREATE TABLE seambus_parked (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    grp           TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    partition_key TEXT    NOT NULL,
    source        TEXT    NOT NULL,
    event_id      TEXT    NOT NULL,
    event_type    TEXT    NOT NULL,
    handler       TEXT    NOT NULL,
    message_uuid  TEXT    NOT NULL,
    metadata      TEXT    NOT NULL,
    payload       BLOB    NOT NULL,
    state         TEXT    NOT NULL,
    holds         INTEGER NOT NULL DEFAULT 0,
    attempts      INTEGER NOT NULL,
    class         TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    history       TEXT    NOT NULL DEFAULT '[]', -- of failed attempts, JSON
    first_attempt INTEGER NOT NULL DEFAULT 0,
    parked_at     INTEGER NOT NULL,
    revision      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (grp, source, event_id)
) STRICT;

CREATE INDEX seambus_parked_key ON seambus_parked (grp, topic, partition_key, seq);

-- Keys whose new events are parked instead of handled: 'held' until somebody decides about a dead letter, 'replay' while what
-- is parked is handled in its order. not_before is when the next of it is due, or until when a process is at it. touched is
-- written to lock the row.
CREATE TABLE seambus_held (
    grp           TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    partition_key TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    not_before    INTEGER NOT NULL DEFAULT 0,
    since         INTEGER NOT NULL,
    touched       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (grp, topic, partition_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX seambus_held_due ON seambus_held (grp, topic, not_before) WHERE state = 'replay';

-- What operators did, one row for each event.
CREATE TABLE seambus_audit (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    who           TEXT    NOT NULL,
    why           TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    grp           TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    partition_key TEXT    NOT NULL,
    source        TEXT    NOT NULL,
    event_id      TEXT    NOT NULL
) STRICT;

package dialect

import (
	"fmt"
	"math"
	"time"
)

// sqliteInbox returns the inbox's statements for SQLite. Claim and Advance begin with the insert: a transaction whose
// first statement writes waits for the write lock, where one that read first would be refused with SQLITE_BUSY_SNAPSHOT.
func sqliteInbox() *Inbox {
	return &Inbox{
		Now: func() []any { return []any{time.Now().UnixMicro()} },

		Claim: `INSERT INTO seambus_inbox (handled_at, grp, source, event_id, topic, partition_key)
SELECT ?, ?, ?, ?, ?, ? WHERE NOT EXISTS (
  SELECT 1 FROM seambus_held WHERE grp = ? AND topic = ? AND partition_key = ?) ON CONFLICT DO NOTHING`,
		ClaimAlways: `INSERT INTO seambus_inbox (handled_at, grp, source, event_id, topic, partition_key)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		Known: `SELECT EXISTS (SELECT 1 FROM seambus_inbox WHERE grp = ? AND source = ? AND event_id = ?)`,
		Advance: `INSERT INTO seambus_versions (grp, topic, partition_key, version) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version WHERE seambus_versions.version < excluded.version`,
		MarkStale: `UPDATE seambus_inbox SET stale = 1 WHERE grp = ? AND source = ? AND event_id = ?`,

		BeginAttempt: `INSERT INTO seambus_attempts (grp, source, event_id, attempts, began_at, updated_at)
VALUES (?2, ?3, ?4, 1, ?1, ?1) ON CONFLICT DO UPDATE SET attempts = attempts + 1, updated_at = excluded.updated_at
RETURNING attempts`,
		GiveBackAttempt: `UPDATE seambus_attempts SET attempts = attempts - 1 WHERE ` + inboxID + ` AND attempts > 0`,
		AttemptHistory:  `SELECT history, began_at FROM seambus_attempts WHERE ` + inboxID,
		NoteAttempt:     `UPDATE seambus_attempts SET history = ? WHERE ` + inboxID,
		ForgetAttempts:  `DELETE FROM seambus_attempts WHERE ` + inboxID,

		Park: parkedInsert + ` ON CONFLICT (grp, source, event_id) DO UPDATE SET topic = excluded.topic,
  partition_key = excluded.partition_key, event_type = excluded.event_type, handler = excluded.handler,
  message_uuid = excluded.message_uuid, metadata = excluded.metadata, payload = excluded.payload, state = excluded.state,
  holds = excluded.holds, attempts = excluded.attempts, class = excluded.class, reason = excluded.reason,
  history = excluded.history, parked_at = excluded.parked_at, revision = seambus_parked.revision + 1,
  first_attempt = coalesce(nullif(seambus_parked.first_attempt, 0), excluded.first_attempt)`,
		Append: parkedInsert + ` ON CONFLICT DO NOTHING`,
		Hold: `INSERT INTO seambus_held (since, grp, topic, partition_key, state) VALUES (?, ?, ?, ?, 'held')
ON CONFLICT DO UPDATE SET state = 'held', not_before = 0`,
		LockHeld: `UPDATE seambus_held SET touched = touched + 1 WHERE ` + inboxKey,

		DueKeys: `SELECT partition_key FROM seambus_held
WHERE grp = ?2 AND topic = ?3 AND state = 'replay' AND not_before <= ?1 ORDER BY not_before LIMIT ?4`,
		NextDue: `SELECT min(not_before) - ?1 FROM seambus_held WHERE grp = ?2 AND topic = ?3 AND state = 'replay'`,
		LeaseKey: `UPDATE seambus_held SET not_before = ?1 + ?2
WHERE grp = ?3 AND topic = ?4 AND partition_key = ?5 AND state = 'replay' AND not_before <= ?1`,
		Postpone: `UPDATE seambus_held SET not_before = ?1 + ?2
WHERE grp = ?3 AND topic = ?4 AND partition_key = ?5 AND state = 'replay'`,
		Head:  `SELECT ` + parkedColumns + ` FROM seambus_parked WHERE ` + inboxKey + ` AND ` + parkedHolding + ` ORDER BY seq LIMIT 1`,
		Take:  `DELETE FROM seambus_parked WHERE seq = ? AND revision = ? AND state IN ('held', 'ready')`,
		Block: `UPDATE seambus_held SET state = 'held', not_before = 0 WHERE ` + inboxKey + ` AND ` + parkedDead,
		Open:  `DELETE FROM seambus_held WHERE ` + inboxKey + ` AND ` + parkedNone,

		Ready: `UPDATE seambus_parked SET state = 'ready', holds = 0, revision = revision + 1 WHERE seq = ? AND state = 'dead'`,
		Replay: `INSERT INTO seambus_held (since, grp, topic, partition_key, state) VALUES (?, ?, ?, ?, 'replay')
ON CONFLICT DO UPDATE SET state = 'replay', not_before = CASE state WHEN 'replay' THEN not_before ELSE 0 END`,
		Unblock:   `UPDATE seambus_held SET state = 'replay', not_before = 0 WHERE ` + inboxKey + ` AND state = 'held'`,
		Discard:   `UPDATE seambus_parked SET state = 'discarded', holds = 0, revision = revision + 1 WHERE seq = ? AND state = 'dead'`,
		Erase:     `UPDATE seambus_parked SET payload = x'', metadata = '{}' WHERE seq = ? AND state = 'discarded'`,
		VersionOf: `SELECT version FROM seambus_versions WHERE ` + inboxKey,
		Later: `SELECT EXISTS (SELECT 1 FROM seambus_inbox
WHERE grp = ? AND topic = ? AND partition_key = ? AND stale = 0 AND handled_at > ?)`,
		Audit: `INSERT INTO seambus_audit (at, who, why, action, grp, topic, partition_key, source, event_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		ListAudit: `SELECT seq, at, who, why, action, grp, topic, partition_key, source, event_id FROM seambus_audit
WHERE seq > ? ORDER BY seq LIMIT ?`,

		Backlog: `SELECT state, class, count(*), min(parked_at) FROM seambus_parked WHERE state <> 'discarded'
GROUP BY state, class`,
		HeldKeys: `SELECT count(*) FROM seambus_held`,
		CountIDs: `SELECT count(*) FROM seambus_inbox WHERE ` + forgotten,
		ForgetVersions: `DELETE FROM seambus_versions WHERE (grp, topic, partition_key) IN (
  SELECT grp, topic, partition_key FROM seambus_inbox WHERE ` + forgotten + `)`,
		ForgetIDs: `DELETE FROM seambus_inbox WHERE ` + forgotten,

		SweepIDs: `DELETE FROM seambus_inbox WHERE seq IN (SELECT seq FROM seambus_inbox ORDER BY seq LIMIT ?2)
  AND handled_at < ?1 - ?3`,
		SweepAttempts: `DELETE FROM seambus_attempts WHERE (grp, source, event_id) IN
  (SELECT grp, source, event_id FROM seambus_attempts WHERE updated_at < ?1 - ?2 LIMIT ?3)`,

		Version:    sqliteVersion,
		listParked: `SELECT ` + parkedColumns + ` FROM seambus_parked`,
		bind:       func(statement string) string { return statement },
	}
}

const (
	forgotten = `grp = ? AND (? = '' OR partition_key = ?) AND handled_at >= ?`

	inboxID  = `grp = ? AND source = ? AND event_id = ?`
	inboxKey = `grp = ? AND topic = ? AND partition_key = ?`

	// parkedHolding is true of a parked event that the rest of its key waits for.
	parkedHolding = `(state IN ('held', 'ready') OR holds = 1)`
	// parkedDead is true while a parked event is a dead letter that holds.
	parkedDead = `EXISTS (SELECT 1 FROM seambus_parked WHERE seq = ? AND holds = 1)`
	// parkedNone is true when no parked event holds a key.
	parkedNone = `NOT EXISTS (SELECT 1 FROM seambus_parked WHERE ` + inboxKey + ` AND ` + parkedHolding + `)`

	parkedColumns = `seq, grp, topic, partition_key, source, event_id, event_type, handler, message_uuid, metadata, payload,
  state, holds, attempts, class, reason, history, first_attempt, parked_at, revision`
	parkedInsert = `INSERT INTO seambus_parked (grp, topic, partition_key, source, event_id, event_type, handler, message_uuid,
  metadata, payload, state, holds, attempts, class, reason, history, first_attempt, parked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// sqliteVersion keeps unsigned order with SQLite's signed integers: what they cannot hold is text, which sorts after them.
func sqliteVersion(v uint64) any {
	if v <= math.MaxInt64 {
		return int64(v)
	}
	return fmt.Sprintf("%020d", v)
}

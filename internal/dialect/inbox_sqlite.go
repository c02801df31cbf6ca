package dialect

import (
	"fmt"
	"math"
)

// sqliteInbox returns the inbox's statements for SQLite. Claim and Advance begin with the insert: a transaction whose
// first statement writes waits for the write lock, where one that read first would be refused with SQLITE_BUSY_SNAPSHOT.
func sqliteInbox() *Inbox {
	return &Inbox{
		Claim: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (
  SELECT 1 FROM seambus_held WHERE grp = ?1 AND topic = ?4 AND partition_key = ?5 AND partition_key <> '')
ON CONFLICT DO NOTHING`,
		ClaimReplayed: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		Known:    `SELECT EXISTS (SELECT 1 FROM seambus_inbox WHERE grp = ? AND source = ? AND event_id = ?)`,
		LockHeld: `SELECT EXISTS (SELECT 1 FROM seambus_held WHERE grp = ? AND topic = ? AND partition_key = ?)`,
		Advance: `INSERT INTO seambus_versions (grp, topic, partition_key, version) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version WHERE seambus_versions.version < excluded.version`,
		MarkStale: `UPDATE seambus_inbox SET stale = 1 WHERE grp = ? AND source = ? AND event_id = ?`,

		BeginAttempt: `INSERT INTO seambus_attempts (grp, source, event_id, attempts, began_at, updated_at)
VALUES (?1, ?2, ?3, 1, ?4, ?4) ON CONFLICT DO UPDATE SET attempts = attempts + 1, updated_at = excluded.updated_at RETURNING attempts`,
		GiveBackAttempt: `UPDATE seambus_attempts SET attempts = attempts - 1
WHERE grp = ? AND source = ? AND event_id = ? AND attempts > 0`,
		AttemptHistory: `SELECT history, began_at FROM seambus_attempts WHERE grp = ? AND source = ? AND event_id = ?`,
		NoteAttempt:    `UPDATE seambus_attempts SET history = ? WHERE grp = ? AND source = ? AND event_id = ?`,
		ForgetAttempts: `DELETE FROM seambus_attempts WHERE grp = ? AND source = ? AND event_id = ?`,

		Park: sqlitePark + `
ON CONFLICT (grp, source, event_id) DO UPDATE SET topic = excluded.topic, partition_key = excluded.partition_key,
  handler = excluded.handler, message_uuid = excluded.message_uuid, metadata = excluded.metadata,
  payload = excluded.payload, state = excluded.state, holds = excluded.holds, attempts = excluded.attempts,
  class = excluded.class, reason = excluded.reason, not_before = excluded.not_before,
  first_attempt = coalesce(nullif(seambus_parked.first_attempt, 0), excluded.first_attempt), parked_at = excluded.parked_at,
  event_type = excluded.event_type, history = excluded.history`,
		Append: sqlitePark + ` ON CONFLICT DO NOTHING`,
		Hold: `INSERT INTO seambus_held (grp, topic, partition_key, state, since) VALUES (?, ?, ?, 'held', ?)
ON CONFLICT DO UPDATE SET state = 'held', not_before = 0`,

		DueKeys: `SELECT partition_key, not_before FROM seambus_held
WHERE grp = ? AND topic = ? AND state = 'replay' AND not_before <= ? ORDER BY not_before LIMIT ?`,
		NextDue:  `SELECT min(not_before) FROM seambus_held WHERE grp = ? AND topic = ? AND state = 'replay'`,
		LeaseKey: `UPDATE seambus_held SET not_before = ? WHERE ` + sqliteKey + ` AND state = 'replay' AND not_before = ?`,
		Postpone: `UPDATE seambus_held SET not_before = ? WHERE ` + sqliteKey + ` AND state = 'replay'`,
		Head: `SELECT ` + sqliteParkedColumns + `, holds FROM seambus_parked WHERE ` + sqliteKey + ` AND ` + sqliteHolding + `
ORDER BY seq LIMIT 1`,
		Take:  `DELETE FROM seambus_parked WHERE seq = ? AND state IN ('held', 'ready')`,
		Block: `UPDATE seambus_held SET state = 'held', not_before = 0 WHERE ` + sqliteKey,
		Open: `DELETE FROM seambus_held WHERE ` + sqliteKey + ` AND NOT EXISTS (SELECT 1 FROM seambus_parked p
  WHERE p.grp = seambus_held.grp AND p.topic = seambus_held.topic AND p.partition_key = seambus_held.partition_key
  AND ` + sqliteHolding + `)`,
		Ready: `UPDATE seambus_parked SET state = 'ready', holds = 0 WHERE seq = ? AND state = 'dead'`,
		Replay: `INSERT INTO seambus_held (grp, topic, partition_key, state, since) VALUES (?, ?, ?, 'replay', ?)
ON CONFLICT DO UPDATE SET state = 'replay', not_before = CASE state WHEN 'replay' THEN not_before ELSE 0 END`,
		Unblock: `UPDATE seambus_held SET state = 'replay', not_before = 0 WHERE ` + sqliteKey + ` AND state = 'held'`,
		Discard: `UPDATE seambus_parked SET state = 'discarded', holds = 0 WHERE seq = ? AND state = 'dead'`,
		Erase:   `UPDATE seambus_parked SET payload = x'', metadata = '{}' WHERE seq = ? AND state = 'discarded'`,
		Overtaken: `SELECT EXISTS (SELECT 1 FROM seambus_versions
  WHERE grp = ?1 AND topic = ?2 AND partition_key = ?3 AND ?4 IS NOT NULL AND version > ?4)
OR (?4 IS NULL AND ?3 <> '' AND EXISTS (SELECT 1 FROM seambus_inbox
  WHERE grp = ?1 AND topic = ?2 AND partition_key = ?3 AND stale = 0 AND handled_at > ?5))`,
		Audit: `INSERT INTO seambus_audit (at, who, why, action, grp, topic, partition_key, source, event_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		ListAudit: `SELECT seq, at, who, why, action, grp, topic, partition_key, source, event_id FROM seambus_audit
WHERE seq > ? ORDER BY seq LIMIT ?`,

		ListParked: `SELECT ` + sqliteParkedColumns + `
FROM seambus_parked WHERE ` + sqliteParkedFilter + ` AND seq > ?10 ORDER BY seq LIMIT ?11`,
		CountParked: `SELECT count(*) FROM seambus_parked WHERE ` + sqliteParkedFilter,

		SweepIDs: `DELETE FROM seambus_inbox WHERE seq IN (SELECT seq FROM seambus_inbox ORDER BY seq LIMIT ?)
  AND handled_at < ?`,
		SweepAttempts: `DELETE FROM seambus_attempts WHERE (grp, source, event_id) IN
  (SELECT grp, source, event_id FROM seambus_attempts WHERE updated_at < ? LIMIT ?)`,

		Version: sqliteVersion,
	}
}

const (
	sqliteKey = `grp = ? AND topic = ? AND partition_key = ?`

	// sqliteHolding is true of a parked event that the rest of its key waits for.
	sqliteHolding = `(state IN ('held', 'ready') OR holds = 1)`

	sqliteParkedColumns = `seq, grp, topic, partition_key, source, event_id, handler, message_uuid, metadata, payload, state,
  attempts, class, reason, not_before, first_attempt, parked_at, event_type, history`

	sqlitePark = `INSERT INTO seambus_parked (grp, topic, partition_key, source, event_id, handler, message_uuid, metadata,
  payload, state, holds, attempts, class, reason, not_before, first_attempt, parked_at, event_type, history)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
WHERE NOT EXISTS (SELECT 1 FROM seambus_inbox WHERE grp = ?1 AND source = ?4 AND event_id = ?5)`
)

// sqliteParkedFilter takes group, topic, key, state, class, type, id, since and until, each empty or zero for any.
const sqliteParkedFilter = `(?1 = '' OR grp = ?1) AND (?2 = '' OR topic = ?2) AND (?3 = '' OR partition_key = ?3)
  AND (?4 = '' OR state = ?4) AND (?5 = '' OR class = ?5) AND (?6 = '' OR event_type = ?6) AND (?7 = '' OR event_id = ?7)
  AND (?8 = 0 OR parked_at >= ?8) AND (?9 = 0 OR parked_at < ?9)`

// sqliteVersion keeps unsigned order with SQLite's signed integers: what they cannot hold is text, which sorts after them.
func sqliteVersion(v uint64) any {
	if v <= math.MaxInt64 {
		return int64(v)
	}
	return fmt.Sprintf("%020d", v)
}

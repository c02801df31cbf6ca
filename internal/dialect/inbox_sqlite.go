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
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		Advance: `INSERT INTO seambus_versions (grp, topic, partition_key, version) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version WHERE seambus_versions.version < excluded.version`,
		MarkStale: `UPDATE seambus_inbox SET stale = 1 WHERE grp = ? AND source = ? AND event_id = ?`,

		BeginAttempt: `INSERT INTO seambus_attempts (grp, source, event_id, attempts, updated_at) VALUES (?, ?, ?, 1, ?)
ON CONFLICT DO UPDATE SET attempts = attempts + 1, updated_at = excluded.updated_at RETURNING attempts`,
		GiveBackAttempt: `UPDATE seambus_attempts SET attempts = attempts - 1
WHERE grp = ? AND source = ? AND event_id = ? AND attempts > 0`,
		ForgetAttempts: `DELETE FROM seambus_attempts WHERE grp = ? AND source = ? AND event_id = ?`,

		Park: `INSERT INTO seambus_parked (grp, topic, partition_key, source, event_id, handler, message_uuid, metadata,
  payload, state, attempts, class, reason, not_before, first_attempt, parked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (grp, source, event_id) DO UPDATE SET topic = excluded.topic, partition_key = excluded.partition_key,
  handler = excluded.handler, message_uuid = excluded.message_uuid, metadata = excluded.metadata,
  payload = excluded.payload, state = excluded.state, attempts = excluded.attempts, class = excluded.class,
  reason = excluded.reason, not_before = excluded.not_before,
  first_attempt = coalesce(nullif(seambus_parked.first_attempt, 0), excluded.first_attempt), parked_at = excluded.parked_at`,
		ListParked: `SELECT seq, grp, topic, partition_key, source, event_id, handler, message_uuid, metadata, payload, state,
  attempts, class, reason, not_before, first_attempt, parked_at
FROM seambus_parked WHERE ` + sqliteParkedFilter + ` AND seq > ?5 ORDER BY seq LIMIT ?6`,
		CountParked: `SELECT count(*) FROM seambus_parked WHERE ` + sqliteParkedFilter,

		SweepIDs: `DELETE FROM seambus_inbox WHERE seq IN (SELECT seq FROM seambus_inbox ORDER BY seq LIMIT ?)
  AND handled_at < ?`,
		SweepAttempts: `DELETE FROM seambus_attempts WHERE (grp, source, event_id) IN
  (SELECT grp, source, event_id FROM seambus_attempts WHERE updated_at < ? LIMIT ?)`,

		Version: sqliteVersion,
	}
}

const sqliteParkedFilter = `(?1 = '' OR grp = ?1) AND (?2 = '' OR topic = ?2)
  AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR state = ?4)`

// sqliteVersion keeps unsigned order with SQLite's signed integers: what they cannot hold is text, which sorts after them.
func sqliteVersion(v uint64) any {
	if v <= math.MaxInt64 {
		return int64(v)
	}
	return fmt.Sprintf("%020d", v)
}

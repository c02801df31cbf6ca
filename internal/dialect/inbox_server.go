package dialect

import (
	"database/sql"
	"reflect"
	"strconv"
	"strings"
)

// inboxWords is what the servers say differently in the inbox's statements, beside [serverWords].
var inboxWords = map[Name]*strings.Replacer{
	Postgres: strings.NewReplacer(
		"{text}", "CAST(? AS text)",
		"{from nothing}", "",
		"{or nothing}", "ON CONFLICT DO NOTHING",
		"{or newer version}", `ON CONFLICT (grp, topic, partition_key) DO UPDATE SET version = excluded.version
  WHERE seambus_versions.version < excluded.version`,
		"{or one more}", `ON CONFLICT (grp, source, event_id) DO UPDATE
  SET attempts = seambus_attempts.attempts + 1, updated_at = excluded.updated_at RETURNING attempts`,
		"{or held}", "ON CONFLICT (grp, topic, partition_key) DO UPDATE SET state = 'held', not_before = NULL",
		"{or replay}", `ON CONFLICT (grp, topic, partition_key) DO UPDATE
  SET not_before = CASE seambus_held.state WHEN 'replay' THEN seambus_held.not_before END, state = 'replay'`,
		"{or renewed letter}", `ON CONFLICT (grp, source, event_id) DO UPDATE SET topic = excluded.topic,
  partition_key = excluded.partition_key, event_type = excluded.event_type, handler = excluded.handler,
  message_uuid = excluded.message_uuid, metadata = excluded.metadata, payload = excluded.payload, state = excluded.state,
  holds = excluded.holds, attempts = excluded.attempts, class = excluded.class, reason = excluded.reason,
  history = excluded.history, parked_at = excluded.parked_at, revision = seambus_parked.revision + 1,
  first_attempt = coalesce(nullif(seambus_parked.first_attempt, 0), excluded.first_attempt)`,
		"{due in}", "CAST(extract(epoch FROM coalesce(min(not_before), clock_timestamp()) - clock_timestamp()) * 1000000 AS bigint)",
		"{epoch began_at}", "CAST(extract(epoch FROM began_at) * 1000000 AS bigint)",
		"{epoch at}", "CAST(extract(epoch FROM at) * 1000000 AS bigint)",
		"{epoch handled_at}", "CAST(extract(epoch FROM handled_at) * 1000000 AS bigint)",
		"{oldest ids}", `DELETE FROM seambus_inbox WHERE seq IN (SELECT seq FROM seambus_inbox ORDER BY seq LIMIT ?) AND handled_at < {ago}`,
		"{old attempts}", `DELETE FROM seambus_attempts WHERE (grp, source, event_id) IN
  (SELECT grp, source, event_id FROM seambus_attempts WHERE updated_at < {ago} LIMIT ?)`,
		"{bytes}", "''",
	),
	MySQL: strings.NewReplacer(
		"{text}", "?",
		"{from nothing}", "FROM DUAL",
		"{or nothing}", "ON DUPLICATE KEY UPDATE grp = VALUES(grp)", // not INSERT IGNORE, which hides every other error too
		"{or newer version}", "ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))",
		"{or one more}", "ON DUPLICATE KEY UPDATE attempts = attempts + 1, updated_at = VALUES(updated_at)",
		"{or held}", "ON DUPLICATE KEY UPDATE state = 'held', not_before = NULL, touched = touched + 1",
		"{or replay}", `ON DUPLICATE KEY UPDATE
  not_before = IF(state = 'replay', not_before, NULL), state = 'replay', touched = touched + 1`,
		"{or renewed letter}", `ON DUPLICATE KEY UPDATE topic = VALUES(topic),
  partition_key = VALUES(partition_key), event_type = VALUES(event_type), handler = VALUES(handler),
  message_uuid = VALUES(message_uuid), metadata = VALUES(metadata), payload = VALUES(payload), state = VALUES(state),
  holds = VALUES(holds), attempts = VALUES(attempts), class = VALUES(class), reason = VALUES(reason),
  history = VALUES(history), parked_at = VALUES(parked_at), revision = revision + 1,
  first_attempt = coalesce(nullif(first_attempt, 0), VALUES(first_attempt))`,
		"{due in}", "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), coalesce(min(not_before), UTC_TIMESTAMP(6)))",
		"{epoch began_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', began_at)",
		"{epoch at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at)",
		"{epoch handled_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', handled_at)",
		"{oldest ids}", `DELETE i FROM seambus_inbox i JOIN (SELECT seq FROM seambus_inbox ORDER BY seq LIMIT ?) o USING (seq)
WHERE i.handled_at < {ago}`,
		"{old attempts}", `DELETE FROM seambus_attempts WHERE updated_at < {ago} LIMIT ?`,
		"{bytes}", "''",
	),
}

// serverInbox returns the inbox's statements for PostgreSQL and MySQL. Times are the server's.
func (d Dialect) serverInbox() *Inbox {
	i := &Inbox{
		Now:       func() []any { return nil },
		Isolation: sql.LevelReadCommitted,

		Claim: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at)
SELECT {text}, {text}, {text}, {text}, {text}, {now} {from nothing} WHERE NOT EXISTS (
  SELECT 1 FROM seambus_held WHERE ` + inboxKey + `) {or nothing}`,
		ClaimAlways: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at)
VALUES (?, ?, ?, ?, ?, {now}) {or nothing}`,
		Known:     `SELECT EXISTS (SELECT 1 FROM seambus_inbox WHERE ` + inboxID + `)`,
		Advance:   `INSERT INTO seambus_versions (grp, topic, partition_key, version) VALUES (?, ?, ?, ?) {or newer version}`,
		MarkStale: `UPDATE seambus_inbox SET stale = 1 WHERE ` + inboxID,

		BeginAttempt: `INSERT INTO seambus_attempts (grp, source, event_id, attempts, began_at, updated_at)
VALUES (?, ?, ?, 1, {now}, {now}) {or one more}`,
		GiveBackAttempt: `UPDATE seambus_attempts SET attempts = attempts - 1 WHERE ` + inboxID + ` AND attempts > 0`,
		AttemptHistory:  `SELECT history, {epoch began_at} FROM seambus_attempts WHERE ` + inboxID,
		NoteAttempt:     `UPDATE seambus_attempts SET history = ? WHERE ` + inboxID,
		ForgetAttempts:  `DELETE FROM seambus_attempts WHERE ` + inboxID,

		Park:     parkedInsert + ` {or renewed letter}`,
		Append:   parkedInsert + ` {or nothing}`,
		Hold:     `INSERT INTO seambus_held (grp, topic, partition_key, state, since) VALUES (?, ?, ?, 'held', {now}) {or held}`,
		LockHeld: `UPDATE seambus_held SET touched = touched + 1 WHERE ` + inboxKey,

		DueKeys: `SELECT partition_key FROM seambus_held WHERE grp = ? AND topic = ? AND state = 'replay'
  AND (not_before IS NULL OR not_before <= {now}) ORDER BY not_before LIMIT ?`,
		NextDue: `SELECT {due in} FROM seambus_held WHERE grp = ? AND topic = ? AND state = 'replay' HAVING count(*) > 0`,
		LeaseKey: `UPDATE seambus_held SET not_before = {later} WHERE ` + inboxKey + ` AND state = 'replay'
  AND (not_before IS NULL OR not_before <= {now})`,
		Postpone: `UPDATE seambus_held SET not_before = {later} WHERE ` + inboxKey + ` AND state = 'replay'`,
		Head:     `SELECT ` + parkedColumns + ` FROM seambus_parked WHERE ` + inboxKey + ` AND ` + parkedHolding + ` ORDER BY seq LIMIT 1`,
		Take:     `DELETE FROM seambus_parked WHERE seq = ? AND revision = ? AND state IN ('held', 'ready')`,
		Block:    `UPDATE seambus_held SET state = 'held', not_before = NULL WHERE ` + inboxKey + ` AND ` + parkedDead,
		Open:     `DELETE FROM seambus_held WHERE ` + inboxKey + ` AND ` + parkedNone,

		Ready:     `UPDATE seambus_parked SET state = 'ready', holds = 0, revision = revision + 1 WHERE seq = ? AND state = 'dead'`,
		Replay:    `INSERT INTO seambus_held (grp, topic, partition_key, state, since) VALUES (?, ?, ?, 'replay', {now}) {or replay}`,
		Unblock:   `UPDATE seambus_held SET state = 'replay', not_before = NULL WHERE ` + inboxKey + ` AND state = 'held'`,
		Discard:   `UPDATE seambus_parked SET state = 'discarded', holds = 0, revision = revision + 1 WHERE seq = ? AND state = 'dead'`,
		Erase:     `UPDATE seambus_parked SET payload = {bytes}, metadata = '{}' WHERE seq = ? AND state = 'discarded'`,
		VersionOf: `SELECT version FROM seambus_versions WHERE ` + inboxKey,
		Later: `SELECT EXISTS (SELECT 1 FROM seambus_inbox
WHERE ` + inboxKey + ` AND stale = 0 AND {epoch handled_at} > ?)`,
		Audit: `INSERT INTO seambus_audit (who, why, action, grp, topic, partition_key, source, event_id, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})`,
		ListAudit: `SELECT seq, {epoch at}, who, why, action, grp, topic, partition_key, source, event_id FROM seambus_audit
WHERE seq > ? ORDER BY seq LIMIT ?`,

		Backlog: `SELECT state, class, count(*), min(parked_at) FROM seambus_parked WHERE state <> 'discarded'
GROUP BY state, class`,
		HeldKeys: `SELECT count(*) FROM seambus_held`,
		CountIDs: `SELECT count(*) FROM seambus_inbox WHERE ` + serverForgotten,
		ForgetVersions: `DELETE FROM seambus_versions WHERE (grp, topic, partition_key) IN (
  SELECT grp, topic, partition_key FROM seambus_inbox WHERE ` + serverForgotten + `)`,
		ForgetIDs: `DELETE FROM seambus_inbox WHERE ` + serverForgotten,

		SweepIDs:      `{oldest ids}`,
		SweepAttempts: `{old attempts}`,

		Version:    func(v uint64) any { return strconv.FormatUint(v, 10) },
		listParked: `SELECT ` + parkedColumns + ` FROM seambus_parked`,
		bind:       d.bind,
	}
	if d.name == Postgres {
		i.ClaimAndAdvance = `WITH claimed AS (` + i.Claim + ` RETURNING 1), advanced AS (
  INSERT INTO seambus_versions (grp, topic, partition_key, version)
  SELECT {text}, {text}, {text}, CAST(? AS numeric) FROM claimed {or newer version} RETURNING 1)
SELECT (SELECT count(*) FROM claimed), (SELECT count(*) FROM advanced)`
	}
	if d.name == MySQL {
		i.ReadAttempt = `SELECT attempts FROM seambus_attempts WHERE ` + inboxID
	}
	d.translate(i)
	return i
}

const serverForgotten = `grp = ? AND ({text} = '' OR partition_key = ?) AND {epoch handled_at} >= ?`

// translate says every statement as d does.
func (d Dialect) translate(i *Inbox) {
	for _, f := range reflect.ValueOf(i).Elem().Fields() {
		if f.Kind() == reflect.String && f.CanSet() {
			f.SetString(d.text(inboxWords[d.name].Replace(f.String()), DefaultPrefix))
		}
	}
}

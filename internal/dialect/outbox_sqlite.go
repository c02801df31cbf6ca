package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The statements name the partial indexes: without that the planner may take the rowid for a range of seq, and then reads
// every published row.
const (
	sqliteColumns = `seq, event_id, source, topic, type, schema_version, content_type, partition_key, aggregate_version,
  payload, metadata, created_at, available_at, attempts, generation, shard, state`
	sqliteInRanges = `(shard < 0 OR (? >> (shard >> 6)) & 1 = 1)`
	sqliteFenced   = ` AND (shard >> 6) IN (SELECT range_id FROM seambus_outbox_leases WHERE owner = ? AND token = ?)`
	sqliteAmong    = `seq IN (SELECT value FROM json_each(?))`

	sqliteInsert = `INSERT INTO seambus_outbox (event_id, source, topic, type, schema_version, content_type, partition_key,
  aggregate_version, payload, metadata, created_at, available_at, shard) VALUES `
	sqliteInsertRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqliteInsertEnd = ` ON CONFLICT (event_id) DO NOTHING`
	sqliteInsertOne = sqliteInsert + sqliteInsertRow + sqliteInsertEnd

	sqliteHeads = `SELECT ` + sqliteColumns + ` FROM seambus_outbox INDEXED BY seambus_outbox_head
WHERE state = 0 AND seq > ? AND ` + sqliteInRanges + ` ORDER BY seq LIMIT ?`
	sqliteStragglers = `SELECT seq FROM seambus_outbox INDEXED BY seambus_outbox_head
WHERE state = 0 AND seq > ? AND seq <= ? AND ` + sqliteInRanges + ` ORDER BY seq LIMIT ?`
	sqliteLoad    = `SELECT ` + sqliteColumns + ` FROM seambus_outbox WHERE state = 0 AND ` + sqliteAmong + ` ORDER BY seq`
	sqliteWaiting = `SELECT ` + sqliteColumns + ` FROM seambus_outbox INDEXED BY seambus_outbox_blocked
WHERE state IN (1, 2) AND state <= ? AND topic = ? AND partition_key = ? AND seq > ? ORDER BY seq`
	sqliteRetrying = `SELECT ` + sqliteColumns + ` FROM seambus_outbox INDEXED BY seambus_outbox_blocked
WHERE state IN (1, 2) AND state = 1 AND topic = ? AND partition_key = '' AND available_at <= ? AND ` + sqliteInRanges + `
ORDER BY seq`
	sqliteNextRetry = `SELECT coalesce(min(available_at), 0) FROM seambus_outbox INDEXED BY seambus_outbox_blocked
WHERE state IN (1, 2) AND state = 1 AND topic = ? AND partition_key = '' AND available_at > ? AND ` + sqliteInRanges
	sqliteBlocked = `SELECT topic, partition_key, shard, min(seq), state, available_at
FROM seambus_outbox INDEXED BY seambus_outbox_blocked
WHERE state IN (1, 2) AND state <= ? AND partition_key <> '' AND ` + sqliteInRanges + ` GROUP BY topic, partition_key
UNION ALL SELECT topic, '', 0, seq, state, min(available_at)
FROM seambus_outbox INDEXED BY seambus_outbox_blocked
WHERE state IN (1, 2) AND state = 1 AND partition_key = '' AND ` + sqliteInRanges + ` GROUP BY topic`
	sqliteAnyPending = `SELECT EXISTS (SELECT 1 FROM seambus_outbox INDEXED BY seambus_outbox_head WHERE state = 0)`

	sqliteAdopt = `UPDATE seambus_outbox SET shard = ?, created_at = ?, source = ? WHERE seq = ? AND shard < 0`
	sqliteMark  = `UPDATE seambus_outbox SET state = 3, published_at = ?, last_attempt_at = ?, attempts = attempts + 1,
  error_class = '', last_error = '' WHERE ` + sqliteAmong + ` AND state IN (0, 1)` + sqliteFenced
	sqliteRemove = `DELETE FROM seambus_outbox WHERE ` + sqliteAmong + ` AND state = 3
  AND seq < (SELECT max(seq) FROM seambus_outbox)`
	sqliteHold = `UPDATE seambus_outbox SET state = 1 WHERE ` + sqliteAmong + ` AND state = 0` + sqliteFenced
	sqliteFail = `UPDATE seambus_outbox SET state = ?, available_at = ?, attempts = attempts + 1, last_attempt_at = ?,
  error_class = ?, last_error = ? WHERE seq = ? AND state IN (0, 1)` + sqliteFenced

	sqliteWindow = `SELECT coalesce(max(seq), 0), count(*),
  coalesce(min(CASE WHEN state >= 3 AND published_at >= ?3 THEN published_at END), 0)
FROM (SELECT seq, state, published_at FROM seambus_outbox WHERE seq > ?1 ORDER BY seq LIMIT ?2)`
	sqliteSweep = `DELETE FROM seambus_outbox WHERE seq > ?1 AND seq <= ?2 AND state >= 3 AND published_at < ?3
  AND seq < (SELECT max(seq) FROM seambus_outbox)`
	sqliteOldest = `SELECT coalesce(min(t), 0) FROM (
  SELECT min(CASE created_at WHEN 0 THEN NULL ELSE created_at END) AS t FROM (
    SELECT created_at FROM seambus_outbox INDEXED BY seambus_outbox_head WHERE state = 0 AND replayed_at IS NULL ORDER BY seq LIMIT 100)
  UNION ALL SELECT min(replayed_at) FROM (SELECT replayed_at FROM seambus_outbox INDEXED BY seambus_outbox_head
    WHERE state = 0 AND replayed_at IS NOT NULL ORDER BY seq LIMIT 100)
  UNION ALL SELECT min(coalesce(replayed_at, created_at)) FROM seambus_outbox INDEXED BY seambus_outbox_blocked WHERE state IN (1, 2) AND state = 1)`
	sqliteDepth = `SELECT
  (SELECT count(*) FROM seambus_outbox INDEXED BY seambus_outbox_head WHERE state = 0),
  (SELECT count(*) FROM seambus_outbox INDEXED BY seambus_outbox_blocked WHERE state IN (1, 2) AND state = 1),
  (SELECT count(*) FROM seambus_outbox INDEXED BY seambus_outbox_blocked WHERE state IN (1, 2) AND state = 2)`
)

// sqliteMaxRows bounds the rows of one insert: SQLite takes 32,766 parameters.
const sqliteMaxRows = 2000

// sqliteOutbox keeps what runs often as prepared statements, which database/sql prepares once per connection.
type sqliteOutbox struct {
	db     *sql.DB
	prefix string

	insertOne, heads, stragglers, anyPending, mark *sql.Stmt
}

func openSQLiteOutbox(ctx context.Context, db *sql.DB, prefix string) (*sqliteOutbox, error) {
	o := &sqliteOutbox{db: db, prefix: prefix}
	for _, p := range []struct {
		into **sql.Stmt
		text string
	}{
		{&o.insertOne, sqliteInsertOne}, {&o.heads, sqliteHeads}, {&o.stragglers, sqliteStragglers},
		{&o.anyPending, sqliteAnyPending}, {&o.mark, sqliteMark},
	} {
		stmt, err := db.PrepareContext(ctx, o.text(p.text))
		if err != nil {
			return nil, fmt.Errorf("dialect: outbox: prepare: %w", err)
		}
		*p.into = stmt
	}
	return o, nil
}

func (o *sqliteOutbox) text(statement string) string { return named(statement, o.prefix) }

func (o *sqliteOutbox) Insert(ctx context.Context, x Execer, rows []Row) (n int64, err error) {
	for len(rows) > 0 {
		some := rows[:min(len(rows), sqliteMaxRows)]
		rows = rows[len(some):]
		res, err := o.insert(ctx, x, some)
		if err != nil {
			return n, err
		}
		more, err := res.RowsAffected()
		if err != nil {
			return n, err
		}
		n += more
	}
	return n, nil
}

func (o *sqliteOutbox) insert(ctx context.Context, x Execer, rows []Row) (sql.Result, error) {
	if tx, ok := x.(*sql.Tx); ok && len(rows) == 1 {
		return tx.StmtContext(ctx, o.insertOne).ExecContext(ctx, sqliteArgs(rows)...)
	}
	return x.ExecContext(ctx, o.text(sqliteInsertRows(len(rows))), sqliteArgs(rows)...)
}

func sqliteInsertRows(n int) string {
	return sqliteInsert + strings.Repeat(sqliteInsertRow+", ", n-1) + sqliteInsertRow + sqliteInsertEnd
}

func sqliteArgs(rows []Row) []any {
	args := make([]any, 0, len(rows)*13)
	for i := range rows {
		r := &rows[i]
		args = append(args, r.ID, r.Source, r.Topic, r.Type, r.SchemaVersion, r.ContentType, r.Key, r.version(), r.payload(),
			r.Metadata, Micros(r.Created), Micros(r.Available), r.Shard)
	}
	return args
}

func scanRows(rows *sql.Rows, err error, yield func(*Row) bool) error {
	if err != nil {
		return err
	}
	for rows.Next() {
		r, err := scanRow(rows)
		if err != nil {
			return errors.Join(err, rows.Close())
		}
		if !yield(r) {
			break
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

func scanRow(rows *sql.Rows) (*Row, error) {
	r := new(Row)
	var version sql.NullString
	var created, available int64
	err := rows.Scan(&r.Seq, &r.ID, &r.Source, &r.Topic, &r.Type, &r.SchemaVersion, &r.ContentType, &r.Key, &version,
		&r.Payload, &r.Metadata, &created, &available, &r.Attempts, &r.Generation, &r.Shard, &r.State)
	if err != nil {
		return nil, err
	}
	r.Created, r.Available = Time(created), Time(available)
	if version.Valid {
		// A foreign writer's nonsense is no version; the event itself is still good.
		r.Version, err = strconv.ParseUint(version.String, 10, 64)
		r.HasVersion = err == nil
	}
	return r, nil
}

func (o *sqliteOutbox) Heads(ctx context.Context, after int64, ranges Mask, limit int, yield func(*Row) bool) error {
	rows, err := o.heads.QueryContext(ctx, after, int64(ranges), limit)
	return scanRows(rows, err, yield)
}

func (o *sqliteOutbox) Stragglers(ctx context.Context, after, upTo int64, ranges Mask, limit int) (seqs []int64, err error) {
	rows, err := o.stragglers.QueryContext(ctx, after, upTo, int64(ranges), limit)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		seqs = append(seqs, seq)
	}
	return seqs, errors.Join(rows.Err(), rows.Close())
}

func (o *sqliteOutbox) Load(ctx context.Context, seqs []int64, yield func(*Row) bool) error {
	rows, err := o.db.QueryContext(ctx, o.text(sqliteLoad), list(seqs))
	return scanRows(rows, err, yield)
}

func (o *sqliteOutbox) Waiting(ctx context.Context, topic, key string, after int64, failed bool, yield func(*Row) bool) error {
	rows, err := o.db.QueryContext(ctx, o.text(sqliteWaiting), lastState(failed), topic, key, after)
	return scanRows(rows, err, yield)
}

func lastState(failed bool) State {
	if failed {
		return Failed
	}
	return Held
}

func (o *sqliteOutbox) Retrying(ctx context.Context, topic string, now time.Time, ranges Mask, yield func(*Row) bool) error {
	rows, err := o.db.QueryContext(ctx, o.text(sqliteRetrying), topic, Micros(now), int64(ranges))
	return scanRows(rows, err, yield)
}

func (o *sqliteOutbox) NextRetry(ctx context.Context, topic string, now time.Time, ranges Mask) (time.Time, error) {
	var t int64
	err := o.db.QueryRowContext(ctx, o.text(sqliteNextRetry), topic, Micros(now), int64(ranges)).Scan(&t)
	return Time(t), err
}

func (o *sqliteOutbox) Blocked(ctx context.Context, ranges Mask, failed bool) (keys []BlockedKey, err error) {
	rows, err := o.db.QueryContext(ctx, o.text(sqliteBlocked), lastState(failed), int64(ranges), int64(ranges))
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var k BlockedKey
		var available int64
		if err := rows.Scan(&k.Topic, &k.Key, &k.Shard, &k.Seq, &k.State, &available); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		k.Available = Time(available)
		keys = append(keys, k)
	}
	return keys, errors.Join(rows.Err(), rows.Close())
}

func (o *sqliteOutbox) AnyPending(ctx context.Context) (found bool, err error) {
	err = o.anyPending.QueryRowContext(ctx).Scan(&found)
	return found, err
}

// list returns seqs as a JSON array, so that a statement's text does not depend on their number.
func list(seqs []int64) string {
	b := make([]byte, 0, 8*len(seqs)+2)
	b = append(b, '[')
	for i, seq := range seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, seq, 10)
	}
	return string(append(b, ']'))
}

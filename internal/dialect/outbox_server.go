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

// What is read in the head and beside it. MySQL is told which index to take: it would follow the primary key through all
// that is published.
const (
	serverColumns = `seq, event_id, source, topic, type, schema_version, content_type, partition_key, aggregate_version,
  payload, metadata, {epoch created_at}, {age available_at}, attempts, generation, shard, state`
	serverInRanges = `(shard < 0 OR ({bits} >> (shard >> 6)) & 1 = 1)`

	serverHeads = `SELECT ` + serverColumns + ` FROM seambus_outbox {head}
WHERE state = 0 AND seq > ? AND ` + serverInRanges + ` ORDER BY seq LIMIT ?`
	serverTop        = `SELECT coalesce(max(seq), 0) FROM seambus_outbox`
	serverStragglers = `SELECT seq FROM seambus_outbox {head}
WHERE state = 0 AND seq > ? AND seq <= ? AND ` + serverInRanges + ` ORDER BY seq LIMIT ?`
	serverDone    = `SELECT seq FROM seambus_outbox {by seq} WHERE seq > ? AND seq <= ? AND NOT (state = 0 AND ` + serverInRanges + `) ORDER BY seq`
	serverLoad    = `SELECT ` + serverColumns + ` FROM seambus_outbox {by seq} WHERE state = 0 AND {ids} ORDER BY seq`
	serverWaiting = `SELECT ` + serverColumns + ` FROM seambus_outbox {blocked}
WHERE state IN (1, 2) AND state <= ? AND {this key} AND seq > ? ORDER BY seq LIMIT ?`
	serverRetrying = `SELECT ` + serverColumns + ` FROM seambus_outbox {blocked}
WHERE state IN (1, 2) AND state = 1 AND {this key} AND (available_at IS NULL OR available_at <= {now}) AND ` + serverInRanges + `
  AND seq > ? ORDER BY seq LIMIT ?`
	serverNextRetry = `SELECT max({age available_at}) FROM seambus_outbox {blocked}
WHERE state IN (1, 2) AND state = 1 AND {this key} AND available_at > {now} AND ` + serverInRanges
	serverBlocked = `SELECT topic, partition_key, shard, seq, state, {age available_at} FROM seambus_outbox
WHERE seq IN (SELECT first FROM (SELECT min(seq) AS first FROM seambus_outbox {blocked}
  WHERE {is blocked} AND state <= ? AND partition_key <> '' AND ` + serverInRanges + ` GROUP BY topic, partition_key) AS firsts)`
	serverBlockedKeyless = `SELECT topic, '', 0, min(seq), 1, max({age available_at}) FROM seambus_outbox {blocked}
WHERE {is blocked} AND state = 1 AND partition_key = '' AND ` + serverInRanges + ` GROUP BY topic`
	serverAnyPending = `SELECT EXISTS (SELECT 1 FROM seambus_outbox {head} WHERE state = 0)`

	// A held row counts by its own time; of the pending ones the first hundred are enough, since they are nearly in order. What
	// is replayed waits since then.
	serverOldest = `SELECT coalesce(max(age), -1) FROM (
  SELECT max({age created_at}) AS age FROM (
    SELECT created_at FROM seambus_outbox {head} WHERE state = 0 AND replayed_at IS NULL ORDER BY seq LIMIT 100) AS first
  UNION ALL SELECT max({age created_at}) FROM (
    SELECT replayed_at AS created_at FROM seambus_outbox {head} WHERE state = 0 AND replayed_at IS NOT NULL ORDER BY seq LIMIT 100) AS again
  UNION ALL SELECT max({age created_at}) FROM (
    SELECT coalesce(replayed_at, created_at) AS created_at FROM seambus_outbox {blocked} WHERE {is blocked} AND state = 1) AS waiting
  ) AS ages`
	serverDepth = `SELECT
  (SELECT count(*) FROM seambus_outbox {head} WHERE state = 0),
  (SELECT count(*) FROM seambus_outbox {blocked} WHERE {is blocked} AND state = 1),
  (SELECT count(*) FROM seambus_outbox {blocked} WHERE {is blocked} AND state = 2)`
)

// serverPage is how many rows of a blocked key are asked for at once: a result that is closed early is read to its end.
const serverPage = 200

// serverOutbox is the outbox on a server. Every statement uses the server's clock and none depends on what a session's
// default isolation is. Drivers keep prepared statements by text, or send the arguments with it.
type serverOutbox struct {
	db     *sql.DB
	d      Dialect
	prefix string
	texts  map[string]string // by statement
}

func openServerOutbox(ctx context.Context, db *sql.DB, d Dialect, prefix string) (*serverOutbox, error) {
	steps, err := d.Migrations(SetOutbox, prefix)
	if err != nil {
		return nil, err
	}
	have, err := d.Applied(ctx, db, SetOutbox, prefix)
	if err != nil {
		return nil, err
	}
	if have < len(steps) {
		return nil, fmt.Errorf("dialect: tables of %q are at version %d, want %d or newer: %w", prefix+"outbox", have, len(steps), ErrSchema)
	}
	o := &serverOutbox{db: db, d: d, prefix: prefix, texts: make(map[string]string)}
	for _, statement := range []string{
		serverHeads, serverTop, serverStragglers, serverDone, serverLoad, serverWaiting, serverRetrying, serverNextRetry, serverBlocked,
		serverBlockedKeyless, serverAnyPending, serverOldest, serverDepth, serverInsertOne, serverAdopt, serverFence, serverMark,
		serverRemove, serverHold, serverFail, serverLeases, serverJoin, serverBury, serverRelays, serverExtend, serverClaim,
		serverRelease, serverLeave, serverQuit, serverSweepLock, serverWindow, serverSweep, operatorChanges,
	} {
		o.texts[statement] = d.text(statement, prefix)
	}
	return o, nil
}

func (o *serverOutbox) text(statement string) string { return o.texts[statement] }

// since turns an age by the server's clock into a time by this process's, for comparisons with it.
func since(micros int64) time.Time { return time.Now().Add(-time.Duration(micros) * time.Microsecond) }

func (o *serverOutbox) query(ctx context.Context, yield func(*Row) bool, text string, args ...any) (n int, err error) {
	rows, err := o.db.QueryContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		r, err := scanServerRow(rows)
		if err != nil {
			return n, errors.Join(err, rows.Close())
		}
		if n++; !yield(r) {
			break
		}
	}
	return n, errors.Join(rows.Err(), rows.Close())
}

func scanServerRow(rows *sql.Rows) (*Row, error) {
	r := new(Row)
	var version sql.NullString
	var created int64
	var due sql.NullInt64
	err := rows.Scan(&r.Seq, &r.ID, &r.Source, &r.Topic, &r.Type, &r.SchemaVersion, &r.ContentType, &r.Key, &version,
		&r.Payload, &r.Metadata, &created, &due, &r.Attempts, &r.Generation, &r.Shard, &r.State)
	if err != nil {
		return nil, err
	}
	r.Created = Time(created)
	if due.Valid {
		r.Available = since(due.Int64)
	}
	if version.Valid {
		// A foreign writer's nonsense is no version; the event itself is still good.
		r.Version, err = strconv.ParseUint(version.String, 10, 64)
		r.HasVersion = err == nil
	}
	return r, nil
}

func (o *serverOutbox) Heads(ctx context.Context, after int64, ranges Mask, limit int, yield func(*Row) bool) error {
	_, err := o.query(ctx, yield, o.text(serverHeads), after, int64(ranges), limit)
	return err
}

func (o *serverOutbox) Top(ctx context.Context) (top int64, err error) {
	err = o.db.QueryRowContext(ctx, o.text(serverTop)).Scan(&top)
	return top, err
}

func (o *serverOutbox) Stragglers(ctx context.Context, after, upTo int64, ranges Mask, limit int) (seqs []int64, err error) {
	return o.seqs(ctx, serverStragglers, after, upTo, int64(ranges), limit)
}

func (o *serverOutbox) Done(ctx context.Context, after, upTo int64, ranges Mask) ([]int64, error) {
	return o.seqs(ctx, serverDone, after, upTo, int64(ranges))
}

func (o *serverOutbox) seqs(ctx context.Context, statement string, args ...any) (seqs []int64, err error) {
	rows, err := o.db.QueryContext(ctx, o.text(statement), args...)
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

func (o *serverOutbox) Load(ctx context.Context, seqs []int64, yield func(*Row) bool) error {
	text, args := o.d.among(o.text(serverLoad), seqs)
	_, err := o.query(ctx, yield, text, args...)
	return err
}

// pages runs a query that ends with "seq > ? … LIMIT ?" until it has no more rows or yield has enough.
func (o *serverOutbox) pages(ctx context.Context, yield func(*Row) bool, text string, after int64, args ...any) error {
	args = append(args, after, serverPage)
	for more := true; more; {
		n, err := o.query(ctx, func(r *Row) bool {
			args[len(args)-2] = r.Seq
			more = yield(r)
			return more
		}, text, args...)
		if err != nil || n < serverPage {
			return err
		}
	}
	return nil
}

func (o *serverOutbox) Waiting(ctx context.Context, topic, key string, after int64, failed bool, yield func(*Row) bool) error {
	return o.pages(ctx, yield, o.text(serverWaiting), after, int(lastState(failed)), topic, key)
}

func (o *serverOutbox) Retrying(ctx context.Context, topic string, _ time.Time, ranges Mask, yield func(*Row) bool) error {
	return o.pages(ctx, yield, o.text(serverRetrying), 0, topic, "", int64(ranges))
}

func (o *serverOutbox) NextRetry(ctx context.Context, topic string, _ time.Time, ranges Mask) (time.Time, error) {
	var age sql.NullInt64
	err := o.db.QueryRowContext(ctx, o.text(serverNextRetry), topic, "", int64(ranges)).Scan(&age)
	if err != nil || !age.Valid {
		return time.Time{}, err
	}
	return since(age.Int64), nil
}

func (o *serverOutbox) Blocked(ctx context.Context, ranges Mask, failed bool) ([]BlockedKey, error) {
	keys, err := o.blocked(ctx, nil, serverBlocked, int(lastState(failed)), int64(ranges))
	if err != nil {
		return nil, err
	}
	return o.blocked(ctx, keys, serverBlockedKeyless, int64(ranges))
}

func (o *serverOutbox) blocked(ctx context.Context, keys []BlockedKey, statement string, args ...any) ([]BlockedKey, error) {
	rows, err := o.db.QueryContext(ctx, o.text(statement), args...)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var k BlockedKey
		var due sql.NullInt64
		if err := rows.Scan(&k.Topic, &k.Key, &k.Shard, &k.Seq, &k.State, &due); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		if due.Valid {
			k.Available = since(due.Int64)
		}
		keys = append(keys, k)
	}
	return keys, errors.Join(rows.Err(), rows.Close())
}

const (
	postgresNotify = `SELECT pg_notify($1, '')`
	postgresListen = `LISTEN `
)

func (o *serverOutbox) Channel() string {
	if o.d.name != Postgres {
		return ""
	}
	return o.prefix + "outbox"
}

func (o *serverOutbox) Notify(ctx context.Context) error {
	if o.Channel() == "" {
		return nil
	}
	_, err := o.db.ExecContext(ctx, postgresNotify, o.Channel())
	return err
}

// ListenQuery returns the statement that listens on a channel as [Outbox] names it.
func ListenQuery(channel string) (string, error) {
	if err := CheckPrefix(strings.TrimSuffix(channel, "outbox")); err != nil {
		return "", err
	}
	return postgresListen + channel, nil
}

func (o *serverOutbox) AnyPending(ctx context.Context) (found bool, err error) {
	err = o.db.QueryRowContext(ctx, o.text(serverAnyPending)).Scan(&found)
	return found, err
}

func (o *serverOutbox) Oldest(ctx context.Context) (time.Time, error) {
	var age int64
	err := o.db.QueryRowContext(ctx, o.text(serverOldest)).Scan(&age)
	if err != nil || age < 0 {
		return time.Time{}, err
	}
	return since(age), nil
}

func (o *serverOutbox) Depth(ctx context.Context) (d Depth, err error) {
	err = o.db.QueryRowContext(ctx, o.text(serverDepth)).Scan(&d.Pending, &d.Held, &d.Failed)
	return d, err
}

func (o *serverOutbox) Orders(ctx context.Context) (n int64, err error) {
	err = o.db.QueryRowContext(ctx, o.text(operatorChanges)).Scan(&n)
	return n, err
}

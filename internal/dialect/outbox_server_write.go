package dialect

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	serverInsertHead = `INSERT INTO seambus_outbox (event_id, source, topic, type, schema_version, content_type, partition_key,
  aggregate_version, payload, metadata, shard) VALUES `
	serverInsertRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	serverInsertEnd = ` {skip duplicates}`
	serverInsertOne = serverInsertHead + serverInsertRow + serverInsertEnd

	serverAdopt = `UPDATE seambus_outbox SET shard = ?, source = ? WHERE seq = ? AND shard < 0`

	// The fence: while these rows are locked their ranges cannot be claimed, so what follows in the transaction is seen by
	// whoever claims them next, or does not happen.
	serverFence = `SELECT range_id FROM seambus_outbox_leases WHERE owner = ? AND token = ? ORDER BY range_id {share}`
	serverHeld  = ` AND shard >= 0 AND ({bits} >> (shard >> 6)) & 1 = 1 AND {ids}`
	serverMark  = `UPDATE seambus_outbox {by seq} SET state = 3, published_at = {now}, last_attempt_at = {now}, attempts = attempts + 1,
  error_class = '', last_error = ''{unblock} WHERE state IN (0, 1)` + serverHeld
	serverRemove = `{delete by seq} WHERE state IN (0, 1)` + serverHeld
	serverHold   = `UPDATE seambus_outbox {by seq} SET state = 1{block} WHERE state = 0` + serverHeld
	serverFail   = `UPDATE seambus_outbox SET state = ?, available_at = {later}, attempts = attempts + 1, last_attempt_at = {now},
  error_class = ?, last_error = ?{block}
WHERE seq = ? AND state IN (0, 1) AND shard >= 0 AND ({bits} >> (shard >> 6)) & 1 = 1`
)

// Bounds of one insert: PostgreSQL takes 65,535 parameters, and MariaDB 16 MiB in a packet unless it is told otherwise.
const (
	serverMaxRows  = 5000
	serverMaxBytes = 4 << 20
)

func (o *serverOutbox) Insert(ctx context.Context, x Execer, rows []Row) (n int64, err error) {
	for len(rows) > 0 {
		k, size := 0, 0
		for k < len(rows) && k < serverMaxRows && (k == 0 || size+len(rows[k].Payload) <= serverMaxBytes) {
			size += len(rows[k].Payload)
			k++
		}
		res, err := o.insert(ctx, x, rows[:k])
		if err != nil {
			return n, err
		}
		more, err := res.RowsAffected()
		if err != nil {
			return n, err
		}
		n, rows = n+more, rows[k:]
	}
	return n, nil
}

func (o *serverOutbox) insert(ctx context.Context, x Execer, rows []Row) (sql.Result, error) {
	if len(rows) == 1 {
		return x.ExecContext(ctx, o.text(serverInsertOne), serverArgs(rows)...)
	}
	return x.ExecContext(ctx, o.d.text(serverInsertRows(len(rows)), o.prefix), serverArgs(rows)...)
}

func serverInsertRows(n int) string {
	return serverInsertHead + strings.Repeat(serverInsertRow+", ", n-1) + serverInsertRow + serverInsertEnd
}

func serverArgs(rows []Row) []any {
	args := make([]any, 0, len(rows)*11)
	for i := range rows {
		r := &rows[i]
		args = append(args, r.ID, r.Source, r.Topic, r.Type, r.SchemaVersion, r.ContentType, r.Key, r.version(), r.payload(),
			r.Metadata, r.Shard)
	}
	return args
}

func (o *serverOutbox) tx(ctx context.Context, fn func(*sql.Tx) error) error {
	return inServerTx(ctx, o.db, fn)
}

func (o *serverOutbox) Adopt(ctx context.Context, rows []*Row) error {
	return o.tx(ctx, func(tx *sql.Tx) error {
		for _, r := range rows {
			if _, err := tx.ExecContext(ctx, o.text(serverAdopt), r.Shard, r.Source, r.Seq); err != nil {
				return err
			}
		}
		return nil
	})
}

// fenced runs fn in a transaction in which the ranges that f still covers cannot be claimed. It does nothing if there are none.
func (o *serverOutbox) fenced(ctx context.Context, f Fence, fn func(tx *sql.Tx, covered Mask) error) error {
	return o.tx(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, o.text(serverFence), f.Owner, f.Token)
		if err != nil {
			return err
		}
		var covered Mask
		for rows.Next() {
			var id int
			if err := rows.Scan(&id); err != nil {
				return errors.Join(err, rows.Close())
			}
			covered |= 1 << id
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || covered == 0 {
			return err
		}
		return fn(tx, covered)
	})
}

func (o *serverOutbox) change(ctx context.Context, f Fence, statement string, seqs []int64) (n int64, err error) {
	err = o.fenced(ctx, f, func(tx *sql.Tx, covered Mask) error {
		text, args := o.d.among(o.text(statement), seqs, int64(covered))
		res, err := tx.ExecContext(ctx, text, args...)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return n, err
}

func (o *serverOutbox) Mark(ctx context.Context, f Fence, seqs []int64, _ time.Time, remove bool) (int64, error) {
	if remove {
		return o.change(ctx, f, serverRemove, seqs)
	}
	return o.change(ctx, f, serverMark, seqs)
}

func (o *serverOutbox) Hold(ctx context.Context, f Fence, seqs []int64) error {
	_, err := o.change(ctx, f, serverHold, seqs)
	return err
}

func (o *serverOutbox) Fail(ctx context.Context, f Fence, failures []Failure, _ time.Time) error {
	failures = slices.SortedFunc(slices.Values(failures), func(a, b Failure) int { return int(a.Seq - b.Seq) })
	return o.fenced(ctx, f, func(tx *sql.Tx, covered Mask) error {
		for _, x := range failures {
			wait := max(time.Until(x.Retry), 0).Microseconds()
			_, err := tx.ExecContext(ctx, o.text(serverFail), int(x.State), wait, x.Class, x.Text, x.Seq, int64(covered))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// The leases are locked together and in one order, so that relays wait for each other and never deadlock.
const (
	serverLeases = `SELECT range_id, owner, token, CASE WHEN expires_at > {now} THEN 0 ELSE 1 END FROM seambus_outbox_leases
ORDER BY range_id FOR UPDATE`
	serverJoin    = `INSERT INTO seambus_outbox_relays (owner, expires_at) VALUES (?, {later}) {or renew}`
	serverBury    = `DELETE FROM seambus_outbox_relays WHERE expires_at <= {now}`
	serverRelays  = `SELECT owner FROM seambus_outbox_relays ORDER BY owner`
	serverExtend  = `UPDATE seambus_outbox_leases SET expires_at = {later} WHERE owner = ?`
	serverClaim   = `UPDATE seambus_outbox_leases SET owner = ?, token = ?, expires_at = {later} WHERE range_id = ?`
	serverRelease = `UPDATE seambus_outbox_leases SET owner = '', expires_at = NULL WHERE owner = ? AND range_id = ?`
	serverLeave   = `UPDATE seambus_outbox_leases SET owner = '', expires_at = NULL WHERE owner = ?`
	serverQuit    = `DELETE FROM seambus_outbox_relays WHERE owner = ?`
)

func (o *serverOutbox) Renew(ctx context.Context, owner string, _ time.Time, ttl time.Duration) (c Claim, err error) {
	until := ttl.Microseconds()
	err = o.tx(ctx, func(tx *sql.Tx) error {
		leases, err := o.lockLeases(ctx, tx)
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(serverJoin), owner, until)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(serverBury))
		}
		if err == nil {
			c, err = o.count(ctx, tx, owner)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(serverExtend), until, owner)
		}
		if err == nil {
			err = o.claim(ctx, tx, owner, until, leases, &c)
		}
		return err
	})
	return c, err
}

type lease struct {
	owner   string
	token   int64
	expired bool
}

func (o *serverOutbox) lockLeases(ctx context.Context, tx *sql.Tx) (map[int]lease, error) {
	rows, err := tx.QueryContext(ctx, o.text(serverLeases))
	if err != nil {
		return nil, err
	}
	leases := make(map[int]lease, Ranges)
	for rows.Next() {
		var id int
		var l lease
		if err := rows.Scan(&id, &l.owner, &l.token, &l.expired); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		leases[id] = l
	}
	return leases, errors.Join(rows.Err(), rows.Close())
}

// count returns how many relays live and owner's share.
func (o *serverOutbox) count(ctx context.Context, tx *sql.Tx, owner string) (c Claim, err error) {
	rows, err := tx.QueryContext(ctx, o.text(serverRelays))
	if err != nil {
		return c, err
	}
	rank := 0
	for rows.Next() {
		var other string
		if err := rows.Scan(&other); err != nil {
			return c, errors.Join(err, rows.Close())
		}
		if c.Relays++; other < owner {
			rank++
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return c, err
	}
	c.Share = share(max(c.Relays, 1), rank)
	return c, nil
}

// claim takes free ranges up to the share. Its own it keeps, expired or not: nobody took them.
func (o *serverOutbox) claim(ctx context.Context, tx *sql.Tx, owner string, until int64, leases map[int]lease, c *Claim) error {
	c.Tokens = make(map[int]int64, Ranges)
	next := int64(0)
	for id, l := range leases {
		next = max(next, l.token+1)
		if l.owner == owner {
			c.Tokens[id] = l.token
		}
	}
	for _, id := range slices.Sorted(maps.Keys(leases)) {
		l := leases[id]
		if len(c.Tokens) >= c.Share || l.owner == owner || !l.expired {
			continue
		}
		if _, err := tx.ExecContext(ctx, o.text(serverClaim), owner, next, until, id); err != nil {
			return err
		}
		c.Tokens[id] = next
	}
	return nil
}

func (o *serverOutbox) Release(ctx context.Context, owner string, ranges []int) error {
	return o.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range slices.Sorted(slices.Values(ranges)) {
			if _, err := tx.ExecContext(ctx, o.text(serverRelease), owner, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (o *serverOutbox) Leave(ctx context.Context, owner string) error {
	return o.tx(ctx, func(tx *sql.Tx) error {
		_, err := o.lockLeases(ctx, tx)
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(serverLeave), owner)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(serverQuit), owner)
		}
		return err
	})
}

const (
	serverSweepLock = `SELECT name FROM seambus_outbox_locks WHERE name = 'sweep' FOR UPDATE SKIP LOCKED`
	serverWindow    = `SELECT coalesce(max(seq), 0), count(*), max(CASE WHEN state >= 3 AND published_at >= {ago} THEN {age published_at} END),
  coalesce(sum(CASE WHEN state >= 3 AND published_at < {ago} THEN 1 ELSE 0 END), 0)
FROM (SELECT seq, state, published_at FROM seambus_outbox {by seq} WHERE seq > ? ORDER BY seq LIMIT ?) AS part`
	serverSweep = `{delete by seq} WHERE seq > ? AND seq <= ? AND state >= 3 AND published_at < {ago}`
)

// Sweep reads before it locks: most windows have nothing to delete. Whoever finds another sweeper at work leaves it to that one.
func (o *serverOutbox) Sweep(ctx context.Context, after int64, before time.Time, limit int) (s Swept, err error) {
	age := max(time.Since(before), 0).Microseconds()
	var count, old int64
	var young sql.NullInt64
	err = o.db.QueryRowContext(ctx, o.text(serverWindow), age, age, after, limit).Scan(&s.Next, &count, &young, &old)
	if err != nil || count == 0 {
		return s, err
	}
	s.More = count == int64(limit)
	if young.Valid {
		s.Young = since(young.Int64)
	}
	if old == 0 {
		return s, nil
	}
	err = o.tx(ctx, func(tx *sql.Tx) error {
		var name string
		err := tx.QueryRowContext(ctx, o.text(serverSweepLock)).Scan(&name)
		if errors.Is(err, sql.ErrNoRows) {
			s = Swept{}
			return nil
		}
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, o.text(serverSweep), after, s.Next, age)
		if err == nil {
			s.Deleted, err = res.RowsAffected()
		}
		return err
	})
	return s, err
}

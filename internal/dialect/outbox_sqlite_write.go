package dialect

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// inTx runs fn in a transaction. fn's first statement must write: a transaction that reads first is refused when another
// writer comes between.
func (o *sqliteOutbox) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (o *sqliteOutbox) Adopt(ctx context.Context, rows []*Row) error {
	return o.inTx(ctx, func(tx *sql.Tx) error {
		for _, r := range rows {
			if _, err := tx.ExecContext(ctx, o.text(sqliteAdopt), r.Shard, Micros(r.Created), r.Source, r.Seq); err != nil {
				return err
			}
		}
		return nil
	})
}

func (o *sqliteOutbox) Mark(ctx context.Context, f Fence, seqs []int64, now time.Time, remove bool) (n int64, err error) {
	args := []any{Micros(now), Micros(now), list(seqs), f.Owner, f.Token}
	if !remove {
		res, err := o.mark.ExecContext(ctx, args...)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.StmtContext(ctx, o.mark).ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		if n, err = res.RowsAffected(); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, o.text(sqliteRemove), list(seqs))
		return err
	})
	return n, err
}

func (o *sqliteOutbox) Hold(ctx context.Context, f Fence, seqs []int64) error {
	_, err := o.db.ExecContext(ctx, o.text(sqliteHold), list(seqs), f.Owner, f.Token)
	return err
}

func (o *sqliteOutbox) Fail(ctx context.Context, f Fence, failures []Failure, now time.Time) error {
	return o.inTx(ctx, func(tx *sql.Tx) error {
		stmt, err := tx.PrepareContext(ctx, o.text(sqliteFail))
		if err != nil {
			return err
		}
		for _, x := range failures {
			_, err := stmt.ExecContext(ctx, x.State, Micros(x.Retry), Micros(now), x.Class, x.Text, x.Seq, f.Owner, f.Token)
			if err != nil {
				return errors.Join(err, stmt.Close())
			}
		}
		return stmt.Close()
	})
}

const (
	sqliteJoin = `INSERT INTO seambus_outbox_relays (owner, expires_at) VALUES (?, ?)
ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at`
	sqliteBury   = `DELETE FROM seambus_outbox_relays WHERE expires_at <= ?`
	sqliteRelays = `SELECT sum(expires_at > ?1), coalesce(sum(owner < ?2 AND expires_at > ?1), 0), sum(expires_at <= ?1)
FROM seambus_outbox_relays`
	sqliteExtend = `UPDATE seambus_outbox_leases SET expires_at = ? WHERE owner = ?`
	sqliteMine   = `SELECT range_id, token FROM seambus_outbox_leases WHERE owner = ?`
	sqliteClaim  = `UPDATE seambus_outbox_leases SET owner = ?, expires_at = ?,
  token = (SELECT max(token) + 1 FROM seambus_outbox_leases)
WHERE range_id IN (SELECT range_id FROM seambus_outbox_leases WHERE owner <> ? AND expires_at <= ? ORDER BY range_id LIMIT ?)`
	sqliteRelease = `UPDATE seambus_outbox_leases SET owner = '', expires_at = 0 WHERE owner = ? AND range_id = ?`
	sqliteLeave   = `UPDATE seambus_outbox_leases SET owner = '', expires_at = 0 WHERE owner = ?`
	sqliteQuit    = `DELETE FROM seambus_outbox_relays WHERE owner = ?`
)

// absence is how long a relay whose time ran out is remembered: three times the longest that an idle one sleeps.
const absence = 15 * time.Minute

func (o *sqliteOutbox) Renew(ctx context.Context, owner string, now time.Time, ttl time.Duration) (c Claim, err error) {
	at, until := Micros(now), Micros(now.Add(ttl))
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		exec := func(statement string, args ...any) {
			if err == nil {
				_, err = tx.ExecContext(ctx, o.text(statement), args...)
			}
		}
		exec(sqliteJoin, owner, until)
		exec(sqliteBury, Micros(now.Add(-absence)))
		exec(sqliteExtend, until, owner)
		if err != nil {
			return err
		}
		var rank int
		if err = tx.QueryRowContext(ctx, o.text(sqliteRelays), at, owner).Scan(&c.Relays, &rank, &c.Absent); err != nil {
			return err
		}
		c.Share = share(c.Relays, rank)
		if c.Tokens, err = o.mine(ctx, tx, owner); err != nil || len(c.Tokens) >= c.Share {
			return err
		}
		exec(sqliteClaim, owner, until, owner, at, c.Share-len(c.Tokens))
		if err == nil {
			c.Tokens, err = o.mine(ctx, tx, owner)
		}
		return err
	})
	return c, err
}

// share spreads the ranges as evenly as they go; the relays that sort first take what is left over.
func share(relays, rank int) int {
	n := Ranges / relays
	if rank < Ranges%relays {
		n++
	}
	return n
}

func (o *sqliteOutbox) mine(ctx context.Context, tx *sql.Tx, owner string) (map[int]int64, error) {
	rows, err := tx.QueryContext(ctx, o.text(sqliteMine), owner)
	if err != nil {
		return nil, err
	}
	tokens := make(map[int]int64, Ranges)
	for rows.Next() {
		var id int
		var token int64
		if err := rows.Scan(&id, &token); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		tokens[id] = token
	}
	return tokens, errors.Join(rows.Err(), rows.Close())
}

func (o *sqliteOutbox) Release(ctx context.Context, owner string, ranges []int) error {
	return o.inTx(ctx, func(tx *sql.Tx) error {
		for _, id := range slices.Sorted(slices.Values(ranges)) {
			if _, err := tx.ExecContext(ctx, o.text(sqliteRelease), owner, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (o *sqliteOutbox) Leave(ctx context.Context, owner string) error {
	return o.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, o.text(sqliteLeave), owner)
		if err == nil {
			_, err = tx.ExecContext(ctx, o.text(sqliteQuit), owner)
		}
		return err
	})
}

// Sweep reads before it writes, each in its own transaction: most windows have nothing to delete, and the deletion's own
// conditions hold whatever happened between the two.
func (o *sqliteOutbox) Sweep(ctx context.Context, after int64, before time.Time, limit int) (s Swept, err error) {
	var young, count int64
	err = o.db.QueryRowContext(ctx, o.text(sqliteWindow), after, limit, Micros(before)).Scan(&s.Next, &count, &young)
	if err != nil || count == 0 {
		return s, err
	}
	s.Young, s.More = Time(young), count == int64(limit)
	res, err := o.db.ExecContext(ctx, o.text(sqliteSweep), after, s.Next, Micros(before))
	if err != nil {
		return s, err
	}
	s.Deleted, err = res.RowsAffected()
	return s, err
}

func (o *sqliteOutbox) Oldest(ctx context.Context) (time.Time, error) {
	var t int64
	err := o.db.QueryRowContext(ctx, o.text(sqliteOldest)).Scan(&t)
	return Time(t), err
}

func (o *sqliteOutbox) Depth(ctx context.Context) (d Depth, err error) {
	err = o.db.QueryRowContext(ctx, o.text(sqliteDepth)).Scan(&d.Pending, &d.Held, &d.Failed)
	return d, err
}

// Channel is empty: there is no LISTEN.
func (o *sqliteOutbox) Channel() string { return "" }

// Notify does nothing.
func (o *sqliteOutbox) Notify(context.Context) error { return nil }

// Top is zero: SQLite leaves no dead entries in an index.
func (o *sqliteOutbox) Top(context.Context) (int64, error) { return 0, nil }

// Orders reads a row that is in the cache.
func (o *sqliteOutbox) Orders(ctx context.Context) (n int64, err error) {
	err = o.db.QueryRowContext(ctx, o.text(operatorChanges)).Scan(&n)
	return n, err
}

// Done is empty: there is one writer at a time.
func (o *sqliteOutbox) Done(context.Context, int64, int64, Mask) ([]int64, error) { return nil, nil }

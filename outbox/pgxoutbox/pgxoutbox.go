// Package pgxoutbox joins package outbox to pgx: events can be recorded in a pgx.Tx, and a relay can hear by LISTEN of what
// other processes commit. It is a package of its own so that programs on other databases do not link pgx.
package pgxoutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/outbox"
)

// Execer is what pgx runs a statement on: a pgx.Tx, a *pgx.Conn, a *pgxpool.Pool.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Tx makes of a pgx transaction what Record writes in:
//
//	err := box.Record(ctx, pgxoutbox.Tx(tx), Orders, OrderPlaced{OrderID: 7})
//	...
//	err = tx.Commit(ctx)
//	box.Committed()
//
// The Outbox itself is made with a *sql.DB on the same database (stdlib.OpenDBFromPool shares the pool).
func Tx(tx Execer) outbox.Execer { return execer{tx} }

type execer struct{ tx Execer }

func (x execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := x.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

// InTx runs fn in a transaction of pool, commits it, and wakes the relay. An error or a panic of fn rolls back; the error
// is returned as it is.
func InTx(ctx context.Context, box *outbox.Outbox, pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, fn func(tx pgx.Tx) error,
) error {
	if err := pgx.BeginFunc(ctx, pool, fn); err != nil {
		return err
	}
	box.Committed()
	return nil
}

var errNotPgx = errors.New("the database is not opened with pgx's stdlib driver")

// Listen makes the relay hear at once of rows that other processes commit by InTx or Committed. It takes one connection
// of db, whose driver must be pgx's, for as long as the relay runs.
func Listen(db *sql.DB) outbox.Option {
	return outbox.WithListener(func(ctx context.Context, channel string, wake func()) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return fmt.Errorf("pgxoutbox: listen: %w", err)
		}
		err = conn.Raw(func(raw any) error {
			c, ok := raw.(*stdlib.Conn)
			if !ok {
				return fmt.Errorf("pgxoutbox: driver connection is %T: %w", raw, errNotPgx)
			}
			err := listen(ctx, c.Conn(), channel, wake)
			return errors.Join(driver.ErrBadConn, err) // it listens still: not for the pool
		})
		return errors.Join(err, ignoreDone(conn.Close()))
	})
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}

func listen(ctx context.Context, conn *pgx.Conn, channel string, wake func()) error {
	query, err := dialect.ListenQuery(channel)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, query); err != nil {
		return err
	}
	wake() // for what was committed before the connection listened
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		wake()
	}
}

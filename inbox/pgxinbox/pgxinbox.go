// Package pgxinbox gives handlers their inbox transaction as pgx knows it: for CopyFrom, batches, and code that takes a pgx.Tx.
// It is a package of its own so that programs on other databases do not link pgx.
package pgxinbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seambus/seambus/inbox"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrNoTx holds where no inbox transaction over pgx's stdlib driver is under way.
	ErrNoTx = errors.New("no inbox transaction on a database that was opened with pgx's stdlib driver")
	// ErrNotYours holds where a handler tries to end the inbox's transaction.
	ErrNotYours = errors.New("the transaction is the inbox's to end: return nil or an error instead")
)

// Tx returns the transaction in which ctx's handler runs, the one that inbox.Tx returns too: whatever is done on either commits or
// rolls back together with the event's id. The two must not be used at the same time, and neither once the handler has
// returned. Commit and Rollback are refused ([ErrNotYours]); Begin makes a savepoint. [ErrNoTx] holds outside a handler and
// on other drivers.
func Tx(ctx context.Context) (pgx.Tx, error) {
	conn := inbox.Conn(ctx)
	if conn == nil {
		return nil, fmt.Errorf("pgxinbox: %w", ErrNoTx)
	}
	var tx pgx.Tx
	err := conn.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("%w: it is a %T", ErrNoTx, raw)
		}
		tx = handlersTx{c.Conn()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pgxinbox: %w", err)
	}
	return tx, nil
}

// handlersTx is a connection in the middle of a transaction that somebody else ends.
type handlersTx struct{ conn *pgx.Conn }

func (t handlersTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if _, err := t.conn.Exec(ctx, "SAVEPOINT pgxinbox"); err != nil {
		return nil, err
	}
	return &savepoint{handlersTx: t}, nil
}

func (handlersTx) Commit(context.Context) error {
	return fmt.Errorf("pgxinbox: commit: %w", ErrNotYours)
}
func (handlersTx) Rollback(context.Context) error {
	return fmt.Errorf("pgxinbox: rollback: %w", ErrNotYours)
}

func (t handlersTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	return t.conn.CopyFrom(ctx, table, columns, src)
}

func (t handlersTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.conn.SendBatch(ctx, b)
}

func (handlersTx) LargeObjects() pgx.LargeObjects {
	panic("pgxinbox: large objects need a transaction that pgx began itself")
}

func (t handlersTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	return t.conn.Prepare(ctx, name, query)
}

func (t handlersTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return t.conn.Exec(ctx, query, args...)
}

func (t handlersTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	return t.conn.Query(ctx, query, args...)
}

func (t handlersTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.conn.QueryRow(ctx, query, args...)
}

func (t handlersTx) Conn() *pgx.Conn { return t.conn }

// savepoint is a part of the transaction that can be undone by itself.
type savepoint struct {
	handlersTx
	over bool
}

// Commit keeps what was done since the savepoint, as far as the transaction is kept.
func (s *savepoint) Commit(ctx context.Context) error {
	return s.end(ctx, "RELEASE SAVEPOINT pgxinbox")
}

// Rollback undoes it. After Commit it is pgx.ErrTxClosed and harmless, as that of pgx is.
func (s *savepoint) Rollback(ctx context.Context) error {
	return s.end(ctx, "ROLLBACK TO SAVEPOINT pgxinbox; RELEASE SAVEPOINT pgxinbox")
}

func (s *savepoint) end(ctx context.Context, statement string) error {
	if s.over {
		return pgx.ErrTxClosed
	}
	s.over = true
	_, err := s.conn.Exec(ctx, statement)
	return err
}

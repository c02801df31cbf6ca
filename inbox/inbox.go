package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seambus/seambus/internal/dialect"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrNested holds where a transaction of an inbox was asked for inside one: the middleware is in the chain twice, or a
	// dead letter was put by a handler.
	ErrNested = errors.New("already inside an inbox transaction")
	// ErrOrigin holds for a message that does not say what it was delivered to: it has no delivery, and neither a topic nor a
	// handler's name in its context.
	ErrOrigin = errors.New("neither a delivery nor a router says where the message is from")
)

// Inbox remembers what was handled, in the tables seambus_inbox and seambus_versions of one database, and keeps what was
// given up, in seambus_parked. It is safe for concurrent use, and any number of inboxes, in any number of processes, may
// share a database. It holds no goroutine; the database stays the caller's to close.
type Inbox struct {
	db     *sql.DB
	config config
	sql    *dialect.Inbox
	stmts  statements
	reach  bool // through the connection, to the driver

	handled, duplicates, stale, held atomic.Int64

	mu    sync.Mutex
	wakes map[chan struct{}]struct{} // of the replays that run
}

// statements are what is run per event, prepared once per connection.
type statements struct{ claim, claimAndAdvance, claimAlways, advance *sql.Stmt }

// Stats counts what an [Inbox] did since it was made. Failed attempts are in none of the counts.
type Stats struct {
	// Handled counts events whose handler succeeded and whose transaction was committed.
	Handled int64
	// Duplicates counts events that were acknowledged because their id was handled before.
	Duplicates int64
	// Stale counts events that were acknowledged because a version not older than theirs was applied before.
	Stale int64
	// Held counts events that were parked behind a dead letter of their key.
	Held int64
}

// New returns an inbox on db, whose driver decides the dialect. On SQLite it creates its tables; elsewhere `seambus
// migrate` does. On MySQL and MariaDB tx_isolation='READ-COMMITTED' (MySQL: transaction_isolation) in the data source name spares
// a round trip an event. Errors name every invalid option.
func New(db *sql.DB, opts ...Option) (*Inbox, error) {
	cfg, err := newConfig(opts)
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	in := &Inbox{db: db, config: cfg, wakes: make(map[chan struct{}]struct{})}
	if err := in.open(context.Background()); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return in, nil
}

func (in *Inbox) open(ctx context.Context) (err error) {
	d, err := dialect.For(in.db)
	if err != nil {
		return err
	}
	if d.CreatesTables() || in.config.migrate {
		if err := d.Migrate(ctx, in.db, dialect.SetInbox); err != nil {
			return err
		}
	}
	if err := d.Check(ctx, in.db, dialect.SetInbox); err != nil {
		return err
	}
	in.sql, in.reach = d.Inbox(), d.Name() == dialect.Postgres
	if d.ReadsCommitted(ctx, in.db) {
		in.sql.Isolation = sql.LevelDefault
	}
	for text, stmt := range map[string]**sql.Stmt{
		in.sql.Claim: &in.stmts.claim, in.sql.ClaimAndAdvance: &in.stmts.claimAndAdvance, in.sql.ClaimAlways: &in.stmts.claimAlways, in.sql.Advance: &in.stmts.advance,
	} {
		if text == "" {
			continue
		}
		if *stmt, err = in.db.PrepareContext(ctx, text); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	return nil
}

// Stats returns the counts so far.
func (in *Inbox) Stats() Stats {
	return Stats{
		Handled: in.handled.Load(), Duplicates: in.duplicates.Load(), Stale: in.stale.Load(), Held: in.held.Load(),
	}
}

type scopeKey struct{}

// scope is what a handler finds in its context.
type scope struct {
	tx   *sql.Tx
	conn *sql.Conn // on PostgreSQL
}

// Tx returns the transaction in which ctx's handler runs, for the handler's own statements and for Record, or nil
// outside of one. It is the inbox's to end: a handler that commits it or rolls it back has its event delivered again. It
// must not be used once the handler has returned. A statement on the database itself instead of Tx is outside the
// transaction, and over a pool of one connection, or against SQLite's one writer, waits for it in vain.
func Tx(ctx context.Context) *sql.Tx {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s.tx
	}
	return nil
}

// Conn returns the connection that [Tx] runs on, for packages that reach through it to the driver, as pgxinbox does: on
// PostgreSQL, and nil elsewhere and outside a handler. It must be neither closed nor used once the handler has returned.
func Conn(ctx context.Context) *sql.Conn {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s.conn
	}
	return nil
}

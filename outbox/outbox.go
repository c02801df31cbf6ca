package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/transport"
)

// ErrRunning holds for a second Run of one Outbox. Relays in parallel need an Outbox each.
var ErrRunning = errors.New("the relay is running already")

// Outbox records events in the caller's transactions and relays them to one transport. It lives as long as its database
// handle, which it does not close, and is safe for concurrent use. Goroutines run only inside [Outbox.Run], but for a brief
// one after [Outbox.Committed] on PostgreSQL.
type Outbox struct {
	cfg       config
	db        *sql.DB
	store     dialect.Outbox
	transport transport.Transport
	caps      transport.Capabilities
	shared    bool // the database is a server's

	wake    chan struct{} // one pending wake-up is enough: the relay looks at everything
	burst   atomic.Int64  // look often until then, in microseconds
	running atomic.Bool
	open    sync.Map // transactions that InTx will commit
	count   counters

	relays     atomic.Int64 // that live on the database, as far as this one's relay knows
	announcing atomic.Bool
}

// New returns the outbox in db whose relay publishes to t. All invalid options are reported together. With SQLite it
// creates its tables; with any other database they must be there, or see [WithMigrate].
func New(db *sql.DB, t transport.Transport, opts ...Option) (*Outbox, error) {
	cfg := defaults()
	for _, o := range opts {
		o.apply(&cfg)
	}
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("database is nil"))
	}
	if t == nil {
		errs = append(errs, errors.New("transport is nil"))
	}
	if err := errors.Join(append(errs, cfg.check())...); err != nil {
		return nil, fmt.Errorf("outbox: new: %w", err)
	}
	store, shared, err := openStore(db, &cfg)
	if err != nil {
		return nil, fmt.Errorf("outbox: new: %w", err)
	}
	if shared && cfg.poll == 0 {
		cfg.poll = serverPoll
	}
	return &Outbox{
		cfg: cfg, db: db, store: store, transport: t, caps: t.Capabilities(), shared: shared,
		wake: make(chan struct{}, 1),
	}, nil
}

// serverPoll is how often an idle relay looks at a database server, where other processes record too.
const serverPoll = 200 * time.Millisecond

// openTimeout bounds what New asks of the database.
const openTimeout = 30 * time.Second

func openStore(db *sql.DB, cfg *config) (store dialect.Outbox, shared bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	d, err := dialect.For(db)
	if err != nil {
		return nil, false, err
	}
	if d.CreatesTables() || cfg.migrate {
		if err := d.MigrateAs(ctx, db, dialect.SetOutbox, cfg.prefix); err != nil {
			return nil, false, err
		}
	}
	store, err = dialect.OpenOutbox(ctx, db, cfg.prefix)
	return store, d.Shared(), err
}

// Name returns the name given by [WithName].
func (o *Outbox) Name() string { return o.cfg.name }

// InTx runs fn in a transaction, commits it, and wakes the relay. An error or a panic of fn rolls back; the error is
// returned as it is. fn must not commit or roll back itself.
func (o *Outbox) InTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("outbox: begin: %w", err)
	}
	o.open.Store(tx, struct{}{})
	done := false
	defer func() {
		o.open.Delete(tx)
		if !done { // fn panicked
			_ = tx.Rollback()
		}
	}()
	err = fn(tx)
	done = true
	if err != nil {
		if rbErr := tx.Rollback(); rbErr != nil && !errors.Is(rbErr, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("outbox: rollback: %w", rbErr))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("outbox: commit: %w", err)
	}
	if err := crash.At(ctx, crash.Committed); err != nil {
		return err
	}
	o.Committed()
	return nil
}

// Committed wakes the relay: rows were committed. It never blocks. Without it, and outside InTx, a recorded row is looked for
// every 5 milliseconds for a second, and after that whenever the relay next wakes. On PostgreSQL it also sends a NOTIFY, a
// moment later and on a connection of its own, unless the only relay is this Outbox's: see [WithListener].
func (o *Outbox) Committed() {
	o.rouse()
	o.announce()
}

// rouse wakes the relay of this Outbox.
func (o *Outbox) rouse() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

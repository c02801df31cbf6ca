package bustest

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	_ "modernc.org/sqlite" // the driver of the kit's databases

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// Kit is a bus for one test, with all that belongs to it. It ends with the test. Its methods may be called concurrently,
// but those that wait or may fail the test only from the test's goroutine; none of those that ask a database may be called
// by a handler, whose transaction has the only connection.
type Kit struct {
	tb     testing.TB
	cfg    config
	bubble bool
	broker *memory.Transport
	outer  *wire
	db     *sql.DB
	box    *outbox.Outbox
	in     *inbox.Inbox
	ctx    context.Context // the test's own: a process of its own that cannot stay dead

	faults  faults
	seen    journal
	changed chan struct{} // something happened since Settle looked
	moves   atomic.Int64  // how much happened

	mu        sync.Mutex
	bus       *bus.Bus
	used      bool // the bus has run
	databases []database
	lives     map[*life]struct{}
	running   sync.WaitGroup
	processes int
	broken    []error // processes that ended by themselves
	stopping  bool
}

// database is one whose outbox the kit watches.
type database struct {
	db    *sql.DB
	store dialect.Outbox
}

// New returns a kit for tb's test. Nothing runs before [Kit.Start]. It fails the test if an option is wrong. Inside a
// testing/synctest bubble it must be called by the test's goroutine.
func New(tb testing.TB, opts ...Option) *Kit {
	tb.Helper()
	k := &Kit{tb: tb, bubble: inBubble(), changed: make(chan struct{}, 1), lives: make(map[*life]struct{})}
	for _, o := range opts {
		o.apply(&k.cfg)
	}
	if k.cfg.patience <= 0 {
		k.cfg.patience = realPatience
		if k.bubble {
			k.cfg.patience = bubblePatience
		}
	}
	k.ctx = crash.With(context.Background(), k.hook(nil))
	if !k.bubble {
		k.cfg.transport = append([]memory.Option{memory.WithLease(realLease)}, k.cfg.transport...)
		k.cfg.outbox = append([]outbox.Option{outbox.WithLeaseTTL(realLease)}, k.cfg.outbox...)
	}
	k.broker = memory.New(k.cfg.transport...)
	k.outer = &wire{Transport: k.broker, kit: k}
	tb.Cleanup(func() {
		if err := k.broker.Close(); err != nil {
			tb.Errorf("bustest: close the transport: %v", err)
		}
	})
	k.db = k.NewDB()
	if err := k.open(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(k.Stop)
	return k
}

// inBubble reports whether the caller is in a synctest bubble, for which there is no question to ask.
func inBubble() (in bool) {
	defer func() { in = recover() == nil }()
	synctest.Wait()
	return true
}

func (k *Kit) open() (err error) {
	k.box, err = outbox.New(k.db, k.outer, append([]outbox.Option{outbox.WithRetention(retention)}, k.cfg.outbox...)...)
	if err != nil {
		return err
	}
	if k.in, err = inbox.New(k.db); err != nil {
		return err
	}
	opts := append(k.BusOptions(), bus.WithOutbox(k.box), bus.WithDrainTimeout(drain))
	if !k.cfg.noInbox {
		opts = append(opts, bus.WithInbox(k.in))
	}
	k.bus, err = bus.New(k.outer, append(opts, k.cfg.bus...)...)
	return err
}

// NewDB returns one more empty SQLite database in memory, with the tables of outbox and inbox, whose outbox the kit watches
// as it does its own. It has one connection and ends with the test.
func (k *Kit) NewDB() *sql.DB {
	k.tb.Helper()
	name := "file:/" + event.NewID() + "?vfs=memdb&_pragma=busy_timeout(10000)&_txlock=immediate"
	db, err := sql.Open("sqlite", name)
	if err != nil {
		k.tb.Fatalf("bustest: open a database: %v", err)
	}
	db.SetMaxOpenConns(1)
	keep, err := sql.Open("sqlite", name) // the database lives as long as one connection does
	if err == nil {
		err = errors.Join(keep.PingContext(k.ctx), migrate(db))
	}
	if err != nil {
		k.tb.Fatalf("bustest: open a database: %v", err)
	}
	k.tb.Cleanup(func() {
		if err := errors.Join(db.Close(), keep.Close()); err != nil {
			k.tb.Errorf("bustest: close a database: %v", err)
		}
	})
	k.Watch(db)
	return db
}

func migrate(db *sql.DB) error {
	d, err := dialect.For(db)
	if err != nil {
		return err
	}
	ctx := context.Background()
	return errors.Join(d.Migrate(ctx, db, dialect.SetOutbox), d.Migrate(ctx, db, dialect.SetInbox))
}

// Watch makes the outbox in db, an SQLite database of the test's own that has its tables already, one that [Kit.Settle]
// waits for and [Kit.Recorded] lists.
func (k *Kit) Watch(db *sql.DB) {
	k.tb.Helper()
	store, err := dialect.OpenOutbox(context.Background(), db, dialect.DefaultPrefix)
	if err != nil {
		k.tb.Fatalf("bustest: watch a database: %v", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.databases = append(k.databases, database{db, store})
}

// Bus returns the kit's bus, on which handlers are registered before [Kit.Start].
func (k *Kit) Bus() *bus.Bus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bus
}

// BusOptions returns what makes a bus that the code under test makes itself visible to the kit's lists and open to
// [Kit.FailAttempt]. The kit's own bus has them.
func (k *Kit) BusOptions() []bus.Option {
	return []bus.Option{bus.WithMiddleware(k.watchAttempt), bus.WithInnerMiddleware(k.watchHandler)}
}

// Transport returns the memory transport as the kit watches it, for a bus or an outbox that the code under test makes itself.
func (k *Kit) Transport() transport.Transport { return k.outer }

// DB returns the kit's SQLite database in memory, which holds its outbox and inbox and has room for the test's tables. It
// has one connection: a handler must use its transaction.
func (k *Kit) DB() *sql.DB { return k.db }

// Outbox returns the outbox in [Kit.DB], whose relay the kit's bus runs.
func (k *Kit) Outbox() *outbox.Outbox { return k.box }

// Inbox returns the inbox in [Kit.DB].
func (k *Kit) Inbox() *inbox.Inbox { return k.in }

// Record records events in the kit's outbox in a transaction of their own, and fails the test if it cannot. A crash on the
// way ([Kit.CrashAt]) does not stop it: it goes on as a caller does who looks whether its transaction was committed.
func (k *Kit) Record(topic *event.Topic, events ...event.Event) {
	k.tb.Helper()
	record := func(tx *sql.Tx) error { return k.box.Record(k.ctx, tx, topic, events...) }
	err := k.box.InTx(k.ctx, record)
	if errors.Is(err, errRecorded) {
		err = k.box.InTx(k.ctx, record)
	}
	if err != nil && !errors.Is(err, errDied) {
		k.tb.Fatalf("bustest: %v", err)
	}
}

// Publish publishes events without the outbox, and fails the test if it cannot.
func (k *Kit) Publish(topic *event.Topic, events ...event.Event) {
	k.tb.Helper()
	if err := k.Bus().Publish(k.ctx, topic, events...); err != nil {
		k.tb.Fatalf("bustest: %v", err)
	}
}

// Do calls fn, the code under test that records by itself, and fails the test if it returns an error. If an injected crash
// stopped it, it is called again, as by a client that got no answer: whether its transaction was committed it cannot know,
// so that the events need ids of their own ([event.Identified]). The context is how a crash finds it.
func (k *Kit) Do(fn func(ctx context.Context) error) {
	k.tb.Helper()
	err := fn(k.ctx)
	if errors.Is(err, errDied) {
		err = fn(k.ctx)
	}
	if err != nil {
		k.tb.Fatalf("bustest: %v", err)
	}
}

// moved says that something happened.
func (k *Kit) moved() {
	k.moves.Add(1)
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

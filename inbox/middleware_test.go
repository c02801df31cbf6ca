package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/txhook"
	"github.com/seambus/seambus/transport"
)

var errBoom = errors.New("boom")

func TestDuplicateIsAcknowledgedWithoutHandler(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	for range 3 {
		if err := b.handle(deliver(event.Envelope{ID: "e1", Source: "shop"}), apply); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.effects(t); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	wantStats(t, b.in, inbox.Stats{Handled: 1, Duplicates: 2})
}

func TestIDsAreKeptApartByGroupAndSource(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	for _, g := range []string{"fulfillment", "billing"} {
		for _, source := range []string{"", "shop", "app"} {
			msg := deliver(event.Envelope{ID: "e1", Source: source})
			if _, err := b.in.Middleware(g)(apply)(msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantStats(t, b.in, inbox.Stats{Handled: 6})
}

func TestFailedAttemptsLeaveNothingSeen(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	calls := 0
	h := func(msg *message.Message) ([]*message.Message, error) {
		calls++
		if _, err := apply(msg); err != nil {
			return nil, err
		}
		if calls < 3 {
			return []*message.Message{msg.Copy()}, errBoom
		}
		return nil, nil
	}
	for i := range 4 { // the fourth is a redelivery after the success
		out, err := b.in.Middleware(group)(h)(deliver(versioned("e1", "k", 7)))
		if failed := i < 2; errors.Is(err, errBoom) != failed || len(out) != 0 {
			t.Fatalf("delivery %d: %v, %d outputs", i+1, err, len(out))
		}
	}
	if calls != 3 || b.effects(t) != 1 {
		t.Errorf("%d calls, %d effects, want 3 and 1", calls, b.effects(t))
	}
	wantStats(t, b.in, inbox.Stats{Handled: 1, Duplicates: 1})
}

// The copy that comes second must wait for the first one's outcome: over a pool of several connections in the database,
// over a pool of one for the connection.
func TestConcurrentCopiesHaveOneEffect(t *testing.T) {
	t.Parallel()
	for name, conns := range map[string]int{"one connection": 1, "four connections": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, conns)
			var calls atomic.Int32
			entered, release := make(chan struct{}), make(chan struct{})
			h := func(msg *message.Message) ([]*message.Message, error) {
				calls.Add(1)
				close(entered)
				<-release
				return apply(msg)
			}
			var wg sync.WaitGroup
			errs := make([]error, 4)
			start := func(i int) { wg.Go(func() { errs[i] = b.handle(deliver(versioned("e1", "k", 1)), h) }) }
			start(0)
			<-entered
			for i := 1; i < len(errs); i++ {
				start(i)
			}
			close(release)
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if calls.Load() != 1 || b.effects(t) != 1 {
				t.Errorf("%d calls, %d effects, want 1 and 1", calls.Load(), b.effects(t))
			}
			wantStats(t, b.in, inbox.Stats{Handled: 1, Duplicates: 3})
		})
	}
}

func TestSecondCopyIsHandledAfterFirstFailed(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 2)
	entered, release := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- b.handle(deliver(event.Envelope{ID: "e1"}), func(*message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, errBoom
		})
	}()
	<-entered
	second := make(chan error, 1)
	go func() { second <- b.handle(deliver(event.Envelope{ID: "e1"}), apply) }()
	close(release)
	if err := <-first; !errors.Is(err, errBoom) {
		t.Errorf("first: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("second: %v", err)
	}
	wantStats(t, b.in, inbox.Stats{Handled: 1})
}

func TestPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	msg := deliver(event.Envelope{ID: "e1"})
	before := msg.Context()
	func() {
		defer func() {
			if r := recover(); r != errBoom {
				t.Errorf("recovered %v, want %v", r, errBoom)
			}
		}()
		_ = b.handle(msg, func(msg *message.Message) ([]*message.Message, error) {
			_, _ = apply(msg)
			panic(errBoom)
		})
	}()
	if msg.Context() != before {
		t.Error("the message keeps the context of the transaction")
	}
	if b.effects(t) != 0 || b.ids(t) != 0 {
		t.Errorf("%d effects, %d ids, want none", b.effects(t), b.ids(t))
	}
	if err := b.handle(msg, apply); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

func TestOutputsAreReturnedAfterTheCommit(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	want := message.NewMessage("out", nil)
	msg := deliver(event.Envelope{ID: "e1"})
	before := msg.Context()
	out, err := b.in.Middleware(group)(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{want}, nil
	})(msg)
	if err != nil || len(out) != 1 || out[0] != want {
		t.Errorf("got %v, %v", out, err)
	}
	if msg.Context() != before || inbox.Tx(msg.Context()) != nil {
		t.Error("the message keeps the context of the transaction")
	}
}

// record does what an outbox does in a handler: a row in the transaction, a wake-up after its commit.
func record(ctx context.Context, woken *int) error {
	if !txhook.After(ctx, func() { *woken++ }) {
		return errors.New("nobody will say when the transaction is committed")
	}
	_, err := inbox.Tx(ctx).ExecContext(ctx, `INSERT INTO effects (id) VALUES ('recorded')`)
	return err
}

func TestRecordCommitsOrRollsBackWithTheEvent(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	woken := 0
	verdict := errBoom
	h := func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.Join(record(msg.Context(), &woken), verdict)
	}
	if err := b.handle(deliver(event.Envelope{ID: "e1"}), h); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if woken != 0 || b.effects(t) != 0 {
		t.Errorf("after a rollback: woken %d times, %d rows", woken, b.effects(t))
	}
	verdict = nil
	if err := b.handle(deliver(event.Envelope{ID: "e1"}), h); err != nil {
		t.Fatal(err)
	}
	if woken != 1 || b.effects(t) != 1 {
		t.Errorf("after a commit: woken %d times, %d rows, want 1 and 1", woken, b.effects(t))
	}
}

func TestSuccessIsNotCommittedOnceTheMessageIsTakenAway(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{transport.ErrLeaseLost, transport.ErrShutdown, context.Canceled} {
		t.Run(cause.Error(), func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, 1)
			msg := deliver(versioned("e1", "k", 1))
			ctx, cancel := context.WithCancelCause(msg.Context())
			msg.SetContext(ctx)
			err := b.handle(msg, func(msg *message.Message) ([]*message.Message, error) {
				_, err := apply(msg)
				cancel(cause)
				return nil, err
			})
			if !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
			if b.effects(t) != 0 || b.ids(t) != 0 {
				t.Errorf("%d effects, %d ids, want none", b.effects(t), b.ids(t))
			}
			if err := b.handle(deliver(versioned("e1", "k", 1)), apply); err != nil {
				t.Errorf("redelivery: %v", err)
			}
			wantStats(t, b.in, inbox.Stats{Handled: 1})
		})
	}
}

// A handler that does not notice that its lease is lost must neither hold up the copy that was delivered elsewhere nor
// commit beside it.
func TestHandlerThatIgnoresALostLeaseHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	msg := deliver(versioned("e1", "k", 1))
	ctx, cancel := context.WithCancelCause(msg.Context())
	msg.SetContext(ctx)
	entered, release, first := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		first <- b.handle(msg, func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			close(entered)
			<-release
			return nil, err
		})
	}()
	<-entered
	cancel(transport.ErrLeaseLost)
	if err := b.handle(deliver(versioned("e1", "k", 1)), apply); err != nil {
		t.Errorf("the other copy: %v", err)
	}
	close(release)
	if err := <-first; !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("the first copy: %v, want ErrLeaseLost", err)
	}
	if n := b.effects(t); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	wantStats(t, b.in, inbox.Stats{Handled: 1})
}

func TestNestedInboxIsAnError(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	nested := b.in.Middleware(group)(apply)
	if err := b.handle(deliver(event.Envelope{ID: "e1"}), nested); !errors.Is(err, inbox.ErrNested) {
		t.Errorf("got %v, want ErrNested", err)
	}
	put := func(msg *message.Message) ([]*message.Message, error) {
		return nil, b.in.Put(msg.Context(), &event.DeadLetter{Message: msg, ID: msg.UUID})
	}
	if err := b.handle(deliver(event.Envelope{ID: "e1"}), put); !errors.Is(err, inbox.ErrNested) {
		t.Errorf("put: got %v, want ErrNested", err)
	}
	wantStats(t, b.in, inbox.Stats{})
}

func TestLockedDatabaseIsATransientError(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	impatient, err := inbox.New(openDB(t, b.path+"?_pragma=busy_timeout(0)", 1))
	if err != nil {
		t.Fatal(err)
	}
	called := false
	h := impatient.Middleware(group)(func(*message.Message) ([]*message.Message, error) { called = true; return nil, nil })
	err = b.handle(deliver(event.Envelope{ID: "e1"}), func(*message.Message) ([]*message.Message, error) {
		_, err := h(deliver(event.Envelope{ID: "e2"}))
		if err == nil || event.Class(err) != event.ClassTransient || called {
			t.Errorf("while locked: %v, handler called: %v", err, called)
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h(deliver(event.Envelope{ID: "e2"})); err != nil || !called {
		t.Errorf("once unlocked: %v, handler called: %v", err, called)
	}
}

func TestDyingAfterTheCommitMakesADuplicate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at          crash.Point
		calls, rows int
		stats       inbox.Stats
	}{
		{crash.Handled, 2, 1, inbox.Stats{Handled: 1}},
		{crash.InboxCommitted, 1, 1, inbox.Stats{Handled: 1, Duplicates: 1}},
	} {
		t.Run(string(c.at), func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, 1)
			calls := 0
			h := func(msg *message.Message) ([]*message.Message, error) {
				calls++
				_, err := apply(msg)
				return []*message.Message{msg.Copy()}, err
			}
			msg := deliver(versioned("e1", "k", 1))
			msg.SetContext(crash.With(msg.Context(), func(_ context.Context, p crash.Point) error {
				if p == c.at {
					return errBoom
				}
				return nil
			}))
			if out, err := b.in.Middleware(group)(h)(msg); !errors.Is(err, errBoom) || out != nil {
				t.Fatalf("got %v, %v, want the crash alone", out, err)
			}
			if err := b.handle(deliver(versioned("e1", "k", 1)), h); err != nil {
				t.Fatalf("redelivery: %v", err)
			}
			if calls != c.calls || b.effects(t) != c.rows {
				t.Errorf("%d calls, %d effects, want %d and %d", calls, b.effects(t), c.calls, c.rows)
			}
			wantStats(t, b.in, c.stats)
		})
	}
}

func TestHandlerThatEndsTheTransactionIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	err := b.handle(deliver(event.Envelope{ID: "e1"}), func(msg *message.Message) ([]*message.Message, error) {
		return nil, inbox.Tx(msg.Context()).Rollback()
	})
	if !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("got %v, want ErrTxDone", err)
	}
	wantStats(t, b.in, inbox.Stats{})
}

func TestContractBreakIsReturned(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	msg := deliver(event.Envelope{ID: "e1"})
	msg.Metadata[event.MetaSequence] = "seven"
	if err := b.handle(msg, apply); !errors.Is(err, event.ErrContract) {
		t.Errorf("got %v, want a contract break", err)
	}
}

func TestGroupIsTakenFromTheDelivery(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	h := b.in.Middleware("")(apply)
	if _, err := h(deliver(event.Envelope{ID: "e1"})); err != nil {
		t.Fatal(err)
	}
	if g := one[string](t, b.db, `SELECT grp FROM seambus_inbox WHERE topic = 'orders'`); g != group {
		t.Errorf("group is %q, want %q", g, group)
	}
	if _, err := h(message.NewMessage("e2", nil)); !errors.Is(err, inbox.ErrOrigin) {
		t.Errorf("without a delivery: %v, want ErrOrigin", err)
	}
}

func TestNewReportsEveryInvalidOption(t *testing.T) {
	t.Parallel()
	_, err := inbox.New(nil, inbox.WithRetention(0), inbox.WithSweepInterval(-1), inbox.WithLogger(nil))
	joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"db is nil", "retention", "sweep interval", "logger"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
}

package bus_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

func openDB(t *testing.T) *sql.DB {
	t.Helper()
	db := dialecttest.SQLite(t).Open(t)
	db.SetMaxOpenConns(1)
	withEffects(t, db)
	return db
}

// withEffects makes the table of effects. Its primary key is their order.
func withEffects(t *testing.T, db *sql.DB) {
	t.Helper()
	d, err := dialect.For(db)
	if err != nil {
		t.Fatal(err)
	}
	seq := map[dialect.Name]string{
		dialect.SQLite: "INTEGER PRIMARY KEY", dialect.Postgres: "BIGSERIAL PRIMARY KEY", dialect.MySQL: "BIGINT AUTO_INCREMENT PRIMARY KEY",
	}[d.Name()]
	if _, err := db.Exec(`CREATE TABLE effects (seq ` + seq + `, order_id BIGINT, n BIGINT)`); err != nil {
		t.Fatal(err)
	}
}

func effects(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows, err := db.Query(`SELECT order_id, n FROM effects ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	got := ""
	for rows.Next() {
		var order, n int
		if err := rows.Scan(&order, &n); err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprintf("%d.%d ", order, n)
	}
	return got
}

func insertEffect(ctx context.Context, e placed) error {
	_, err := inbox.Tx(ctx).ExecContext(ctx, fmt.Sprintf(`INSERT INTO effects (order_id, n) VALUES (%d, %d)`, e.OrderID, e.N))
	return err
}

// flow is the whole path over one database: outbox, relay, memory transport, inbox, and an outbox again.
type flow struct {
	db    *sql.DB
	tr    *memory.Transport
	box   *outbox.Outbox
	in    *inbox.Inbox
	topic *event.Topic
}

func newFlow(t *testing.T) *flow {
	t.Helper()
	return newFlowOn(t, openDB(t))
}

func newFlowOn(t *testing.T, db *sql.DB) *flow {
	t.Helper()
	if _, err := db.Exec(`SELECT 1 FROM effects`); err != nil {
		withEffects(t, db)
	}
	f := &flow{db: db, tr: newMemory(t, memory.WithLease(time.Second)), topic: orders()}
	f.reopen(t)
	return f
}

// reopen makes outbox and inbox as a new process would.
func (f *flow) reopen(t *testing.T) {
	t.Helper()
	var err error
	if f.box, err = outbox.New(f.db, f.tr, outbox.WithLeaseTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	if f.in, err = inbox.New(f.db); err != nil {
		t.Fatal(err)
	}
}

func (f *flow) record(ctx context.Context, events ...event.Event) error {
	return f.box.InTx(ctx, func(tx *sql.Tx) error { return f.box.Record(ctx, tx, f.topic, events...) })
}

// settle waits, in virtual time, until everything recorded is published and handled.
func (f *flow) settle(t *testing.T) {
	t.Helper()
	for range 600 {
		d, err := f.box.Depth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.Pending+d.Held == 0 && f.tr.Held() == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("nothing settled within a minute")
}

func TestRecordedInsideAnInboxTransactionCommitsOrRollsBackWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in))
		var fails, arrived atomic.Int32
		fails.Store(2)
		bus.Subscribe(b, f.topic, "fulfillment",
			bus.On(func(ctx context.Context, e placed) error {
				if err := insertEffect(ctx, e); err != nil {
					return err
				}
				if err := f.box.Record(ctx, inbox.Tx(ctx), f.topic, delivered{OrderID: e.OrderID}); err != nil {
					return err
				}
				if fails.Add(-1) >= 0 {
					return errors.New("after recording")
				}
				return nil
			}),
			bus.On(func(context.Context, delivered) error {
				arrived.Add(1)
				return nil
			}))
		r := start(t, b)
		if err := f.record(t.Context(), placed{OrderID: 1, N: 1}); err != nil {
			t.Fatal(err)
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got := effects(t, f.db); got != "1.1 " || arrived.Load() != 1 {
			t.Errorf("effects %q, events of the handler %d; want one of each: two attempts were rolled back", got, arrived.Load())
		}
	})
}

func TestPublishInsideAnInboxTransactionIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		b := newBus(t, f.tr, bus.WithInbox(f.in))
		var got error
		bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
			got = b.Publish(ctx, f.topic, delivered{OrderID: e.OrderID})
			return nil
		}, bus.Ignore[delivered]())
		r := start(t, b)
		if err := b.Publish(t.Context(), f.topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(got, bus.ErrPublishInTx) {
			t.Errorf("Publish = %v, want ErrPublishInTx", got)
		}
	})
}

func TestDuplicateAndStaleEventsHaveNoSecondEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		b := newBus(t, f.tr, bus.WithInbox(f.in))
		bus.Handle(b, f.topic, "fulfillment", insertEffect, bus.Ignore[delivered]())
		r := start(t, b)
		for _, e := range []placed{
			{OrderID: 1, N: 2, ID: "a"}, {OrderID: 1, N: 2, ID: "a"}, {OrderID: 1, N: 1, ID: "late"}, {OrderID: 1, N: 3, ID: "c"},
		} {
			if err := b.Publish(t.Context(), f.topic, e); err != nil {
				t.Fatal(err)
			}
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		s := f.in.Stats()
		if got := effects(t, f.db); got != "1.2 1.3 " || s.Duplicates != 1 || s.Stale != 1 || s.Handled != 2 {
			t.Errorf("effects %q, %+v", got, s)
		}
	})
}

func TestDeadLettersAreParkedBesideTheInbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in), bus.WithRetry(middleware.RetryPolicy{MaxAttempts: 2}))
		bus.Handle(b, f.topic, "fulfillment", func(context.Context, placed) error { return errors.New("boom\x00") },
			bus.Ignore[delivered]())
		r := start(t, b)
		if err := f.record(t.Context(), placed{OrderID: 1, ID: "e-1"}); err != nil {
			t.Fatal(err)
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		parked, err := f.in.Parked(t.Context(), inbox.Filter{Group: "fulfillment"})
		if err != nil || len(parked) != 1 {
			t.Fatalf("parked %+v, %v", parked, err)
		}
		if p := parked[0]; p.ID != "e-1" || p.Attempts != 2 || p.Reason != "boom" || p.Key != "1" || p.Topic != "orders" {
			t.Errorf("parked %+v", p)
		}
	})
}

// At every named point of the path the process that is there dies once; another one goes on. Nothing is lost, every key keeps
// its order, and every effect happens once.
func TestDeathAtEveryPointLosesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range crash.Points() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { dieAt(t, point) })
		})
	}
}

var errDied = errors.New("died")

func dieAt(t *testing.T, point crash.Point) {
	f := newFlow(t)
	var deaths atomic.Int32
	ctx := crash.With(t.Context(), func(_ context.Context, p crash.Point) error {
		if p == point && deaths.CompareAndSwap(0, 1) {
			return errDied
		}
		return nil
	})
	const keys, each = 3, 4
	recorded := 0
	run := func(events bool) {
		f.reopen(t)
		life, end := context.WithCancel(ctx)
		defer end()
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in))
		bus.Handle(b, f.topic, "fulfillment", insertEffect, bus.Ignore[delivered]())
		done := make(chan error, 1)
		go func() { done <- b.Run(life) }()
		<-b.Ready()
		for ; events && recorded < keys*each; recorded++ {
			e := placed{OrderID: int64(recorded % keys), N: uint64(recorded/keys + 1), ID: fmt.Sprint("e-", recorded)}
			if err := f.record(ctx, e); err != nil { // a caller whose process died tries again
				if err := f.record(ctx, e); err != nil {
					t.Error(err)
				}
			}
		}
		time.Sleep(5 * time.Second) // virtual: longer than the leases of the dead
		end()
		<-done // what died ends with its error
	}
	run(true)
	run(false)
	f.settle(t)
	if deaths.Load() != 1 {
		t.Fatalf("nobody passed %s", point)
	}
	seen := make(map[int]int)
	rows, err := f.db.Query(`SELECT order_id, n FROM effects ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var order, n int
		if err := rows.Scan(&order, &n); err != nil {
			t.Fatal(err)
		}
		if seen[order]++; n != seen[order] {
			t.Errorf("order %d: effect %d came as number %d", order, n, seen[order])
		}
	}
	for k := range keys {
		if seen[k] != each {
			t.Errorf("order %d has %d effects, want %d", k, seen[k], each)
		}
	}
}

// An idle outbox costs nothing: a day of retries passes in a moment of real time.
func TestDayOfRetriesBesideAnIdleRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in), bus.WithRetry(middleware.RetryPolicy{
			MaxAttempts: 25, InitialDelay: time.Hour, MaxDelay: time.Hour, Multiplier: 1, Jitter: func() float64 { return 1 },
		}))
		var calls atomic.Int32
		bus.Handle(b, f.topic, "fulfillment", func(context.Context, placed) error {
			if calls.Add(1) < 25 {
				return errors.New("not yet")
			}
			return nil
		}, bus.Ignore[delivered]())
		r := start(t, b)
		began := time.Now()
		if err := f.record(t.Context(), delivered{OrderID: 2}); err != nil { // the relay has had work, and is idle then
			t.Fatal(err)
		}
		if err := b.Publish(t.Context(), f.topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		for f.in.Stats().Handled == 0 && time.Since(began) < 48*time.Hour {
			time.Sleep(time.Hour)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if calls.Load() != 25 || time.Since(began) < 24*time.Hour {
			t.Errorf("%d calls in %v", calls.Load(), time.Since(began))
		}
	})
}

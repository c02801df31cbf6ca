package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

var errNoStock = errors.New("no stock")

// broken is a set of events that cannot be handled until somebody mends what is wrong with them.
type broken struct {
	mu  sync.Mutex
	all map[string]bool
}

func (b *broken) set(event string, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = make(map[string]bool)
	}
	b.all[event] = is
}

func (b *broken) is(e placed) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[name(e)]
}

func name(e placed) string { return fmt.Sprintf("%d.%d", e.OrderID, e.N) }

// holding runs a bus over f that holds the keys of its dead letters.
func holding(t *testing.T, f *flow, bad *broken) *running {
	t.Helper()
	b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in), bus.WithOnDead(bus.HoldKey))
	bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
		if err := insertEffect(ctx, e); err != nil || !bad.is(e) {
			return err
		}
		return bus.Permanent(errNoStock)
	}, bus.Ignore[delivered]())
	return start(t, b)
}

func mustRecord(t *testing.T, f *flow, events ...event.Event) {
	t.Helper()
	if err := f.record(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
}

func placedEvent(order int64, n uint64) placed {
	return placed{OrderID: order, N: n, ID: fmt.Sprintf("e-%d.%d", order, n)}
}

// wantEffects compares the effects, those of each order in their order.
func wantEffects(t *testing.T, f *flow, want string) {
	t.Helper()
	got := strings.Fields(effects(t, f.db))
	slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:2], b[:2]) })
	if text := strings.Join(got, " "); text != want {
		t.Errorf("effects %q, want %q", text, want)
	}
}

func wantParked(t *testing.T, f *flow, want string) {
	t.Helper()
	all, err := f.in.Parked(t.Context(), inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range all {
		got += p.ID + ":" + p.State + " "
	}
	if got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func countRows(t *testing.T, f *flow, table string) (n int) {
	t.Helper()
	if err := f.db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var operator = inbox.Order{By: "ada", Why: "stock is back"}

// A dead letter holds its key and no other; redriven, it is handled, what came after it follows in order, and then the key is
// open for new events.
func TestDeadLetterHoldsItsKeyUntilItIsRedriven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, bad := newFlow(t), new(broken)
		bad.set("1.2", true)
		r := holding(t, f, bad)
		for n := uint64(1); n <= 4; n++ {
			mustRecord(t, f, placedEvent(1, n), placedEvent(2, n))
		}
		f.settle(t)
		wantEffects(t, f, "1.1 2.1 2.2 2.3 2.4")
		wantParked(t, f, "e-1.2:dead e-1.3:held e-1.4:held ")

		out, err := f.in.Redrive(t.Context(), operator) // nothing was mended: it dies again and the key stays held
		if err != nil || out.Done != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		time.Sleep(time.Minute)
		wantEffects(t, f, "1.1 2.1 2.2 2.3 2.4")
		wantParked(t, f, "e-1.2:dead e-1.3:held e-1.4:held ")

		bad.set("1.2", false)
		if out, err = f.in.Redrive(t.Context(), operator); err != nil || out.Done != 1 || len(out.Refused) != 0 {
			t.Fatalf("%+v, %v", out, err)
		}
		time.Sleep(time.Minute)
		wantEffects(t, f, "1.1 1.2 1.3 1.4 2.1 2.2 2.3 2.4")
		wantParked(t, f, "")
		mustRecord(t, f, placedEvent(1, 5))
		f.settle(t)
		wantEffects(t, f, "1.1 1.2 1.3 1.4 1.5 2.1 2.2 2.3 2.4")
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if n := countRows(t, f, "seambus_held"); n != 0 {
			t.Errorf("%d keys are still held", n)
		}
		if audits, err := f.in.Audits(t.Context(), 0, 0); err != nil || len(audits) != 2 || audits[1].By != "ada" || audits[1].ID != "e-1.2" {
			t.Errorf("audit %+v, %v", audits, err)
		}
	})
}

// Discarding it opens the key as well, and a copy of it that still comes is dropped.
func TestDiscardedLetterHoldsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, bad := newFlow(t), new(broken)
		bad.set("1.1", true)
		r := holding(t, f, bad)
		mustRecord(t, f, placedEvent(1, 1), placedEvent(1, 2))
		f.settle(t)
		o := operator
		o.Erase = true
		if out, err := f.in.Discard(t.Context(), o); err != nil || out.Done != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		time.Sleep(time.Minute)
		bad.set("1.1", false)
		if err := r.Publish(t.Context(), f.topic, placedEvent(1, 1)); err != nil {
			t.Fatal(err)
		}
		f.settle(t)
		wantEffects(t, f, "1.2")
		wantParked(t, f, "e-1.1:discarded ")
		all, err := f.in.Parked(t.Context(), inbox.Filter{})
		if err != nil || len(all[0].Message.Payload) != 0 || len(all[0].Message.Metadata) != 0 {
			t.Errorf("not erased: %+v, %v", all, err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A replayed event that fails for the moment is retried by the policy, before anything later of its key.
func TestReplayedEventIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, calls := newFlow(t), atomic.Int32{}
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in), bus.WithOnDead(bus.HoldKey),
			bus.WithRetry(middleware.RetryPolicy{MaxAttempts: 3, InitialDelay: time.Minute, MaxDelay: time.Minute}))
		bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
			if e.N == 1 {
				if calls.Add(1) < 6 { // three attempts, and three more after the redrive
					return errNoStock
				}
			}
			return insertEffect(ctx, e)
		}, bus.Ignore[delivered]())
		r := start(t, b)
		mustRecord(t, f, placedEvent(1, 1), placedEvent(1, 2))
		time.Sleep(6 * time.Minute)
		wantParked(t, f, "e-1.1:dead e-1.2:held ")
		if _, err := f.in.Redrive(t.Context(), operator); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		wantEffects(t, f, "1.1 1.2")
		if err := r.stop(); err != nil || calls.Load() != 6 {
			t.Errorf("%d calls, %v", calls.Load(), err)
		}
	})
}

// Where keys pass, a letter that a later event has overtaken is refused, unless the operator insists; then the version guard
// keeps the newer state.
func TestOvertakenLetterIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, bad := newFlow(t), new(broken)
		bad.set("1.1", true)
		b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in))
		bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
			if bad.is(e) {
				return bus.Permanent(errNoStock)
			}
			return insertEffect(ctx, e)
		}, bus.Ignore[delivered]())
		r := start(t, b)
		mustRecord(t, f, placedEvent(1, 1), placedEvent(1, 2))
		f.settle(t)
		bad.set("1.1", false)
		out, err := f.in.Redrive(t.Context(), operator)
		if err != nil || out.Done != 0 || len(out.Refused) != 1 || out.Refused[0].ID != "e-1.1" {
			t.Fatalf("%+v, %v; want a refusal", out, err)
		}
		o := operator
		o.OutOfOrder, o.DryRun = true, true
		if out, err = f.in.Redrive(t.Context(), o); err != nil || out.Done != 1 || out.Stale != 1 {
			t.Fatalf("dry run: %+v, %v; want one that would be stale", out, err)
		}
		wantParked(t, f, "e-1.1:dead ")
		o.DryRun = false
		if out, err = f.in.Redrive(t.Context(), o); err != nil || out.Done != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		time.Sleep(time.Minute)
		wantEffects(t, f, "1.2")
		wantParked(t, f, "")
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatCannotBeRedrivenIsNamed(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	if _, err := f.in.Redrive(t.Context(), inbox.Order{By: "ada"}); err == nil {
		t.Error("an order without a reason was accepted")
	}
	o := operator
	o.Filter.ID = "nobody"
	if _, err := f.in.Redrive(t.Context(), o); !errors.Is(err, inbox.ErrNotParked) {
		t.Errorf("got %v, want ErrNotParked", err)
	}
}

// Random failures, permanent errors, deaths at every named point, redrives and discards, while new events come: of every key
// what is applied is what was recorded, in its order, once each.
func TestHeldKeysKeepTheirOrderWhateverHappens(t *testing.T) {
	t.Parallel()
	for range 8 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				(&ordeal{flow: newFlow(t), dice: newDice(seed), onDead: bus.HoldKey, pace: 1}).run(t)
			})
		})
	}
}

func TestHeldKeysKeepTheirOrderOnServers(t *testing.T) {
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox, dialect.SetInbox)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		(&ordeal{flow: newFlowOn(t, db), dice: newDice(seed), onDead: bus.HoldKey, pace: 50}).run(t)
	})
}

// Where keys pass, the version guard keeps the newest state whatever happens.
func TestPassingKeysKeepTheNewestState(t *testing.T) {
	t.Parallel()
	for range 4 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				(&ordeal{flow: newFlow(t), dice: newDice(seed), onDead: bus.PassKey, pace: 1}).run(t)
			})
		})
	}
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox, dialect.SetInbox)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		(&ordeal{flow: newFlowOn(t, db), dice: newDice(seed), onDead: bus.PassKey, pace: 50}).run(t)
	})
}

// dice are safe for concurrent use.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{rng: rand.New(rand.NewPCG(seed, 1))} }

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// chance is true in so many of a hundred cases.
func (d *dice) chance(percent int) bool { return d.n(100) < percent }

const ordealKeys, ordealEach, ordealLives = 4, 12, 6

// ordeal is several lives of a bus, all but the last dying at random points of the path.
type ordeal struct {
	*flow
	*dice
	onDead    bus.OnDead
	pace      time.Duration // waits are shorter by this factor where time is real
	bad       broken
	discarded map[string]bool
	next      [ordealKeys]uint64 // events recorded
}

func (o *ordeal) sleep(d time.Duration) { time.Sleep(d / o.pace) }

func (o *ordeal) run(t *testing.T) {
	o.discarded = make(map[string]bool)
	for k := range int64(ordealKeys) {
		for n := range uint64(ordealEach) {
			o.bad.set(name(placedEvent(k, n+1)), o.chance(20))
		}
	}
	for range ordealLives {
		o.live(t, true)
	}
	o.live(t, false)
	o.check(t)
}

func (o *ordeal) live(t *testing.T, dying bool) {
	o.reopen(t)
	ctx, end := context.WithCancel(crash.With(t.Context(), func(context.Context, crash.Point) error {
		if dying && o.n(1000) < 4 {
			return errDied
		}
		return nil
	}))
	defer end()
	b := newBus(t, o.tr, bus.WithOutbox(o.box), bus.WithInbox(o.in), bus.WithOnDead(o.onDead), bus.WithDurableAttempts(),
		bus.WithRetry(middleware.RetryPolicy{InitialDelay: 10 * time.Millisecond, MaxAttempts: 50, MaxDelay: 100 * time.Millisecond}))
	bus.Handle(b, o.topic, "fulfillment", func(ctx context.Context, e placed) error {
		if err := insertEffect(ctx, e); err != nil {
			return err
		}
		switch {
		case o.bad.is(e):
			return bus.Permanent(errNoStock)
		case dying && o.chance(20):
			return errNoStock
		}
		return nil
	}, bus.Ignore[delivered]())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	<-b.Ready()
	if dying {
		o.work(t, ctx)
	} else {
		o.finish(t)
	}
	end()
	<-done // what died ends with its error
}

// work records events while an operator is at it.
func (o *ordeal) work(t *testing.T, ctx context.Context) {
	for range ordealKeys * ordealEach / ordealLives {
		if k := o.n(ordealKeys); o.next[k] < ordealEach {
			e := placedEvent(int64(k), o.next[k]+1)
			if o.record(ctx, e) == nil || o.record(t.Context(), e) == nil { // whoever died tries again
				o.next[k]++
			}
		}
		if o.chance(30) {
			o.operate(t)
		}
		o.sleep(50 * time.Millisecond)
	}
	o.sleep(20 * time.Second)
}

// finish decides about every dead letter until nothing is left.
func (o *ordeal) finish(t *testing.T) {
	deadline := time.Now().Add(10 * time.Minute / o.pace * 5)
	for time.Now().Before(deadline) {
		depth, err := o.box.Depth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !o.operate(t) && depth.Pending+depth.Held == 0 && o.tr.Held() == 0 && countRows(t, o.flow, "seambus_held") == 0 {
			return
		}
		o.sleep(5 * time.Second)
	}
	t.Error("it never came to rest")
}

// operate mends and redrives a dead letter, or discards it. It reports whether there was one.
func (o *ordeal) operate(t *testing.T) bool {
	t.Helper()
	all, err := o.in.Parked(t.Context(), inbox.Filter{State: inbox.StateDead})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return false
	}
	p := all[o.n(len(all))]
	order := operator
	order.Filter.ID, order.OutOfOrder = p.ID, o.onDead == bus.PassKey
	act := o.in.Redrive
	if o.chance(25) {
		act, o.discarded[p.ID[2:]] = o.in.Discard, true
	} else if o.chance(60) {
		o.bad.set(p.ID[2:], false)
	}
	if _, err := act(t.Context(), order); err != nil && !errors.Is(err, inbox.ErrNotParked) {
		t.Errorf("%s: %v", p.ID, err)
	}
	return true
}

func (o *ordeal) check(t *testing.T) {
	t.Helper()
	defer func() {
		if t.Failed() {
			o.tell(t)
		}
	}()
	rows, err := o.db.Query(`SELECT order_id, n FROM effects ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	got := make(map[int][]uint64)
	for rows.Next() {
		var k int
		var n uint64
		if err := rows.Scan(&k, &n); err != nil {
			t.Fatal(err)
		}
		got[k] = append(got[k], n)
	}
	for k, recorded := range o.next {
		var want []uint64
		for n := uint64(1); n <= recorded; n++ {
			if !o.discarded[name(placedEvent(int64(k), n))] {
				want = append(want, n)
			}
		}
		switch {
		case o.onDead == bus.HoldKey && !slices.Equal(got[k], want):
			t.Errorf("key %d: applied %v, want %v", k, got[k], want)
		case !slices.IsSorted(got[k]) || len(slices.Compact(slices.Clone(got[k]))) != len(got[k]):
			t.Errorf("key %d: applied %v, an old state over a newer one, or one twice", k, got[k])
		case len(want) > 0 && (len(got[k]) == 0 || got[k][len(got[k])-1] != want[len(want)-1]):
			t.Errorf("key %d: applied %v, want %d last", k, got[k], want[len(want)-1])
		}
	}
}

// tell shows what the databases know, for whoever has to find out why.
func (o *ordeal) tell(t *testing.T) {
	t.Helper()
	for _, q := range []string{
		`SELECT concat('inbox ', seq, ' ', event_id, ' ', stale, ' ', handled_at) FROM seambus_inbox ORDER BY seq`,
		`SELECT concat('parked ', seq, ' ', event_id, ' ', state) FROM seambus_parked ORDER BY seq`,
		`SELECT concat('outbox ', seq, ' ', event_id, ' ', state) FROM seambus_outbox ORDER BY seq`,
		`SELECT concat('audit ', seq, ' ', event_id, ' ', action, ' ', at) FROM seambus_audit ORDER BY seq`,
		`SELECT concat('effect ', seq, ' ', order_id, '.', n) FROM effects ORDER BY seq`,
	} {
		rows, err := o.db.Query(q)
		if err != nil {
			t.Log(err)
			continue
		}
		for rows.Next() {
			var line string
			if rows.Scan(&line) == nil {
				t.Log(line)
			}
		}
		_ = rows.Close()
	}
}

// A delay beyond what the transport can keep parks the event, and its key behind it, and costs no attempt.
func TestDelayBeyondTheTransportsIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t)
		in, err := inbox.New(db)
		if err != nil {
			t.Fatal(err)
		}
		f := &flow{db: db, in: in, tr: newMemory(t, memory.WithStrict(memory.Kafka)), topic: orders()}
		b := newBus(t, f.tr, bus.WithInbox(in), bus.WithDurableAttempts())
		var attempts []int
		began := time.Now()
		var late time.Duration
		bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
			if e.N == 1 && e.OrderID == 1 {
				attempts = append(attempts, middleware.Attempt(ctx))
				if len(attempts) < 4 {
					return bus.RetryAfter(errNoStock, 6*time.Hour) // Kafka's mode keeps five minutes
				}
				late = time.Since(began)
			}
			return insertEffect(ctx, e)
		}, bus.Ignore[delivered]())
		r := start(t, b)
		if err := b.Publish(t.Context(), f.topic, placedEvent(1, 1), placedEvent(1, 2), placedEvent(2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantEffects(t, f, "2.1")
		wantParked(t, f, "e-1.1:ready e-1.2:held ")
		time.Sleep(24 * time.Hour)
		wantEffects(t, f, "1.1 1.2 2.1")
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if fmt.Sprint(attempts) != "[1 2 3 4]" || late < 18*time.Hour || late > 19*time.Hour {
			t.Errorf("attempts %v, the last after %v", attempts, late)
		}
		if n := countRows(t, f, "seambus_held"); n != 0 {
			t.Errorf("%d keys are still held", n)
		}
	})
}

func TestInboxMustRememberAsLongAsTheBrokerRedelivers(t *testing.T) {
	t.Parallel()
	in, err := inbox.New(openDB(t), inbox.WithRetention(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.New(redelivering{newMemory(t)}, bus.WithInbox(in))
	if err != nil {
		t.Fatal(err)
	}
	bus.Subscribe(b, orders(), "g", bus.Ignore[placed](), bus.Ignore[delivered]())
	if err := b.Run(t.Context()); !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "WithRetention") {
		t.Errorf("Run = %v", err)
	}
}

// redelivering may deliver again for four days.
type redelivering struct{ *memory.Transport }

func (r redelivering) Capabilities() transport.Capabilities {
	caps := r.Transport.Capabilities()
	caps.LongestRedelivery = 4 * 24 * time.Hour
	return caps
}

package bus_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
	"github.com/seambus/seambus/transport/transporttest"
)

// onEveryMode runs a test on the memory transport as itself, as SQS and as Kafka, in virtual time.
func onEveryMode(t *testing.T, test func(t *testing.T, tr *memory.Transport)) {
	t.Helper()
	for name, opts := range map[string][]memory.Option{
		"default":      nil,
		"strict SQS":   {memory.WithStrict(memory.SQS)},
		"strict Kafka": {memory.WithStrict(memory.Kafka)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, newMemory(t, opts...)) })
		})
	}
}

// C26: a handler that always fails follows the schedule instead of spinning, and as often on every broker.
func TestFailingHandlerFollowsTheScheduleOnEveryMode(t *testing.T) {
	t.Parallel()
	onEveryMode(t, func(t *testing.T, tr *memory.Transport) {
		b := newBus(t, tr, bus.WithRetry(middleware.RetryPolicy{
			InitialDelay: time.Second, Multiplier: 2, Jitter: func() float64 { return 1 },
		}))
		topic, began := orders(), time.Now()
		var mu sync.Mutex
		var at []time.Duration
		bus.Handle(b, topic, "fulfillment", func(context.Context, placed) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
			return errors.New("dependency is down")
		}, bus.Ignore[delivered]())
		r := start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(at); got != "[0s 1s 3s 7s]" {
			t.Errorf("attempts at %s", got)
		}
	})
}

// The failure script through the whole chain of a bus leaves the trace that it leaves on a bare transport.
func TestFailureScriptLeavesItsTraceOnEveryMode(t *testing.T) {
	t.Parallel()
	onEveryMode(t, func(t *testing.T, tr *memory.Transport) {
		player := transporttest.NewPlayer(time.Second)
		b := newBus(t, tr, bus.WithRetry(transporttest.ScriptRetry(time.Second)), bus.WithDeadLetters(player))
		topic := event.NewTopic("scripted", scripted{})
		bus.Handle(b, topic, "players", func(ctx context.Context, e scripted) error { return player.Handle(ctx, e.Name) })
		r := start(t, b)
		var events []event.Event
		for _, s := range transporttest.Script() {
			events = append(events, scripted{Name: s.Event, Key: s.Key})
		}
		if err := b.Publish(t.Context(), topic, events...); err != nil {
			t.Fatal(err)
		}
		<-player.Finished()
		time.Sleep(time.Minute) // virtual: whatever comes now is too much
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got := player.Trace(); got != transporttest.ScriptTrace() {
			t.Errorf("the trace is\n%s", got)
		}
	})
}

type scripted struct{ Name, Key string }

func (scripted) EventType() string      { return "script.step" }
func (e scripted) PartitionKey() string { return e.Key }
func (e scripted) EventID() string      { return e.Name }

const caseTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// envelope returns a message as a foreign service might send it, with this many headers of its own.
func envelope(id, key string, headers int) *message.Message {
	env := &event.Envelope{
		ID: id, Source: "/shop", Type: "order.placed", PartitionKey: key, ContentType: "application/json",
		Time: time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC), Data: []byte(`{"orderId":1}`),
		Metadata: map[string]string{event.MetaTraceParent: caseTrace},
	}
	for h := range headers {
		env.Metadata[fmt.Sprintf("header-%02d", h)] = []string{"plain", "", "zażółć", "two\nlines"}[h%4]
	}
	return env.Message()
}

// deadLetters subscribes to what the bus gives up.
func deadLetters(t *testing.T, tr *memory.Transport) <-chan *message.Message {
	t.Helper()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: "operators"})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := sub.Subscribe(t.Context(), "orders_fulfillment_dead")
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

// C27: what a dead letter says never makes it unsendable, however many headers there are.
func TestPoisonWithManyHeadersGoesThroughOnEveryMode(t *testing.T) {
	t.Parallel()
	onEveryMode(t, func(t *testing.T, tr *memory.Transport) {
		letters := deadLetters(t, tr)
		b := newBus(t, tr)
		bus.Handle(b, orders(), "fulfillment", func(context.Context, placed) error {
			return bus.Permanent(errors.New("never"))
		}, bus.Ignore[delivered]())
		r := start(t, b)
		full := envelope("full", "full", 0) // to the last byte: there is no room for a reason
		limits := tr.Capabilities().Limits
		if limits.MessageBytes > 0 {
			full.Payload = []byte(`{"orderId":1}` + strings.Repeat(" ", limits.MessageBytes-limits.Bytes(full)))
		}
		sent := map[string]*message.Message{"full": full}
		for _, n := range []int{9, 10, 30} {
			id := fmt.Sprint(n, "-headers")
			sent[id] = envelope(id, id, n)
		}
		for _, m := range sent {
			if err := tr.Publisher().Publish("orders", m); err != nil {
				t.Fatal(err)
			}
		}
		for range sent {
			letter := <-letters
			m := sent[letter.UUID]
			for name, value := range m.Metadata {
				if got, ok := letter.Metadata[name]; !ok || got != value {
					t.Errorf("%s: header %q is %q (present: %t), want %q", letter.UUID, name, got, ok, value)
				}
			}
			if string(letter.Payload) != string(m.Payload) {
				t.Errorf("%s: the payload has changed", letter.UUID)
			}
			if reason := letter.Metadata[event.MetaDeadReason]; reason != "never" && (letter.UUID != "full" || limits.MessageBytes == 0) {
				t.Errorf("%s: reason %q", letter.UUID, reason)
			}
			letter.Ack()
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// C29: a retry, a dead letter and its redrive keep key, id, trace and time; the redrive's generation gets it past the broker's
// deduplication.
func TestRetryPoisonAndRedriveKeepWhatAnEventIsOnEveryMode(t *testing.T) {
	t.Parallel()
	onEveryMode(t, func(t *testing.T, tr *memory.Transport) {
		letters := deadLetters(t, tr)
		var seen []string
		look := looking(func(msg *message.Message) {
			seen = append(seen, fmt.Sprint(describe(msg), " delivery ", msg.Metadata[event.MetaGeneration]))
		})
		b := newBus(t, tr, bus.WithMiddleware(look), bus.WithRetry(middleware.RetryPolicy{InitialDelay: time.Second}))
		var calls atomic.Int32
		bus.Handle(b, orders(), "fulfillment", func(context.Context, placed) error {
			switch calls.Add(1) {
			case 1:
				return errors.New("once")
			case 2:
				return bus.Permanent(errors.New("given up"))
			default:
				return nil
			}
		}, bus.Ignore[delivered]())
		r := start(t, b)
		m := envelope("e-1", "k", 0)
		want := describe(m)
		if err := tr.Publisher().Publish("orders", m); err != nil {
			t.Fatal(err)
		}
		letter := <-letters
		if got := describe(letter); got != want {
			t.Errorf("the dead letter is %s, want %s", got, want)
		}
		redriven := letter.Copy()
		letter.Ack()
		if strict := tr.Capabilities().Name == "memory/sqs"; strict {
			if err := tr.Publisher().Publish("orders", redriven.Copy()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if calls.Load() != 2 {
				t.Error("without a new generation the redrive was not taken for a repetition: this test shows nothing")
			}
		}
		redriven.Metadata[event.MetaGeneration] = "1"
		if err := tr.Publisher().Publish("orders", redriven); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got, all := fmt.Sprint(seen), fmt.Sprint([]string{want + " delivery ", want + " delivery ", want + " delivery 1"}); got != all {
			t.Errorf("the handler was given\n%s\nwant\n%s", got, all)
		}
	})
}

// describe returns what must never change about an event.
func describe(msg *message.Message) string {
	md := msg.Metadata
	return fmt.Sprintf("%s %s of key %s, trace %s, at %s", msg.UUID, md[event.MetaID], transport.Key(msg), md[event.MetaTraceParent], md[event.MetaTime])
}

// looking looks at each message on its way to the handler.
func looking(look func(*message.Message)) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			look(msg)
			return next(msg)
		}
	}
}

// C10: two buses, outboxes, databases of tables and destinations in one process share nothing, though everything has one name.
func TestTwoBusesInOneProcessShareNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, topic := openDB(t), orders()
		type side struct {
			name string
			tr   *memory.Transport
			box  *outbox.Outbox
			run  *running
			got  chan string
		}
		var sides []*side
		for _, name := range []string{"a", "b"} {
			s := &side{name: name, tr: newMemory(t), got: make(chan string, 10)}
			var err error
			if s.box, err = outbox.New(db, s.tr, outbox.WithTablePrefix(name+"_"), outbox.WithName(name)); err != nil {
				t.Fatal(err)
			}
			b := newBus(t, s.tr, bus.WithOutbox(s.box))
			bus.Handle(b, topic, "fulfillment", func(ctx context.Context, e placed) error {
				s.got <- fmt.Sprint(e.OrderID, " ", bus.IdempotencyKey(ctx))
				return nil
			}, bus.Ignore[delivered]())
			s.run = start(t, b)
			sides = append(sides, s)
		}
		for i, s := range sides { // the same id in both: neither may take it for a repetition
			err := s.box.InTx(t.Context(), func(tx *sql.Tx) error {
				return s.box.Record(t.Context(), tx, topic, placed{OrderID: int64(i + 1), ID: "e-1"})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // virtual
		for i, s := range sides {
			if err := s.run.stop(); err != nil {
				t.Error(err)
			}
			close(s.got)
			var got []string
			for one := range s.got {
				got = append(got, one)
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], fmt.Sprint(i+1, " ")) {
				t.Errorf("bus %s handled %v, want its own event alone", s.name, got)
			}
			if st := s.box.Stats(); st.Recorded != 1 || st.Published != 1 {
				t.Errorf("outbox %s recorded %d and published %d, want 1 and 1", s.name, st.Recorded, st.Published)
			}
		}
	})
}

// Rebalances and lost leases in mid-flight: effects happen once and in order, on every mode.
func TestEffectsHappenOnceThroughRebalancesOnEveryMode(t *testing.T) {
	t.Parallel()
	onEveryMode(t, func(t *testing.T, tr *memory.Transport) {
		f := &flow{db: openDB(t), tr: tr, topic: orders()}
		f.reopen(t)
		b := newBus(t, tr, bus.WithOutbox(f.box), bus.WithInbox(f.in))
		bus.Handle(b, f.topic, "fulfillment", func(ctx context.Context, e placed) error {
			time.Sleep(10 * time.Millisecond) // virtual: a handler's work
			return insertEffect(ctx, e)
		}, bus.Ignore[delivered]())
		r := start(t, b)
		const keys, each = 4, 10
		for n := range each {
			for k := range keys {
				e := placed{OrderID: int64(k), N: uint64(n + 1), ID: fmt.Sprintf("%d-%d", k, n)}
				if err := f.record(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Millisecond)
			tr.Rebalance("orders", "fulfillment")
			tr.ExpireLease("orders", "fulfillment", fmt.Sprintf("0-%d", n))
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]int)
		for one := range strings.FieldsSeq(effects(t, f.db)) {
			k, n, _ := strings.Cut(one, ".")
			if seen[k]++; n != fmt.Sprint(seen[k]) {
				t.Errorf("order %s: effect %s came as number %d", k, n, seen[k])
			}
		}
		for k := range keys {
			if seen[fmt.Sprint(k)] != each {
				t.Errorf("order %d has %d effects, want %d", k, seen[fmt.Sprint(k)], each)
			}
		}
		if n, err := f.in.CountParked(t.Context(), inbox.Filter{}); err != nil || n != 0 {
			t.Errorf("%d dead letters, %v: a lost lease is nobody's fault", n, err)
		}
	})
}

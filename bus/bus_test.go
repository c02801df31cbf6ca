package bus_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func TestHandlersGetTypedEventsOfAllTypesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		var got []string
		bus.Subscribe(b, topic, "fulfillment",
			bus.On(func(_ context.Context, e placed) error {
				got = append(got, "placed "+e.PartitionKey())
				return nil
			}),
			bus.On(func(_ context.Context, e delivered) error {
				got = append(got, "delivered "+e.PartitionKey())
				return nil
			}))
		r := start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1}, delivered{OrderID: 1}, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if want := "placed 1,delivered 1,placed 1"; strings.Join(got, ",") != want {
			t.Errorf("handled %v, want %s", got, want)
		}
	})
}

func TestEveryGroupGetsEveryEventOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		var counts [2]atomic.Int32
		for i, group := range []string{"fulfillment", "billing"} {
			bus.Handle(b, topic, group, func(context.Context, placed) error {
				counts[i].Add(1)
				return nil
			}, bus.Ignore[delivered]())
		}
		r := start(t, b)
		for i := range int64(100) {
			if err := b.Publish(t.Context(), topic, placed{OrderID: i}, delivered{OrderID: i}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if counts[0].Load() != 100 || counts[1].Load() != 100 {
			t.Errorf("handled %d and %d, want 100 each", counts[0].Load(), counts[1].Load())
		}
	})
}

func TestRegistrationProblemsAreReportedAllAtOnce(t *testing.T) {
	t.Parallel()
	b, topic := newBus(t, newMemory(t)), orders()
	noop := func(context.Context, placed) error { return nil }
	bus.Handle(b, topic, "Fulfillment", noop)                              // name, and delivered is missing
	bus.Handle(b, topic, "twice", noop, bus.On(noop), bus.WithTimeout(-1)) // twice, timeout, delivered
	bus.Handle(b, event.NewTopic("other", delivered{}), "g", noop)         // not of the topic
	bus.Subscribe(b, nil, "g")
	bus.Handle(b, topic, "retry", noop, bus.Ignore[delivered](), bus.WithRetry(middleware.RetryPolicy{Multiplier: 0.5}))
	err := b.Run(t.Context())
	if !errors.Is(err, bus.ErrConfig) || !errors.Is(err, event.ErrName) || !errors.Is(err, event.ErrUnknownType) {
		t.Fatalf("Run = %v", err)
	}
	for _, want := range []string{
		`"Fulfillment"`, `"order.delivered" is neither handled nor ignored`, `"order.placed" is handled or ignored twice`,
		"timeout is -1ns", "bus_test.placed: unknown event type", "topic is nil", "orders/retry",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestNewReportsWrongOptionsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := bus.New(nil, bus.WithLogger(nil), bus.WithDrainTimeout(-1), bus.WithConcurrency(0), bus.WithOutbox(nil),
		bus.WithInbox(nil), bus.WithTracerProvider(nil), bus.WithDeadLetters(nil), bus.WithMiddleware(nil))
	if !errors.Is(err, bus.ErrConfig) {
		t.Fatalf("New = %v", err)
	}
	for _, want := range []string{
		"transport", "logger", "drain timeout", "concurrency", "outbox 1", "inbox", "tracer", "dead letters", "middleware",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestFailedAttemptIsRepeatedBeforeLaterEventsOfItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		var mu sync.Mutex
		var key1, key2 []uint64
		failures := 2
		bus.Handle(b, topic, "fulfillment", func(_ context.Context, e placed) error {
			mu.Lock()
			defer mu.Unlock()
			if e.OrderID == 2 {
				key2 = append(key2, e.N)
				return nil
			}
			key1 = append(key1, e.N)
			if failures > 0 {
				failures--
				return errors.New("not yet")
			}
			return nil
		}, bus.Ignore[delivered]())
		r := start(t, b)
		for n := range uint64(3) {
			if err := b.Publish(t.Context(), topic, placed{OrderID: 1, N: n + 1}, placed{OrderID: 2, N: n + 1}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // virtual: longer than the first three delays of the schedule together
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if !equal(key1, 1, 1, 1, 2, 3) || !equal(key2, 1, 2, 3) {
			t.Errorf("key 1 saw %v, key 2 saw %v", key1, key2)
		}
	})
}

func equal(got []uint64, want ...uint64) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i] != want[i] {
			return false
		}
	}
	return true
}

// letters collects dead letters.
type letters struct {
	mu  sync.Mutex
	all []*event.DeadLetter
}

func (l *letters) Put(_ context.Context, d *event.DeadLetter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
	return nil
}

func TestVerdictsDecideWhatBecomesOfAnEvent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		verdict  error
		calls    int
		class    string
		attempts int
	}{
		"nil is done":                {nil, 1, "", 0},
		"an error spends attempts":   {errors.New("boom"), 3, event.ClassTransient, 3},
		"permanent is given up":      {bus.Permanent(errors.New("no such order")), 1, event.ClassPermanent, 1},
		"retry after spends as well": {bus.RetryAfter(errors.New("later"), time.Hour), 3, event.ClassTransient, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dead, calls := new(letters), 0
				b, topic := newBus(t, newMemory(t), bus.WithDeadLetters(dead),
					bus.WithRetry(middleware.RetryPolicy{MaxAttempts: 3})), orders()
				bus.Handle(b, topic, "fulfillment", func(context.Context, placed) error {
					calls++
					return tc.verdict
				}, bus.Ignore[delivered]())
				r := start(t, b)
				if err := b.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(24 * time.Hour) // virtual
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				if calls != tc.calls {
					t.Errorf("handler was called %d times, want %d", calls, tc.calls)
				}
				switch {
				case tc.class == "" && len(dead.all) > 0:
					t.Errorf("dead letter %+v", dead.all[0])
				case tc.class != "" && (len(dead.all) != 1 || dead.all[0].Class != tc.class || dead.all[0].Attempts != tc.attempts):
					t.Errorf("dead letters %+v, want one of class %s after %d attempts", dead.all, tc.class, tc.attempts)
				}
			})
		})
	}
}

func TestContractBreakIsDeadLetteredAtOnceWithItsRawBytes(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]func() *message.Message{
		"not JSON": func() *message.Message {
			return raw("order.placed", "{\x00\xff")
		},
		"unknown type": func() *message.Message {
			return raw("order.vanished", "{}")
		},
		"fails validation": func() *message.Message {
			return raw("order.placed", `{"orderId":-1}`)
		},
		"empty": func() *message.Message {
			return raw("order.placed", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dead, calls := new(letters), 0
				tr, topic := newMemory(t), orders()
				b := newBus(t, tr, bus.WithDeadLetters(dead))
				bus.Handle(b, topic, "fulfillment", func(context.Context, placed) error {
					calls++
					return nil
				}, bus.Ignore[delivered]())
				r := start(t, b)
				m := msg()
				if err := tr.Publisher().Publish(topic.Name(), m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				if calls != 0 || len(dead.all) != 1 {
					t.Fatalf("handler calls %d, dead letters %d, want 0 and 1", calls, len(dead.all))
				}
				if d := dead.all[0]; d.Class != event.ClassContract || string(d.Message.Payload) != string(m.Payload) || d.ID != m.UUID {
					t.Errorf("dead letter %+v", d)
				}
			})
		})
	}
}

func raw(eventType, payload string) *message.Message {
	env := &event.Envelope{ID: event.NewID(), Type: eventType, PartitionKey: "1", Data: []byte(payload)}
	return env.Message()
}

func TestDeadLettersGoToTheBrokerWithoutAnInbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic := newMemory(t), orders()
		b := newBus(t, tr)
		bus.Handle(b, topic, "fulfillment", func(context.Context, placed) error {
			return bus.Permanent(errors.New("no such order"))
		}, bus.Ignore[delivered]())
		r := start(t, b)
		sub, err := tr.Subscriber(transport.SubscriberConfig{Group: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		dead, err := sub.Subscribe(t.Context(), "orders_fulfillment_dead")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Publish(t.Context(), topic, placed{OrderID: 7, ID: "e-7"}); err != nil {
			t.Fatal(err)
		}
		msg := <-dead
		msg.Ack()
		if err := errors.Join(r.stop(), sub.Close()); err != nil {
			t.Fatal(err)
		}
		md := msg.Metadata
		if msg.UUID != "e-7" || md[event.MetaDeadReason] != "no such order" || md[event.MetaDeadAttempts] != "1" ||
			md[event.MetaDeadGroup] != "fulfillment" || md[event.MetaPartitionKey] != "7" || md[event.MetaDeadTopic] != "orders" {
			t.Errorf("dead letter %s %v", msg.UUID, md)
		}
	})
}

func TestPublishRefusesWhatCannotTravelBeforeSendingAny(t *testing.T) {
	t.Parallel()
	tr := newMemory(t, memory.WithLimits(transport.Limits{MessageBytes: 400}))
	b, topic := newBus(t, tr), orders()
	err := b.Publish(t.Context(), topic, placed{OrderID: 1}, placed{OrderID: 2, ID: strings.Repeat("x", 250)})
	if _, ok := errors.AsType[*transport.LimitError](err); !ok || !errors.Is(err, transport.ErrTooLarge) {
		t.Fatalf("Publish = %v, want a LimitError", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Publish(ctx, topic, placed{OrderID: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish with a cancelled context = %v", err)
	}
	if err := b.Publish(t.Context(), event.NewTopic("other", delivered{}), placed{}); !errors.Is(err, event.ErrUnknownType) {
		t.Errorf("Publish of a foreign type = %v", err)
	}
	if err := b.Publish(t.Context(), nil, placed{}); err == nil {
		t.Error("Publish to a nil topic = nil")
	}
}

func TestIdempotencyKeyIsStableThroughRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		var keys []string
		bus.Handle(b, topic, "billing", func(ctx context.Context, _ placed) error {
			keys = append(keys, bus.IdempotencyKey(ctx))
			if len(keys) < 3 {
				return errors.New("again")
			}
			return nil
		}, bus.Ignore[delivered]())
		r := start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1, ID: "e-1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if len(keys) != 3 || keys[0] != "billing:orders:e-1" || keys[1] != keys[0] || keys[2] != keys[0] {
			t.Errorf("keys %v", keys)
		}
		if k := bus.IdempotencyKey(t.Context()); k != "" {
			t.Errorf("outside a handler the key is %q", k)
		}
	})
}

package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func sqs(t *testing.T, opts ...memory.Option) *memory.Transport {
	t.Helper()
	return broker(t, append([]memory.Option{memory.WithStrict(memory.SQS), memory.WithLease(30 * time.Second)}, opts...)...)
}

// C25: a batch [a1 fails, b1, a2, b2]: b goes on, a2 is handed back unseen, and comes after a1.
func TestSQSFailureHandsBackTheRestOfItsKeyAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		publish(t, b, "orders", keyed("a", "a1"), keyed("b", "b1"), keyed("a", "a2"), keyed("b", "b2"))
		_, msgs := join(t, b, "orders", "g", 1) // one worker: it receives all four at once
		a1 := expect(t, msgs, "a1")
		d, _ := transport.FromContext(a1.Context())
		d.SetDelay(5 * time.Second)
		a1.Nack()
		expect(t, msgs, "b1").Ack()
		expect(t, msgs, "b2").Ack()
		began := time.Now()
		again := <-msgs
		if waited := time.Since(began); again.UUID != "a1" || deliveries(again) != 2 || waited > 5*time.Second {
			t.Fatalf("got %s, delivery %d, after %v; want a1 after its delay", again.UUID, deliveries(again), waited)
		}
		again.Ack()
		a2 := expect(t, msgs, "a2")
		if deliveries(a2) != 2 {
			t.Errorf("a2 is at delivery %d, want 2: it was received before, and no handler saw it", deliveries(a2))
		}
		a2.Ack()
	})
}

// C22: a handler that outlasts its lease is run once.
func TestSQSLeaseIsRenewedWhileItsHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		_, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		select {
		case again := <-msgs:
			t.Fatalf("%s was run twice", again.UUID)
		case <-m.Context().Done():
			t.Fatalf("context ended: %v", context.Cause(m.Context()))
		case <-time.After(100 * time.Second):
		}
		m.Ack()
		synctest.Wait()
		if n, inFlight := b.Renewals("orders", "g"); n < 9 || n > 10 || inFlight != 0 {
			t.Errorf("%d renewals in 100 s of a lease of 30 s, %d left in flight", n, inFlight)
		}
	})
}

// C22: a renewal that the broker refuses cancels the handler, and a handler has its message for twelve hours at most.
func TestSQSLeaseEndsAfterTwelveHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t, memory.WithLease(10*time.Minute))
		publish(t, b, "orders", keyed("a", "a1"), keyed("b", "b1"))
		_, msgs := join(t, b, "orders", "g", 1)
		m := expect(t, msgs, "a1") // while b1, of the same batch, waits for the worker
		began := time.Now()
		<-m.Context().Done()
		if held := time.Since(began); held < 11*time.Hour || held > 12*time.Hour {
			t.Errorf("held for %v, want almost 12 hours", held)
		}
		if cause := context.Cause(m.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("cause = %v, want ErrLeaseLost", cause)
		}
		for range 2 {
			again := <-msgs
			if deliveries(again) != 2 {
				t.Errorf("%s came at delivery %d, want 2: its lease was lost as well", again.UUID, deliveries(again))
			}
			again.Ack()
		}
	})
}

// C21: whatever ends a handler, nobody renews its lease any more, one beat later at the latest.
func TestSQSRenewalsStopWithTheHandler(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end   func(b *memory.Transport, m *message.Message)
		back  time.Duration // when the message is there again, at the latest
		fails bool
	}{
		"handler panics": {end: func(_ *memory.Transport, m *message.Message) {
			_, err := middleware.Recover()(func(*message.Message) ([]*message.Message, error) { panic("boom") })(m)
			if err == nil {
				panic("no error from a panic")
			}
			m.Nack()
		}},
		"ack fails":       {end: func(_ *memory.Transport, m *message.Message) { m.Ack() }, back: 30 * time.Second, fails: true},
		"receipt expires": {end: func(b *memory.Transport, _ *message.Message) { b.ExpireLease("orders", "g", "a1") }, back: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var failures int
				b := sqs(t, memory.FailAcks(func(string) error {
					if failures++; tc.fails && failures == 1 {
						return errors.New("connection reset")
					}
					return nil
				}))
				sub, msgs := join(t, b, "orders", "g", 1)
				publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"))
				m := expect(t, msgs, "a1")
				time.Sleep(45 * time.Second) // virtual: renewed four times, both of the batch
				tc.end(b, m)
				began := time.Now()
				again := <-msgs
				if waited := time.Since(began); again.UUID != "a1" || waited > tc.back {
					t.Fatalf("%s came after %v, want a1 within %v", again.UUID, waited, tc.back)
				}
				again.Ack()
				expect(t, msgs, "a2").Ack()
				synctest.Wait()
				n, inFlight := b.Renewals("orders", "g")
				time.Sleep(time.Hour)
				if later, _ := b.Renewals("orders", "g"); later != n || inFlight != 0 {
					t.Errorf("%d renewals after the end of all, %d in flight", later-n, inFlight)
				}
				closeAll(t, sub)
			})
		})
	}
}

// C23: ten messages of one receive, five seconds each, a lease of thirty, two members: each is handled once, in order.
func TestSQSBatchIsRenewedWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		for i := range 20 {
			publish(t, b, "orders", keyed(fmt.Sprint("k", i%2), fmt.Sprintf("%d", i)))
		}
		var mu sync.Mutex
		seen := make(map[string][]string)
		for range 2 {
			_, msgs := join(t, b, "orders", "g", 1)
			go func() {
				for m := range msgs {
					time.Sleep(5 * time.Second) // virtual: a handler's work
					mu.Lock()
					seen[transport.Key(m)] = append(seen[transport.Key(m)], m.UUID)
					mu.Unlock()
					if deliveries(m) != 1 {
						t.Errorf("%s is at delivery %d", m.UUID, deliveries(m))
					}
					m.Ack()
				}
			}()
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if got := fmt.Sprint(seen); got != "map[k0:[0 2 4 6 8 10 12 14 16 18] k1:[1 3 5 7 9 11 13 15 17 19]]" {
			t.Errorf("handled %v", got)
		}
	})
}

func TestSQSDelayIsInWholeSecondsAndEndsTwelveHoursAfterTheReceive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		_, msgs := join(t, b, "orders", "g", 1)
		publish(t, b, "orders", keyed("a", "a1"))
		for _, tc := range []struct{ held, asked, want time.Duration }{
			{0, 300 * time.Millisecond, time.Second},
			{0, 13 * time.Hour, 12 * time.Hour},
			{time.Hour, 12 * time.Hour, 11 * time.Hour},
		} {
			m := <-msgs
			time.Sleep(tc.held)
			d, _ := transport.FromContext(m.Context())
			d.SetDelay(tc.asked)
			nacked := time.Now()
			m.Nack()
			m = <-msgs
			if waited := time.Since(nacked); waited != tc.want {
				t.Errorf("held for %v, asked for %v: came after %v, want %v", tc.held, tc.asked, waited, tc.want)
			}
			m.Nack()
		}
		(<-msgs).Ack()
	})
}

func TestSQSAcceptsAnIdOnceInFiveMinutesEvenAfterItsAck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		_, msgs := join(t, b, "orders", "g", 1)
		publish(t, b, "orders", keyed("a", "a1"))
		expect(t, msgs, "a1").Ack()
		time.Sleep(4*time.Minute + 50*time.Second)
		publish(t, b, "orders", keyed("b", "a1")) // in another group, too
		if m := receive(msgs); m != nil {
			t.Fatalf("%s was accepted twice", m.UUID)
		}
		time.Sleep(10 * time.Second)
		publish(t, b, "orders", keyed("a", "a1"))
		expect(t, msgs, "a1").Ack()
	})
}

func TestSQSSizeIsCountedAsItIsSent(t *testing.T) {
	t.Parallel()
	limits := sqs(t).Capabilities().Limits
	size := func(payload string, metadata map[string]string) int {
		m := message.NewMessage("id", []byte(payload))
		for k, v := range metadata {
			m.Metadata[k] = v
		}
		return limits.Bytes(m)
	}
	id := len(event.MetaID) + len("String") + len("id")
	few := map[string]string{"a": "1", "b": "ż"}
	many := make(map[string]string)
	for i := range 30 {
		many[fmt.Sprint("header-", i)] = "v"
	}
	for name, tc := range map[string]struct{ got, least, most int }{
		"text":            {size("żółw", nil), id + 7, id + 7},
		"attributes":      {size("x", few), id + 1 + 2*len("aString") + 3, id + 1 + 2*len("aString") + 3},
		"bytes as base64": {size(strings.Repeat("\xff", 300), nil), id + 400, id + 450},
		"empty body":      {size("", nil), id + 1, id + 50},
		"empty attribute": {size("x", map[string]string{"a": ""}), id + 1 + len(`{"a":""}`), id + 50},
		"a strange name":  {size("x", map[string]string{"a b": "1"}), id + 1 + len(`{"a b":"1"}`), id + 60},
		"30 headers":      {size("x", many), id + 30*len(`"header-9":"v",`), id + 30*30},
	} {
		if tc.got < tc.least || tc.got > tc.most {
			t.Errorf("%s: %d bytes, want %d to %d", name, tc.got, tc.least, tc.most)
		}
	}
	binary := message.NewMessage("id", bytes.Repeat([]byte{0xff}, 900_000))
	if err := limits.Check(binary); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("900,000 bytes that take 1.2 million as base64: %v", err)
	}
	if err := limits.Check(keyed(strings.Repeat("k", 129), "id")); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("a key of 129 bytes: %v", err)
	}
}

// A crashed member's batch comes back when its visibility timeout is over, not before.
func TestSQSCrashedMembersBatchComesBackAfterItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := sqs(t)
		publish(t, b, "orders", keyed("a", "a1"), keyed("b", "b1"))
		_, dying := join(t, b, "orders", "g", 1)
		expect(t, dying, "a1")
		began := time.Now()
		b.Crash("g")
		_, msgs := join(t, b, "orders", "g", 1)
		for range 2 {
			m := <-msgs
			if waited := time.Since(began); waited < 29*time.Second || waited > 30*time.Second || deliveries(m) != 2 {
				t.Errorf("%s came after %v, delivery %d", m.UUID, waited, deliveries(m))
			}
			m.Ack()
		}
	})
}

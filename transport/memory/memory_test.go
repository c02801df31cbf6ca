package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func TestKeyIsDeliveredOneAtATimeWhileOthersGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 8)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
		a1 := expect(t, msgs, "a1")
		b1 := expect(t, msgs, "b1")
		if m := receive(msgs); m != nil {
			t.Fatalf("%s came while a1 was in flight", m.UUID)
		}
		a1.Ack()
		expect(t, msgs, "a2").Ack()
		b1.Ack()
	})
}

func TestConcurrencyBoundsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 2)
		publish(t, b, "orders", keyed("a", "a"), keyed("b", "b"), keyed("c", "c"))
		first, second := receive(msgs), receive(msgs) // in whichever order
		if first == nil || second == nil {
			t.Fatal("fewer than two came")
		}
		if m := receive(msgs); m != nil {
			t.Fatalf("%s came beyond the bound", m.UUID)
		}
		first.Ack()
		expect(t, msgs, "c")
	})
}

func TestNackRedeliversBeforeLaterEventsOfTheKeyNoSoonerThanTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 8)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
		began := time.Now()
		a1 := expect(t, msgs, "a1")
		d, _ := transport.FromContext(a1.Context())
		d.SetDelay(time.Hour)
		a1.Nack()
		expect(t, msgs, "b1").Ack()
		again := <-msgs
		if again.UUID != "a1" || time.Since(began) < time.Hour || deliveries(again) != 2 {
			t.Fatalf("got %s after %v, delivery %d", again.UUID, time.Since(began), deliveries(again))
		}
		again.Ack()
		expect(t, msgs, "a2").Ack()
	})
}

// A handler that always fails, for ten virtual seconds: attempts follow the schedule instead of spinning.
func TestNackFollowsTheScheduleInsteadOfSpinning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 8)
		publish(t, b, "orders", keyed("a", "a1"))
		var at []time.Duration
		began := time.Now()
		for delay := time.Second; time.Since(began) < 10*time.Second; delay *= 2 {
			m := <-msgs
			at = append(at, time.Since(began))
			d, _ := transport.FromContext(m.Context())
			d.SetDelay(delay)
			m.Nack()
		}
		if want := "[0s 1s 3s 7s 15s]"; fmt.Sprint(at) != want {
			t.Errorf("delivered at %v, want %s", at, want)
		}
	})
}

func TestGroupsEachGetEverythingAndMembersShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		var mu sync.Mutex
		got := make(map[string][]string)
		for _, member := range []string{"g1/1", "g1/2", "g2/1"} {
			group, _, _ := strings.Cut(member, "/")
			_, msgs := join(t, b, "orders", group, 4)
			go func() {
				for m := range msgs {
					mu.Lock()
					got[member] = append(got[member], m.UUID)
					mu.Unlock()
					time.Sleep(time.Millisecond) // virtual: a handler's work
					m.Ack()
				}
			}()
		}
		for i := range 100 {
			publish(t, b, "orders", keyed(fmt.Sprint(i%10), fmt.Sprint(i)))
		}
		time.Sleep(time.Minute) // virtual
		mu.Lock()
		defer mu.Unlock()
		if n := len(got["g1/1"]) + len(got["g1/2"]); n != 100 || len(got["g1/1"]) == 0 || len(got["g1/2"]) == 0 {
			t.Errorf("members of g1 got %d and %d, want 100 shared", len(got["g1/1"]), len(got["g1/2"]))
		}
		if len(got["g2/1"]) != 100 {
			t.Errorf("g2 got %d, want 100", len(got["g2/1"]))
		}
	})
}

func TestLostLeaseCancelsTheHandlerAndIgnoresItsAck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"))
		first := expect(t, msgs, "a1")
		if b.ExpireLease("orders", "g", "other") || !b.ExpireLease("orders", "g", "a1") {
			t.Fatal("ExpireLease found the wrong delivery")
		}
		<-first.Context().Done()
		if cause := context.Cause(first.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("cause = %v, want ErrLeaseLost", cause)
		}
		second := expect(t, msgs, "a1")
		first.Ack()
		if m := receive(msgs); m != nil {
			t.Fatalf("the late ack let %s pass", m.UUID)
		}
		if deliveries(second) != 2 {
			t.Errorf("delivery %d, want 2", deliveries(second))
		}
		second.Ack()
		expect(t, msgs, "a2").Ack()
	})
}

func TestLeaseOfALiveMemberLastsAsLongAsItsHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithLease(30*time.Second))
		_, first := join(t, b, "orders", "g", 1)
		_, second := join(t, b, "orders", "g", 1)
		publish(t, b, "orders", keyed("a", "a1"))
		var m, other *message.Message
		select {
		case m = <-first:
		case m = <-second:
		}
		select {
		case other = <-first:
		case other = <-second:
		case <-time.After(100 * time.Second):
		}
		if other != nil {
			t.Fatalf("%s was delivered twice while its handler ran", other.UUID)
		}
		if err := m.Context().Err(); err != nil {
			t.Errorf("context ended: %v", err)
		}
		m.Ack()
	})
}

func TestCrashedMembersWorkIsTakenOverAfterItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithLease(30*time.Second))
		_, dying := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"))
		lost := expect(t, dying, "a1")
		if n := b.Crash("g"); n != 1 {
			t.Fatalf("Crash ended %d subscriptions, want 1", n)
		}
		synctest.Wait()
		began := time.Now()
		_, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("b", "b1"))
		expect(t, msgs, "b1").Ack()
		lost.Ack() // too late: the process is gone
		m := <-msgs
		if waited := time.Since(began); m.UUID != "a1" || waited < 29*time.Second || waited > 31*time.Second {
			t.Fatalf("got %s after %v, want a1 after the lease", m.UUID, waited)
		}
		m.Ack()
		expect(t, msgs, "a2").Ack()
	})
}

func TestDedupWindowDropsARepeatedIdForItsLengthOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithDedupWindow(5*time.Minute))
		_, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"))
		expect(t, msgs, "a1").Ack()
		settled := 0
		repeat := keyed("a", "a1")
		repeat.SetContext(transport.OnSettled(t.Context(), func() { settled++ }))
		time.Sleep(4*time.Minute + 40*time.Second)
		publish(t, b, "orders", repeat)
		if m := receive(msgs); m != nil || settled != 1 {
			t.Fatalf("within the window: got %v, settled %d times", m, settled)
		}
		replay := keyed("a", "a1")
		replay.Metadata[event.MetaGeneration] = "1"
		publish(t, b, "orders", replay)
		expect(t, msgs, "a1").Ack()
		time.Sleep(20 * time.Second)
		publish(t, b, "orders", keyed("a", "a1"))
		expect(t, msgs, "a1").Ack()
	})
}

func TestRepeatedIdSettlesWithTheOriginal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithDedupWindow(time.Minute))
		_, msgs := join(t, b, "orders", "g", 4)
		settled := 0
		for range 2 {
			m := keyed("a", "a1")
			m.SetContext(transport.OnSettled(t.Context(), func() { settled++ }))
			publish(t, b, "orders", m)
		}
		m := expect(t, msgs, "a1")
		if settled != 0 {
			t.Fatal("settled before the ack")
		}
		m.Ack()
		synctest.Wait()
		if settled != 2 {
			t.Errorf("settled %d times, want once for each publish", settled)
		}
	})
}

func TestSettledWhenEverySubscribedGroupHasAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		settled := make(map[string]int)
		tracked := func(id string) *message.Message {
			m := keyed("a", id)
			m.SetContext(transport.OnSettled(t.Context(), func() { settled[id]++ }))
			return m
		}
		publish(t, b, "orders", tracked("before"))
		if settled["before"] != 1 {
			t.Error("without a group a message is settled at once")
		}
		_, one := join(t, b, "orders", "g1", 1)
		_, two := join(t, b, "orders", "g2", 1)
		expect(t, one, "before").Ack()
		publish(t, b, "orders", tracked("after"))
		expect(t, one, "after").Ack()
		m := expect(t, two, "after")
		m.Nack()
		synctest.Wait()
		if settled["after"] != 0 {
			t.Fatal("settled with one group open")
		}
		expect(t, two, "after").Ack()
		synctest.Wait()
		if settled["after"] != 1 {
			t.Errorf("settled %d times, want 1", settled["after"])
		}
	})
}

func TestPublishBlocksWhileAGroupIsFullUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithBuffer(2))
		_, msgs := join(t, b, "orders", "g", 1)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		blocked := []*message.Message{keyed("a", "a3"), keyed("a", "a4"), keyed("b", "b1")}
		for _, m := range blocked[:2] {
			m.SetContext(ctx)
		}
		done := make(chan error, 1)
		go func() { done <- b.Publisher().Publish("orders", blocked...) }()
		time.Sleep(2 * time.Second)
		expect(t, msgs, "a1").Ack()
		err := <-done
		pe, ok := errors.AsType[*transport.PublishError](err)
		if !ok || len(pe.Failures) != 2 || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Publish = %v", err)
		}
		if f := pe.Failures; f[0].ID != "a3" || f[1].ID != "a4" || !errors.Is(f[1].Err, transport.ErrSkipped) {
			t.Errorf("failures %+v, want a3 by its context, a4 skipped", f)
		}
		expect(t, msgs, "a2").Ack()
		expect(t, msgs, "b1").Ack()
	})
}

func TestLimitsAreRefusedByName(t *testing.T) {
	t.Parallel()
	b := broker(t, memory.WithLimits(transport.Limits{MessageBytes: 100}))
	big := message.NewMessage("big", make([]byte, 101))
	err := b.Publisher().Publish("orders", keyed("a", "ok"), big)
	le, ok := errors.AsType[*transport.LimitError](err)
	if !ok || !errors.Is(err, transport.ErrTooLarge) || le.Max != 100 || le.Got != 101 || le.ID != "big" {
		t.Errorf("Publish = %v", err)
	}
}

func TestDrainWaitsForHandlersAndTakesNothingIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		sub, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"))
		m := expect(t, msgs, "a1")
		drained := make(chan error, 1)
		go func() { drained <- sub.Drain(t.Context()) }()
		time.Sleep(time.Hour)
		if err := m.Context().Err(); err != nil {
			t.Errorf("context ended while draining: %v", err)
		}
		m.Ack()
		if err := <-drained; err != nil {
			t.Errorf("Drain = %v", err)
		}
		if m := receive(msgs); m != nil {
			t.Errorf("%s was taken in while draining", m.UUID)
		}
		closeAll(t, sub)
		_, next := join(t, b, "orders", "g", 4)
		m = expect(t, next, "a2")
		if deliveries(m) != 1 {
			t.Errorf("a2 is at delivery %d, want 1: nobody saw it before", deliveries(m))
		}
		m.Ack()
	})
}

func TestDrainPastItsDeadlineHandsBackUncounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		sub, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"), keyed("b", "b1"))
		cut := expect(t, msgs, "a1")
		expect(t, msgs, "b1").Ack()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := sub.Drain(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 left") {
			t.Errorf("Drain = %v, want the deadline and 1 left", err)
		}
		if cause := context.Cause(cut.Context()); !errors.Is(cause, transport.ErrShutdown) {
			t.Errorf("cause = %v, want ErrShutdown", cause)
		}
		closeAll(t, sub)
		cut.Ack() // too late
		_, next := join(t, b, "orders", "g", 4)
		again := expect(t, next, "a1")
		if deliveries(again) != 1 {
			t.Errorf("delivery %d, want 1: a shutdown counts nothing", deliveries(again))
		}
		again.Ack()
	})
}

func TestCloseIsIdempotentAndConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		sub, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"))
		held := expect(t, msgs, "a1")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { closeAll(t, sub) })
			wg.Go(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, open := <-msgs; open {
			t.Error("the channel is open after Close")
		}
		if cause := context.Cause(held.Context()); !errors.Is(cause, transport.ErrShutdown) {
			t.Errorf("cause = %v, want ErrShutdown", cause)
		}
		if err := b.Publisher().Publish("orders", keyed("a", "a2")); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Publish after Close = %v", err)
		}
		if _, err := b.Subscriber(transport.SubscriberConfig{Group: "g"}); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Subscriber after Close = %v", err)
		}
		if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Subscribe after Close = %v", err)
		}
	})
}

func TestSubscriberReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	_, err := broker(t).Subscriber(transport.SubscriberConfig{Concurrency: -1})
	if err == nil || !strings.Contains(err.Error(), "group is empty") || !strings.Contains(err.Error(), "concurrency is -1") {
		t.Errorf("Subscriber = %v", err)
	}
}

func TestBytesAndMetadataArriveUnchangedAndUnaliased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, one := join(t, b, "orders", "g1", 1)
		_, two := join(t, b, "orders", "g2", 1)
		sent := message.NewMessage("m", []byte("a\x00\xff\xfe"))
		for i := range 30 {
			sent.Metadata[fmt.Sprintf("h%d", i)] = []string{"", "zażółć", "line\nline"}[i%3]
		}
		want := sent.Copy()
		publish(t, b, "orders", sent)
		sent.Payload[0], sent.Metadata["h0"] = 'x', "changed by the publisher"
		m := expect(t, one, "m")
		m.Payload[0], m.Metadata["h1"] = 'y', "changed by a handler"
		m.Nack()
		for _, msgs := range []<-chan *message.Message{one, two} {
			got := expect(t, msgs, "m")
			if string(got.Payload) != "a\x00\xff\xfe" || fmt.Sprint(got.Metadata) != fmt.Sprint(want.Metadata) {
				t.Errorf("got %q %v", got.Payload, got.Metadata)
			}
			got.Ack()
		}
	})
}

// Sixteen publishers, failing handlers, members that come, go and crash, expired leases: of every key each message is
// acknowledged, in order, and nothing is lost.
func TestOrderPerKeySurvivesEverything(t *testing.T) {
	t.Parallel()
	for mode, opts := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			for run := range 8 {
				seed := uint64(time.Now().UnixNano()) + uint64(run)
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { storm(t, seed, opts...) })
				})
			}
		})
	}
}

func storm(t *testing.T, seed uint64, opts ...memory.Option) {
	const publishers, perPublisher = 16, 40
	b := broker(t, append([]memory.Option{memory.WithLease(time.Second), memory.WithBuffer(100)}, opts...)...)
	rng := rand.New(rand.NewPCG(seed, 3))
	var mu sync.Mutex
	acked := make(map[string]int) // by key: how many, which is the next number
	handle := func(m *message.Message, verdict int) {
		key, n := m.Metadata["key"], 0
		fmt.Sscan(m.Metadata["n"], &n)
		time.Sleep(time.Duration(verdict%7) * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.Context().Err() != nil:
		case n > acked[key]:
			t.Errorf("key %s: %d came with %d unfinished", key, n, acked[key])
		case verdict < 70:
			if n == acked[key] {
				acked[key]++
			}
			m.Ack()
		default:
			d, _ := transport.FromContext(m.Context())
			d.SetDelay(time.Duration(verdict) * time.Millisecond)
			m.Nack()
		}
	}
	consume := func(msgs <-chan *message.Message, stop <-chan struct{}, rng *rand.Rand) {
		for {
			select {
			case m, ok := <-msgs:
				if !ok {
					return
				}
				verdict := rng.IntN(100)
				go handle(m, verdict)
			case <-stop:
				return
			}
		}
	}
	done := make(chan struct{})
	go func() {
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				for n := range perPublisher {
					m := keyed(fmt.Sprint(p), fmt.Sprintf("%d-%d", p, n))
					m.Metadata["key"], m.Metadata["n"] = fmt.Sprint(p), fmt.Sprint(n)
					publish(t, b, "orders", m)
				}
			})
		}
		wg.Wait()
		close(done)
	}()
	for finished := false; !finished; {
		sub, msgs := join(t, b, "orders", "g", 1+rng.IntN(8))
		stop := make(chan struct{})
		crng := rand.New(rand.NewPCG(seed, rng.Uint64()))
		go consume(msgs, stop, crng)
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		switch rng.IntN(4) {
		case 0:
			b.Crash("g")
		case 2:
			b.Rebalance("orders", "g")
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
		case 1:
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_ = sub.Drain(ctx) // may leave some: they are handed back
			cancel()
		}
		close(stop)
		closeAll(t, sub)
		time.Sleep(2 * time.Second) // leases of the crashed end
		mu.Lock()
		finished = true
		for p := range publishers {
			finished = finished && acked[fmt.Sprint(p)] == perPublisher
		}
		mu.Unlock()
	}
	<-done
}

func TestSubscribeAfterItsContextEndedIsRefused(t *testing.T) {
	t.Parallel()
	b := broker(t)
	sub, err := b.Subscriber(transport.SubscriberConfig{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sub.Subscribe(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe = %v", err)
	}
}

func TestTopicKeepsItsNewestForTheFirstGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t, memory.WithBuffer(2))
		publish(t, b, "orders", keyed("a", "a1"), keyed("a", "a2"), keyed("a", "a3"))
		_, msgs := join(t, b, "orders", "g", 1)
		expect(t, msgs, "a2").Ack()
		expect(t, msgs, "a3").Ack()
		_, late := join(t, b, "orders", "late", 1)
		if m := receive(late); m != nil {
			t.Errorf("a later group got %s", m.UUID)
		}
	})
}

func ExampleNew() {
	b := memory.New()
	defer b.Close()
	sub, _ := b.Subscriber(transport.SubscriberConfig{Group: "fulfillment"})
	msgs, _ := sub.Subscribe(context.Background(), "orders")
	_ = b.Publisher().Publish("orders", message.NewMessage("1", []byte("placed")))
	m := <-msgs
	fmt.Println(string(m.Payload))
	m.Ack()
	// Output: placed
}

// An ack that came before the close counts, whoever looks first.
func TestAnAckJustBeforeCloseCounts(t *testing.T) {
	t.Parallel()
	for mode, opts := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				synctest.Test(t, func(t *testing.T) {
					b := broker(t, opts...)
					const many = 64
					sub, msgs := join(t, b, "orders", "g", many)
					var got []*message.Message
					for i := range many {
						publish(t, b, "orders", keyed(fmt.Sprint("k", i), fmt.Sprint("e", i)))
					}
					for range many {
						got = append(got, receive(msgs))
					}
					for _, m := range got {
						m.Ack()
					}
					if err := sub.Close(); err != nil {
						t.Fatal(err)
					}
					if n := b.Held(); n != 0 {
						t.Errorf("%d are held after the ack", n)
					}
				})
			}
		})
	}
}

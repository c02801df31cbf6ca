package sqs_test

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

	"github.com/ThreeDotsLabs/watermill/message"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

const visibility = "ChangeMessageVisibilityBatch"

// C21: whatever ends a message ends its extensions: its ack, its nack, a lost receipt, a broker that refuses deletes, shutdown.
func TestExtensionsStopWithTheirMessage(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *fakeaws.Broker, sub transport.Subscriber, m *message.Message){
		"acked":  func(_ *fakeaws.Broker, _ transport.Subscriber, m *message.Message) { m.Ack() },
		"nacked": func(_ *fakeaws.Broker, _ transport.Subscriber, m *message.Message) { delayed(m, time.Hour); m.Nack() },
		"receipt lost": func(b *fakeaws.Broker, _ transport.Subscriber, _ *message.Message) {
			b.Steal(queue, "a1", time.Hour)
		},
		"closed": func(_ *fakeaws.Broker, sub transport.Subscriber, _ *message.Message) { _ = sub.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := fakeaws.New()
				tr := open(t, b)
				sub, msgs := join(t, tr, 4)
				publish(t, tr, keyed("a", "a1"))
				m := expect(t, msgs, "a1")
				time.Sleep(2 * time.Minute)
				if b.Calls()[visibility] == 0 {
					t.Fatal("a message held for two minutes was never extended")
				}
				end(b, sub, m)
				time.Sleep(sqs.DefaultLease) // one tick to notice
				before := b.Calls()[visibility]
				time.Sleep(10 * time.Minute)
				if n := b.Calls()[visibility] - before; n != 0 {
					t.Errorf("%d extensions after its end", n)
				}
			})
		})
	}
}

func delayed(m *message.Message, d time.Duration) {
	if del, ok := transport.FromContext(m.Context()); ok {
		del.SetDelay(d)
	}
}

// C22
func TestAHandlerLongerThanItsLeaseRunsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, one := join(t, tr, 4)
		_, two := join(t, open(t, b), 4)
		publish(t, tr, keyed("a", "a1"))
		var m *message.Message
		select {
		case m = <-one:
		case m = <-two:
		}
		select {
		case <-one:
			t.Error("a second run")
		case <-two:
			t.Error("a second run elsewhere")
		case <-time.After(100 * time.Second):
		}
		m.Ack()
		synctest.Wait()
		time.Sleep(time.Second)
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
	})
}

// C22, the other half.
func TestARefusedExtensionCancelsTheHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"))
		m := expect(t, msgs, "a1")
		if !b.Steal(queue, "a1", time.Hour) {
			t.Fatal("a1 is not there")
		}
		<-m.Context().Done()
		if cause := context.Cause(m.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("the context ended with %v", cause)
		}
		m.Ack()
		silent(t, msgs, 10*time.Minute) // a2 stays behind a1, which another has
		if left := b.Left(queue); !slices.Equal(left, []string{"a1", "a2"}) {
			t.Errorf("queue has %v: a late ack deleted what another holds", left)
		}
	})
}

func TestALeaseThatCannotBeExtendedInTimeIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		b.Inject(fakeaws.Faults{Call: func(string) error { return fakeaws.Error("ExpiredToken", "expired") }})
		began := time.Now()
		<-m.Context().Done()
		if cause := context.Cause(m.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("the context ended with %v", cause)
		}
		if took := time.Since(began); took > sqs.DefaultLease*5/4 {
			t.Errorf("given up after %v, the lease is %v", took, sqs.DefaultLease)
		}
		b.Inject(fakeaws.Faults{})
		expect(t, msgs, "a1").Ack()
	})
}

// C23: the tenth message of a batch waits for nine handlers and keeps its lease.
func TestWhatWaitsInABatchKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		pub := open(t, b)
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprintf("a%d", i))
			publish(t, pub, keyed("a", ids[i]))
		}
		var mu sync.Mutex
		var got []string
		all := make(chan struct{})
		for range 2 {
			_, msgs := join(t, open(t, b), 16)
			go func() {
				for m := range msgs {
					time.Sleep(5 * time.Second)
					mu.Lock()
					if got = append(got, m.UUID); len(got) == 10 {
						close(all)
					}
					mu.Unlock()
					m.Ack()
				}
			}()
		}
		<-all
		time.Sleep(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(got, ids) {
			t.Errorf("handled %v, want each once in order", got)
		}
	})
}

// C25: a failure concerns its group alone. a2 is never handled before a1 and comes after it from the next receive.
func TestAFailureHandsBackTheRestOfItsGroupAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("a", "a1"), keyed("b", "b1"), keyed("a", "a2"), keyed("b", "b2"))
		_, msgs := join(t, tr, 8)
		var order []string
		failed := false
		for len(order) < 5 {
			m := receive(msgs, time.Hour)
			if m == nil {
				t.Fatalf("got %v and no more", order)
			}
			order = append(order, m.UUID)
			if m.UUID == "a1" && !failed {
				failed = true
				delayed(m, time.Minute)
				m.Nack()
				continue
			}
			m.Ack()
		}
		a := slices.DeleteFunc(slices.Clone(order), func(id string) bool { return id[0] != 'a' })
		if !slices.Equal(a, []string{"a1", "a1", "a2"}) || order[4] != "a2" || order[3] != "a1" {
			t.Errorf("handled %v, want b to go on meanwhile and a2 after a1", order)
		}
	})
}

// C26: a handler that always fails is called as the schedule says, not as often as the broker can.
func TestANackFollowsTheScheduleInsteadOfSpinning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"))
		var at []time.Duration
		began := time.Now()
		for i := range 4 {
			m := expect(t, msgs, "a1")
			at = append(at, time.Since(began).Truncate(time.Second))
			delayed(m, time.Second<<i)
			m.Nack()
		}
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("called at %v, want %v", at, want)
		}
	})
}

// C39
func TestOneKeysTraceIsThatOfEveryTransport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 8)
		publish(t, tr, keyed("k", "1"), keyed("k", "2"), keyed("k", "3"))
		var trace []string
		for n := 0; len(trace) < 5; n++ {
			m := receive(msgs, time.Minute)
			trace = append(trace, m.UUID)
			if n < 2 {
				delayed(m, time.Second)
				m.Nack()
			} else {
				m.Ack()
			}
		}
		if got := strings.Join(trace, ","); got != "1,1,1,2,3" {
			t.Errorf("trace %s", got)
		}
	})
}

// SQS counts 12 hours from a message's receipt: a longer delay is cut to what is left, not refused.
func TestADelayIsCutToWhatIsLeftOfTwelveHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		time.Sleep(2 * time.Hour)
		delayed(m, tr.Capabilities().MaxDelay)
		m.Nack()
		time.Sleep(time.Second)
		if left := b.Invisible(queue, "a1"); left < 9*time.Hour+59*time.Minute || left > 10*time.Hour {
			t.Errorf("invisible for %v, want 10 h less a little", left)
		}
		if m := receive(msgs, 11*time.Hour); m == nil || m.UUID != "a1" {
			t.Fatal("it did not come again")
		} else {
			m.Ack()
		}
	})
}

func TestAnAckIsDeletedInTheEndAndHandledOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"))
		_, msgs := join(t, tr, 4)
		recovered := time.Now().Add(20 * time.Minute)
		b.Inject(fakeaws.Faults{Call: func(op string) error {
			if op == "DeleteMessageBatch" && time.Now().Before(recovered) {
				return fakeaws.Error("InternalFailure", "sorry")
			}
			return nil
		}})
		expect(t, msgs, "a1").Ack()
		expect(t, msgs, "a2").Ack()
		silent(t, msgs, 25*time.Minute)
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
	})
}

// Neither the delete nor the extension of the lease gets through: the message comes again, and is only deleted.
func TestAFinishedMessageThatComesAgainIsOnlyDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"))
		_, msgs := join(t, tr, 4)
		recovered := time.Now().Add(2 * time.Minute)
		b.Inject(fakeaws.Faults{Call: func(op string) error {
			if (op == "DeleteMessageBatch" || op == visibility) && time.Now().Before(recovered) {
				return fakeaws.Error("InternalFailure", "sorry")
			}
			return nil
		}})
		expect(t, msgs, "a1").Ack()
		expect(t, msgs, "a2").Ack()
		silent(t, msgs, 10*time.Minute)
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
		publish(t, tr, keyed("a", "a3"))
		expect(t, msgs, "a3").Ack()
	})
}

func TestDeletesShareCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		var sent []*message.Message
		for i := range 40 {
			sent = append(sent, keyed(fmt.Sprint(i), fmt.Sprintf("m%d", i)))
		}
		publish(t, tr, sent...)
		_, msgs := join(t, tr, 64)
		for range 40 {
			m := receive(msgs, time.Minute)
			m.Ack()
		}
		time.Sleep(time.Second)
		if n := b.Calls()["DeleteMessageBatch"]; n > 6 {
			t.Errorf("40 deletes took %d calls", n)
		}
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
	})
}

func TestAnIdleSubscriptionPollsThreeTimesAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		join(t, open(t, b), 64)
		time.Sleep(10 * time.Minute)
		if n := b.Calls()["ReceiveMessage"]; n < 30 || n > 32 {
			t.Errorf("%d polls in ten minutes, want 30", n)
		}
	})
}

func TestDrainReturnsWhatIsNotStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"), keyed("a", "a3"), keyed("b", "b1"))
		sub, msgs := join(t, tr, 1)
		first := receive(msgs, time.Minute)
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- sub.Drain(t.Context()) }()
		time.Sleep(time.Second)
		if d := b.Invisible(queue, "b1"); d != 0 && first.UUID != "b1" {
			t.Errorf("b1, which nobody has, stays invisible for %v", d)
		}
		time.Sleep(time.Hour)
		if err := first.Context().Err(); err != nil {
			t.Errorf("the handler's context: %v", err)
		}
		first.Ack()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if left := b.Left(queue); len(left) != 3 || slices.Contains(left, first.UUID) {
			t.Errorf("queue has %v", left)
		}
	})
}

// An hour of faults of every kind: throttling, lost answers, entries that fail, leases that end. Nothing is lost, and each
// key's first deliveries are in order.
func TestNothingIsLostUnderRandomFaults(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		const keys, each = 20, 20
		b := fakeaws.New()
		pub := open(t, b)
		for n := range each {
			var batch []*message.Message
			for k := range keys {
				batch = append(batch, keyed(fmt.Sprint(k), fmt.Sprintf("%d/%d", k, n)))
			}
			publish(t, pub, batch...)
		}
		var mu sync.Mutex
		rnd := rand.New(rand.NewPCG(seed, 2))
		chance := func(p float64) bool {
			mu.Lock()
			defer mu.Unlock()
			return rnd.Float64() < p
		}
		var members []<-chan *message.Message
		for range 2 {
			_, msgs := join(t, open(t, b), 16)
			members = append(members, msgs)
		}
		b.Inject(fakeaws.Faults{
			Latency: 5 * time.Millisecond,
			Call: func(string) error {
				switch {
				case chance(0.3):
					return fakeaws.Error("RequestThrottled", "slow down")
				case chance(0.05):
					return fakeaws.LostAnswer()
				}
				return nil
			},
			Entry: func(string, string, string) string {
				if chance(0.05) {
					return "InternalError"
				}
				return ""
			},
		})
		next := make(map[string]int)
		total, all := 0, make(chan struct{})
		handle := func(m *message.Message) {
			time.Sleep(2 * time.Millisecond)
			if chance(0.02) {
				b.Expire("orders", m.UUID)
			}
			if chance(0.1) {
				delayed(m, time.Second)
				m.Nack()
				return
			}
			if m.Context().Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			key, text, _ := strings.Cut(m.UUID, "/")
			var n int
			fmt.Sscan(text, &n)
			switch {
			case n > next[key]:
				t.Errorf("key %s: %d handled before %d", key, n, next[key])
			case n == next[key]:
				next[key]++
				if total++; total == keys*each {
					close(all)
				}
			}
			m.Ack()
		}
		for _, msgs := range members {
			go func() {
				for m := range msgs {
					go handle(m)
				}
			}()
		}
		select {
		case <-all:
		case <-time.After(3 * time.Hour):
			mu.Lock()
			defer mu.Unlock()
			t.Fatalf("handled %d of %d: %v; queue has %d", total, keys*each, next, len(b.Left(queue)))
		}
		b.Inject(fakeaws.Faults{})
		time.Sleep(10 * time.Minute)
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
	})
}

// An extension that is on its way when its message is nacked must not undo the delay.
func TestAnExtensionOnItsWayDoesNotUndoADelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		extending := make(chan struct{})
		var slow atomic.Bool
		b.Inject(fakeaws.Faults{Call: func(op string) error {
			if op == visibility && slow.CompareAndSwap(false, true) {
				close(extending)
				time.Sleep(3 * time.Second) // before it takes effect
			}
			return nil
		}})
		<-extending
		delayed(m, time.Hour)
		m.Nack()
		time.Sleep(time.Minute)
		if left := b.Invisible(queue, "a1"); left < 58*time.Minute {
			t.Errorf("invisible for %v more, want most of an hour", left)
		}
	})
}

// stubborn does not hear that a poll is no longer wanted.
type stubborn struct{ *fakeaws.Broker }

func (s stubborn) ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, opts ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error) {
	return s.Broker.ReceiveMessage(context.WithoutCancel(ctx), in, opts...)
}

func TestWhatAPollBringsAfterTheEndIsHandedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, stubborn{b})
		pub := open(t, b)
		sub, _ := join(t, tr, 4)
		synctest.Wait() // it polls
		closed := make(chan error, 1)
		go func() { closed <- sub.Close() }()
		time.Sleep(time.Second)
		publish(t, pub, keyed("a", "a1"))
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if left := b.Invisible(queue, "a1"); left != 0 {
			t.Errorf("what nobody has stays invisible for %v", left)
		}
	})
}

// Its lease was lost unnoticed while its handler finished. The delete is refused; when it comes again, its effect is done.
func TestAMessageFinishedWithoutItsLeaseIsOnlyDeletedWhenItComesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		_, msgs := join(t, tr, 4)
		publish(t, tr, keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		b.Steal(queue, "a1", time.Minute)
		m.Ack()
		silent(t, msgs, 10*time.Minute)
		if left := b.Left(queue); len(left) != 0 {
			t.Errorf("queue has %v", left)
		}
	})
}

// The handler is done when its member closes, though the member may not have noticed: it must not hand back what is acked.
func TestAnAckJustBeforeCloseCounts(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			b := fakeaws.New()
			tr := open(t, b)
			sub, msgs := join(t, tr, 8)
			var sent []*message.Message
			for i := range 8 {
				sent = append(sent, keyed(fmt.Sprint(i), fmt.Sprintf("m%d", i)))
			}
			publish(t, tr, sent...)
			var got []*message.Message
			for range 8 {
				got = append(got, receive(msgs, time.Minute))
			}
			for _, m := range got {
				m.Ack()
			}
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
			if left := b.Left(queue); len(left) != 0 {
				t.Fatalf("queue has %v", left)
			}
		})
	}
}

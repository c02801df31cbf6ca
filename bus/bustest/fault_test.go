package bustest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/transport"
)

func TestDuplicatesArriveAndAreSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.Duplicate(2)
		k.Record(orders, placed{OrderID: 1, ID: "a"}, placed{OrderID: 2, ID: "b"}, placed{OrderID: 3, ID: "c"})
		k.Settle()
		k.Handled().Want(3)
		k.Skipped().Want(2)
		k.Published().Want(3)
	})
}

func TestDelayedDeliveriesAreLateAndInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.DelayDelivery(time.Hour)
		began := time.Now()
		k.Publish(orders, placed{OrderID: 1, N: 1, ID: "a"}, placed{OrderID: 1, N: 2, ID: "b"})
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		k.Handled().Want(0)
		k.Settle()
		k.Handled().WantIDs("a", "b")
		if took := time.Since(began); took < time.Hour {
			t.Errorf("took %v", took)
		}
		k.DelayDelivery(0)
		k.Publish(orders, placed{OrderID: 1, N: 3, ID: "c"})
		synctest.Wait()
		k.Handled().WantIDs("a", "b", "c")
		for _, e := range k.Handled().All() {
			if e.Attempt != 1 {
				t.Errorf("attempt %d of %s: the delay was taken for an attempt", e.Attempt, e.ID)
			}
		}
	})
}

func TestReorderedKeysKeepTheirOwnOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.ReorderKeys(time.Minute, 1)
		var want []string
		for n := range uint64(5) {
			for order := range int64(5) {
				e := placed{OrderID: order, N: n + 1, ID: fmt.Sprint(string(rune('a'+order)), n+1)}
				want = append(want, e.ID)
				k.Record(orders, e)
			}
		}
		k.Settle()
		for key, id := range map[string]string{"0": "a", "4": "e"} {
			k.Handled().Key(key).WantIDs(id+"1", id+"2", id+"3", id+"4", id+"5")
		}
		if got := k.Handled().Want(25).IDs(); slices.Equal(got, want) {
			t.Error("no key overtook another")
		}
	})
}

func TestFailedPublishIsTriedAgainByTheRelayAndReportedByTheBus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.FailPublish(2, nil)
		k.Record(orders, placed{OrderID: 1, N: 1, ID: "a"}, placed{OrderID: 1, N: 2, ID: "b"}, placed{OrderID: 1, N: 3, ID: "c"},
			placed{OrderID: 2, N: 1, ID: "d"})
		k.Settle()
		k.Handled().Key("1").WantIDs("a", "b", "c")
		k.Published().Want(4)
		if n := k.Outbox().Stats().Failures; n != 1 {
			t.Errorf("%d failures, want one", n)
		}
		boom := errors.New("boom")
		k.FailPublish(1, boom)
		err := k.Bus().Publish(t.Context(), orders, placed{OrderID: 1, N: 4, ID: "e"}, placed{OrderID: 1, N: 5, ID: "f"},
			placed{OrderID: 2, N: 2, ID: "g"})
		failed, ok := errors.AsType[*bus.PublishError](err)
		if !ok || !errors.Is(err, boom) || len(failed.Failures) != 2 || failed.Failures[1].ID != "f" || !errors.Is(failed.Failures[1].Err, transport.ErrSkipped) {
			t.Errorf("Publish = %v", err)
		}
		k.Settle()
		k.Handled().Key("2").WantIDs("d", "g")
	})
}

func TestRowsThatAreRefusedForGoodAreSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.FailPublish(1, transport.ErrTooLarge)
		k.Record(orders, placed{OrderID: 1, ID: "a"})
		k.Settle()
		k.Published().Want(0)
		if d, err := k.Outbox().Depth(t.Context()); err != nil || d.Failed != 1 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

func TestFailedAttemptUndoesWhatTheHandlerDid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := bustest.New(t)
		insert, list := effects(t, k)
		calls := 0
		bus.Handle(k.Bus(), orders, "fulfillment", func(ctx context.Context, e placed) error {
			calls++
			return insert(ctx, e)
		}, bus.Ignore[shipped]())
		k.Start()
		k.FailAttempt(2, nil)
		k.Record(orders, placed{OrderID: 1, N: 1, ID: "a"}, placed{OrderID: 1, N: 2, ID: "b"})
		k.Settle()
		k.Handled().WantIDs("a", "b")
		retried := k.Retried().WantIDs("b").All()
		if !errors.Is(retried[0].Err, bustest.ErrFault) || calls != 3 || list() != "1.1 1.2" {
			t.Errorf("retried %s, %d calls, effects %s", retried[0], calls, list())
		}
	})
}

func TestExpiredLeaseCancelsTheHandlerAndDeliversAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var k *bustest.Kit
		calls := 0
		k = fulfilling(t, func(ctx context.Context, e placed) error {
			if calls++; calls == 1 {
				k.ExpireLease(e.PartitionKey())
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, bustest.WithBus(bus.WithTimeout(0)))
		k.Record(orders, placed{OrderID: 1, ID: "a"})
		k.Settle()
		k.Handled().WantIDs("a")
		if cut := k.Retried().WantIDs("a").All(); calls != 2 || !errors.Is(cut[0].Err, transport.ErrLeaseLost) {
			t.Errorf("%d calls, the first ended with %v", calls, cut[0].Err)
		}
	})
}

func TestCrashedProcessIsStartedAgain(t *testing.T) {
	t.Parallel()
	for _, p := range bustest.Points() {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k := bustest.New(t)
				insert, list := effects(t, k)
				bus.Handle(k.Bus(), orders, "fulfillment", insert, bus.Ignore[shipped]())
				k.Start()
				first := k.Bus()
				k.CrashAt(p)
				k.Record(orders, placed{OrderID: 1, N: 1}, placed{OrderID: 1, N: 2})
				k.Settle()
				k.Recorded().Want(2)
				if got := list(); got != "1.1 1.2" {
					t.Errorf("effects %s", got)
				}
				byTest := p == bustest.Recorded || p == bustest.Committed
				if same := k.Bus() == first; same != byTest {
					t.Errorf("the bus is the same: %t; it dies with its process", same)
				}
			})
		})
	}
}

// naive acknowledges what it has seen before, seen or not: the mistake that an inbox avoids.
func naive(seen map[string]bool) bus.SubscribeOption {
	return bus.WithMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if seen[msg.UUID] {
				return nil, nil
			}
			seen[msg.UUID] = true
			return next(msg)
		}
	})
}

// The checks of EveryCrash must find what is broken, or they are worth nothing.
func TestEveryCrashFindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	scenario := func(broken bool) func(*testing.T, *bustest.Kit) {
		return func(t *testing.T, k *bustest.Kit) {
			insert, _ := effects(t, k)
			var opts []bus.SubscribeOption
			if broken {
				opts = append(opts, naive(make(map[string]bool)))
			}
			bus.Handle(k.Bus(), orders, "fulfillment", insert, append(opts, bus.Ignore[shipped]())...)
			k.Start()
			for n := range uint64(3) {
				k.Record(orders, placed{OrderID: 1, N: n + 1})
			}
		}
	}
	calm := bustest.Rehearse(t, "", scenario(false))
	check := func(o bustest.Outcome) string {
		tb := new(fakeTB)
		o.Check(tb, calm)
		return strings.Join(tb.said, "\n")
	}
	wantSaid(t, check(calm))
	t.Run("remembers before success", func(t *testing.T) {
		wantSaid(t, check(bustest.Rehearse(t, bustest.Handled, scenario(true))), "key 1, in group fulfillment: 2, undisturbed 3")
	})
	t.Run("lost", func(t *testing.T) {
		o := bustest.Rehearse(t, "", scenario(false))
		o.Forget(0)
		wantSaid(t, check(o), "lost: group fulfillment never acknowledged orders order.placed key=1")
	})
	t.Run("out of order", func(t *testing.T) {
		o := bustest.Rehearse(t, "", scenario(false))
		o.Swap(0, 1)
		wantSaid(t, check(o), "out of order: group fulfillment was done with")
	})
	t.Run("repeated", func(t *testing.T) {
		o := bustest.Rehearse(t, "", scenario(false))
		o.Repeat()
		wantSaid(t, check(o), "repeated: group fulfillment committed the effect of orders order.placed, key 1", "2 times")
	})
}

package bustest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
)

// fulfilling starts a kit whose handler of placed is fn.
func fulfilling(tb testing.TB, fn func(context.Context, placed) error, opts ...bustest.Option) *bustest.Kit {
	tb.Helper()
	k := bustest.New(tb, opts...)
	bus.Handle(k.Bus(), orders, "fulfillment", fn, bus.Ignore[shipped]())
	k.Start()
	return k
}

func done(context.Context, placed) error { return nil }

// twice is a retry policy of two attempts, an hour apart.
var twice = bustest.WithBus(bus.WithRetry(middleware.RetryPolicy{
	MaxAttempts: 2, InitialDelay: time.Hour, MaxDelay: time.Hour, Jitter: func() float64 { return 1 },
}))

func TestListsSayWhatHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, func(_ context.Context, e placed) error {
			if e.OrderID == 2 {
				return errors.New("no such order")
			}
			return nil
		}, twice)
		k.Record(orders, placed{OrderID: 1, N: 2, ID: "a"}, placed{OrderID: 2, N: 1, ID: "b"})
		k.Publish(orders, shipped{OrderID: 3})
		k.Settle()
		k.Record(orders, placed{OrderID: 1, N: 1, ID: "late"})
		k.Settle()
		k.Recorded().WantIDs("a", "b", "late")
		k.Recorded().Key("1").WantIDs("a", "late")
		k.Published().Want(4).Type("order.shipped").Key("3").Want(1)
		k.Handled().Topic("orders").Group("fulfillment").WantIDs("a")
		k.Skipped().WantIDs("late")
		k.Retried().WantIDs("b")
		dead := k.DeadLettered().WantIDs("b").All()
		if len(dead) == 1 && (dead[0].Attempt != 2 || dead[0].Err.Error() != "no such order" || dead[0].Type != "order.placed" ||
			string(dead[0].Data) != `{"orderId":2,"n":1}`) {
			t.Errorf("dead letter %s, data %s", dead[0], dead[0].Data)
		}
	})
}

func TestWithoutAnInboxDeadLettersArePublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, func(context.Context, placed) error { return errors.New("boom") }, twice, bustest.WithoutInbox())
		k.Publish(orders, placed{OrderID: 1, ID: "a"})
		k.Settle()
		dead := k.DeadLettered().Topic("orders").Group("fulfillment").Type("order.placed").WantIDs("a").All()
		if dead[0].Attempt != 2 || dead[0].Err.Error() != "boom" {
			t.Errorf("dead letter %s", dead[0])
		}
		k.Published().WantIDs("a")
		k.Retried().WantIDs("a")
		k.Handled().Want(0)
	})
}

func TestAssertionsSayWhatDidHappen(t *testing.T) {
	t.Parallel()
	tb := new(fakeTB)
	said := tb.run(func() {
		k := fulfilling(tb, done)
		k.Handled().Want(1)
		k.Record(orders, placed{OrderID: 7, ID: "a"}, placed{OrderID: 8, ID: "b"})
		k.Settle()
		k.Handled().Type("order.placed").Key("7").Want(1).Want(2)
		k.Handled().Key("8").WantIDs("a")
		if text := k.Handled().Key("7").String(); !strings.Contains(text, "orders order.placed key=7 group=fulfillment id=a attempt=1\n") {
			t.Errorf("the list is written as %q", text)
		}
		k.ExpireLease("7")
	})
	wantSaid(t, said, "handled: 0, want 1\n  nothing was handled",
		"handled of type order.placed with key 7: 1, want 2\n  handled in all:\n    orders order.placed key=",
		"handled with key 8: ids [b], want [a]", `no delivery of it is in hand`)
	if n := strings.Count(said, "want 1\n"); n != 1 {
		t.Errorf("a wish that was fulfilled was complained about:\n%s", said)
	}
}

func TestLongListsAreCut(t *testing.T) {
	t.Parallel()
	tb := new(fakeTB)
	wantSaid(t, tb.run(func() {
		k := fulfilling(tb, done)
		for i := range int64(25) {
			k.Record(orders, placed{OrderID: i})
		}
		k.Settle()
		k.Recorded().Want(1)
	}), "recorded: 25, want 1", "and 5 more")
}

func TestEverythingWorksOutsideABubble(t *testing.T) {
	t.Parallel()
	k := fulfilling(t, done)
	k.FailAttempt(1, bus.RetryAfter(errors.New("once"), time.Millisecond))
	k.Record(orders, placed{OrderID: 1}, placed{OrderID: 2})
	k.Settle()
	k.Handled().Want(2)
	k.Retried().Want(1)
}

func TestSettleSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		test func(tb testing.TB)
		says []string
	}{
		"nothing runs": {func(tb testing.TB) {
			k := bustest.New(tb)
			k.Record(orders, placed{OrderID: 1}, placed{OrderID: 2})
			k.Settle()
		}, []string{"nothing runs: call Start first", "outbox 1 has 2 rows to publish"}},
		"a handler hangs": {func(tb testing.TB) {
			k := fulfilling(tb, func(ctx context.Context, _ placed) error {
				<-ctx.Done()
				return ctx.Err()
			}, bustest.WithPatience(time.Hour), bustest.WithBus(bus.WithTimeout(0)))
			k.Publish(orders, placed{OrderID: 7, ID: "e-1"})
			k.Settle()
		}, []string{"not within 1h0m0s", "1 messages", "in a handler: orders group=fulfillment key=7 id=e-1"}},
		"a retry is far away": {func(tb testing.TB) {
			k := fulfilling(tb, func(context.Context, placed) error { return bus.RetryAfter(errors.New("closed"), 24*time.Hour) },
				bustest.WithPatience(time.Hour))
			k.Record(orders, placed{OrderID: 7, ID: "e-1"})
			k.Settle()
		}, []string{"not within 1h0m0s", "wait for a retry", `id=e-1 attempt=1 error="closed"`}},
		"a process has ended": {func(tb testing.TB) {
			k := bustest.New(tb)
			k.Run(func(context.Context) error { return errors.New("no licence") })
			k.Record(orders, placed{OrderID: 7})
			k.Settle()
		}, []string{"settle: a process has ended: no licence", "bustest: no licence"}},
		"somebody keeps the only connection": {func(tb testing.TB) {
			k := fulfilling(tb, done, bustest.WithPatience(time.Hour))
			tx, err := k.DB().Begin()
			if err != nil {
				tb.Fatalf("%v", err)
			}
			defer tx.Rollback()
			k.Settle()
		}, []string{"not within 1h0m0s", "outbox 1: context deadline exceeded (connections in use: 1 of 1)"}},
		"a process is done": {func(tb testing.TB) {
			bustest.New(tb).Run(func(context.Context) error { return nil })
			synctest.Wait()
		}, []string{"a process ended by itself"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tb := new(fakeTB)
				wantSaid(t, tb.run(func() { tc.test(tb) }), tc.says...)
			})
		})
	}
}

func TestWrongUseFailsTheTestWithTheReason(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		test func(tb testing.TB)
		says string
	}{
		"bus option":    {func(tb testing.TB) { bustest.New(tb, bustest.WithBus(bus.WithConcurrency(0))) }, "concurrency is 0"},
		"outbox option": {func(tb testing.TB) { bustest.New(tb, bustest.WithOutbox(outbox.WithBatch(0))) }, "batch is 0"},
		"registration": {func(tb testing.TB) {
			k := bustest.New(tb)
			bus.Handle(k.Bus(), orders, "fulfillment", done)
			k.Start()
		}, `"order.shipped" is neither handled nor ignored`},
		"record":  {func(tb testing.TB) { bustest.New(tb).Record(orders, placed{ID: strings.Repeat("x", 300)}) }, "id has 300 bytes"},
		"publish": {func(tb testing.TB) { bustest.New(tb).Publish(orders, placed{ID: strings.Repeat("x", 300)}) }, "id has 300 bytes"},
		"point":   {func(tb testing.TB) { bustest.New(tb).CrashAt("handeled") }, `crash at "handeled": the points are ["recorded" `},
		"do":      {func(tb testing.TB) { bustest.New(tb).Do(func(context.Context) error { return errors.New("boom") }) }, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := new(fakeTB)
			wantSaid(t, tb.run(func() { tc.test(tb) }), tc.says)
		})
	}
}

func TestStartsAgainAfterStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		k.Record(orders, placed{OrderID: 1})
		k.Settle()
		k.Stop()
		k.Record(orders, placed{OrderID: 2})
		k.Start()
		k.Settle()
		k.Handled().Want(2)
	})
}

func TestStopSaysThatAProcessDoesNotEnd(t *testing.T) {
	t.Parallel()
	runs, release := make(chan struct{}), make(chan struct{})
	tb := new(fakeTB)
	wantSaid(t, tb.run(func() {
		bustest.New(tb, bustest.WithPatience(10*time.Millisecond)).Run(func(context.Context) error {
			close(runs)
			<-release
			return nil
		})
		<-runs
	}), "stop: a process ignores the end of its context, for 10ms")
	close(release)
}

// Three buses on one kit, one of them made by the code under test with a database of its own.
func TestProcessesOfTheCodeUnderTest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		db := k.NewDB()
		starts := 0
		k.Run(func(ctx context.Context) error {
			starts++
			box, err := outbox.New(db, k.Transport())
			if err != nil {
				return err
			}
			b, err := bus.New(k.Transport(), append(k.BusOptions(), bus.WithOutbox(box))...)
			if err != nil {
				return err
			}
			bus.Handle(b, orders, "billing", done, bus.Ignore[shipped]())
			return b.Run(ctx)
		})
		synctest.Wait()
		k.Crash()
		k.Record(orders, placed{OrderID: 1})
		k.Settle()
		k.Handled().Group("billing").Want(1)
		k.Handled().Group("fulfillment").Want(1)
		if starts != 2 {
			t.Errorf("the process was started %d times, want again after the crash", starts)
		}
		if _, err := db.Exec(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload)
			VALUES ('foreign', 'orders', 'order.placed', '5', '{"orderId":5}')`); err != nil {
			t.Fatal(err)
		}
		k.Settle()
		k.Recorded().Want(2)
		k.Handled().Key("5").WantIDs("foreign", "foreign")
	})
}

func TestDoIsCalledAgainWhenItDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := fulfilling(t, done)
		for _, p := range []bustest.Point{bustest.Recorded, bustest.Committed} {
			k.CrashAt(p)
			calls := 0
			k.Do(func(ctx context.Context) error {
				calls++
				return k.Outbox().InTx(ctx, func(tx *sql.Tx) error {
					return k.Outbox().Record(ctx, tx, orders, placed{OrderID: 1, N: 1, ID: fmt.Sprint("at ", p)})
				})
			})
			if calls != 2 {
				t.Errorf("%s: %d calls, want two", p, calls)
			}
		}
		k.Settle()
		k.Recorded().WantIDs("at recorded", "at committed")
	})
}

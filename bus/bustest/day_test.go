package bustest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/middleware"
)

const hours = 24

// dayOfRetries fails every hour for a day what the outbox has sent, and then handles it. It returns how long that took in
// virtual time.
func dayOfRetries(tb testing.TB, crashes ...bustest.Point) time.Duration {
	k := bustest.New(tb, bustest.WithBus(bus.WithRetry(middleware.RetryPolicy{
		MaxAttempts: hours + 1, InitialDelay: time.Hour, MaxDelay: time.Hour, Jitter: func() float64 { return 1 },
	})))
	calls := 0
	bus.Handle(k.Bus(), orders, "fulfillment", func(context.Context, placed) error {
		if calls++; calls <= hours {
			return errors.New("not yet")
		}
		return nil
	}, bus.Ignore[shipped]())
	k.Start()
	for _, p := range crashes {
		k.CrashAt(p)
	}
	began := time.Now()
	k.Record(orders, placed{OrderID: 1, N: 1})
	k.Settle()
	took := time.Since(began)
	k.Retried().Key("1").Want(hours)
	k.Handled().Key("1").Want(1)
	k.Published().Want(1 + len(crashes))
	k.Stop()
	return took
}

func TestADayOfRetriesIsADayInTheBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if took := dayOfRetries(t); took < hours*time.Hour || took > hours*time.Hour+time.Minute {
			t.Errorf("took %v of virtual time", took)
		}
	})
}

// The process dies when it has sent the event; the one that comes after it sends it again, and waits a day for it too.
func TestADayOfRetriesAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if took := dayOfRetries(t, bustest.Sent); took < hours*time.Hour {
			t.Errorf("took %v of virtual time", took)
		}
	})
}

// BenchmarkDayOfRetries reports the real time of a retry schedule of 24 hours with an outbox on SQLite and an idle relay in
// the same bubble, from nothing to the end of the bus.
func BenchmarkDayOfRetries(b *testing.B) {
	var took time.Duration
	defer func() {
		if took < hours*time.Hour { // a failed test ends this goroutine
			b.Errorf("a day of retries took %v of virtual time", took)
		}
	}()
	for b.Loop() {
		took = 0
		synctest.Test(new(testing.T), func(t *testing.T) { took = dayOfRetries(t) })
	}
}

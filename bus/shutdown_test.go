package bus_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/transport"
)

// A handler that takes two seconds and then publishes is asked to stop after one: with time to spare its context stays
// alive, the publish succeeds and the event is settled.
func TestShutdownLetsHandlersFinishWithLiveContexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic := newMemory(t), orders()
		b := newBus(t, tr)
		var handled atomic.Int32
		bus.Subscribe(b, topic, "fulfillment",
			bus.On(func(ctx context.Context, e placed) error {
				time.Sleep(2 * time.Second)
				if err := ctx.Err(); err != nil {
					t.Errorf("context ended before the deadline: %v", context.Cause(ctx))
				}
				handled.Add(1)
				return b.Publish(ctx, topic, delivered{OrderID: e.OrderID})
			}),
			bus.Ignore[delivered]())
		start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := b.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		if handled.Load() != 1 {
			t.Errorf("handled %d, want 1", handled.Load())
		}
	})
}

// With a deadline shorter than the handler the context is cancelled, the event handed back unspent, and the error names
// the subscription.
func TestShutdownPastItsDeadlineHandsBackAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic, dead := newMemory(t), orders(), new(letters)
		b := newBus(t, tr, bus.WithDeadLetters(dead))
		bus.Handle(b, topic, "fulfillment", func(ctx context.Context, _ placed) error {
			select {
			case <-time.After(2 * time.Hour):
			case <-ctx.Done():
			}
			if cause := context.Cause(ctx); !errors.Is(cause, transport.ErrShutdown) {
				t.Errorf("context ended with %v, want ErrShutdown", cause)
			}
			return ctx.Err()
		}, bus.Ignore[delivered](), bus.WithTimeout(0))
		start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := b.Shutdown(ctx)
		if !errors.Is(err, bus.ErrDrain) || !strings.Contains(err.Error(), "orders/fulfillment") {
			t.Errorf("Shutdown = %v, want ErrDrain naming the subscription", err)
		}
		if len(dead.all) != 0 {
			t.Errorf("shutdown dead-lettered %d events", len(dead.all))
		}
	})
}

// Twenty events are in flight when the bus is told to stop at once: none is dead-lettered, no attempt is spent, and the
// next bus gets them all.
func TestShutdownSpendsNoAttemptAndLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic, dead := newMemory(t), orders(), new(letters)
		first := newBus(t, tr, bus.WithDeadLetters(dead), bus.WithDrainTimeout(0))
		var inFlight atomic.Int32
		bus.Handle(first, topic, "fulfillment", func(ctx context.Context, _ placed) error {
			inFlight.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}, bus.Ignore[delivered]())
		r := start(t, first)
		for i := range int64(20) {
			if err := first.Publish(t.Context(), topic, placed{OrderID: i}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if err := r.stop(); !errors.Is(err, bus.ErrDrain) {
			t.Fatalf("Run = %v, want ErrDrain", err)
		}
		var handled atomic.Int32
		second := newBus(t, tr, bus.WithDeadLetters(dead))
		bus.Handle(second, topic, "fulfillment", func(context.Context, placed) error {
			handled.Add(1)
			return nil
		}, bus.Ignore[delivered]())
		r = start(t, second)
		synctest.Wait()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if inFlight.Load() != 20 || handled.Load() != 20 || len(dead.all) != 0 {
			t.Errorf("in flight %d, handled later %d, dead letters %d; want 20, 20, 0",
				inFlight.Load(), handled.Load(), len(dead.all))
		}
	})
}

func TestBusRunsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		bus.Subscribe(b, topic, "g", bus.Ignore[placed](), bus.Ignore[delivered]())
		r := start(t, b)
		if err := b.Run(t.Context()); !errors.Is(err, bus.ErrStarted) {
			t.Errorf("second Run = %v", err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if err := b.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown after Run = %v", err)
		}
	})
}

func TestShutdownBeforeRunMakesRunReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t, newMemory(t))
		if err := b.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Run(t.Context()); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// A subscription that ends by itself must end Run: a router that goes on without it would look healthy.
func TestSubscriptionThatEndsByItselfEndsRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic := newMemory(t), orders()
		b := newBus(t, tr)
		bus.Subscribe(b, topic, "g", bus.Ignore[placed](), bus.Ignore[delivered]())
		r := start(t, b)
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		err := <-r.done
		r.cancel()
		if err == nil || !strings.Contains(err.Error(), "orders/g ended by itself") {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestSubscribingAfterRunIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic := newBus(t, newMemory(t)), orders()
		bus.Subscribe(b, topic, "g", bus.Ignore[placed](), bus.Ignore[delivered]())
		r := start(t, b)
		bus.Handle(b, topic, "late", func(context.Context, placed) error { return nil })
		if err := r.stop(); !errors.Is(err, bus.ErrStarted) || !strings.Contains(err.Error(), "orders/late") {
			t.Errorf("Run = %v, want ErrStarted naming the subscription", err)
		}
	})
}

// A handler that ends its goroutine, as t.FailNow does, is a failed attempt and costs no worker.
func TestHandlerThatEndsItsGoroutineIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, topic, calls := newBus(t, newMemory(t)), orders(), 0
		bus.Handle(b, topic, "g", func(context.Context, placed) error {
			if calls++; calls == 1 {
				runtime.Goexit()
			}
			return nil
		}, bus.Ignore[delivered](), bus.WithConcurrency(1))
		r := start(t, b)
		if err := b.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		if err := r.stop(); err != nil || calls != 2 {
			t.Errorf("%d calls, Run = %v", calls, err)
		}
	})
}

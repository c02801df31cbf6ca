package bus_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/middleware"
)

func TestBusRunsAgainWithTheSameSubscriptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, topic, handled := newMemory(t), orders(), 0
		b := newBus(t, tr)
		bus.Handle(b, topic, "g", func(context.Context, placed) error {
			handled++
			return nil
		}, bus.Ignore[delivered]())
		if err := start(t, b).stop(); err != nil {
			t.Fatal(err)
		}
		again := b.Again()
		r := start(t, again)
		if err := again.Publish(t.Context(), topic, placed{OrderID: 1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.stop(); err != nil || handled != 1 {
			t.Errorf("handled %d, Run = %v", handled, err)
		}
		if err := b.Run(t.Context()); !errors.Is(err, bus.ErrStarted) {
			t.Errorf("the first bus ran twice: %v", err)
		}
	})
}

// Middleware next to the handler sees no duplicates, and its error undoes what the handler did.
func TestInnerMiddlewareIsInsideTheInboxTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, calls := newFlow(t), 0
		b := newBus(t, f.tr, bus.WithInbox(f.in), bus.WithRetry(middleware.RetryPolicy{MaxAttempts: 3}))
		bus.Handle(b, f.topic, "g", insertEffect, bus.Ignore[delivered](),
			bus.WithInnerMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					out, err := next(msg)
					if calls++; calls == 1 {
						return nil, errors.New("after the handler")
					}
					return out, err
				}
			}))
		r := start(t, b)
		for range 2 {
			if err := b.Publish(t.Context(), f.topic, placed{OrderID: 1, N: 1, ID: "e"}); err != nil {
				t.Fatal(err)
			}
		}
		f.settle(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got := effects(t, f.db); got != "1.1 " || calls != 2 {
			t.Errorf("effects %q, %d calls; want one effect, and a call for each attempt but none for the duplicate", got, calls)
		}
	})
}

package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

// A delivery's context is of a type of its own: it must behave as the standard library's, whenever it is first asked.
func TestContextOfADeliveryEndsWithItsCauseWhenAskedBeforeAndAfter(t *testing.T) {
	t.Parallel()
	type name struct{}
	for asked, ask := range map[string]bool{"before": true, "after": false} {
		t.Run(asked, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := broker(t)
				sub, err := b.Subscriber(transport.SubscriberConfig{Group: "g"})
				if err != nil {
					t.Fatal(err)
				}
				msgs, err := sub.Subscribe(context.WithValue(t.Context(), name{}, "value"), "orders")
				if err != nil {
					t.Fatal(err)
				}
				publish(t, b, "orders", keyed("a", "a1"))
				ctx := expect(t, msgs, "a1").Context()
				if ask {
					child, cancel := context.WithTimeout(ctx, time.Hour)
					defer cancel()
					if v := child.Value(name{}); v != "value" || child.Err() != nil || ctx.Err() != nil {
						t.Fatalf("value %v, %v, %v", v, child.Err(), ctx.Err())
					}
					defer func() {
						if cause := context.Cause(child); !errors.Is(cause, transport.ErrLeaseLost) {
							t.Errorf("cause of a child = %v", cause)
						}
					}()
				}
				if _, ok := ctx.Deadline(); ok {
					t.Error("a deadline out of nowhere")
				}
				b.ExpireLease("orders", "g", "a1")
				synctest.Wait()
				if err := ctx.Err(); !errors.Is(err, context.Canceled) {
					t.Errorf("Err = %v", err)
				}
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, transport.ErrLeaseLost) {
					t.Errorf("cause = %v, want ErrLeaseLost", cause)
				}
			})
		})
	}
}

func TestContextOfASettledDeliveryHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		_, msgs := join(t, b, "orders", "g", 1)
		publish(t, b, "orders", keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		m.Ack()
		synctest.Wait()
		if cause := context.Cause(m.Context()); !errors.Is(cause, context.Canceled) || errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("cause = %v, want context.Canceled", cause)
		}
	})
}

// Publishers may use a message again once Publish has returned, also one that waits for the topic's first group.
func TestPublisherMayUseItsMessageAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := broker(t)
		buffer := []byte("1")
		m := message.NewMessage("m1", buffer)
		for _, s := range []string{"1", "2", "3"} {
			buffer[0] = s[0]
			m.UUID, m.Metadata["n"] = "m"+s, s
			publish(t, b, "orders", m)
		}
		_, msgs := join(t, b, "orders", "g", 1)
		for _, s := range []string{"1", "2", "3"} {
			got := expect(t, msgs, "m"+s)
			if string(got.Payload) != s || got.Metadata["n"] != s {
				t.Errorf("m%s carries %q, %v", s, got.Payload, got.Metadata)
			}
			got.Ack()
		}
	})
}

package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/middleware"
)

func TestTimeoutEndsTheHandlersContextAndRestoresIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		msg := newMessage("1")
		msg.SetContext(t.Context())
		h := chain(func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		}, middleware.Timeout(time.Second))
		for range 3 { // every attempt has the whole time
			began := time.Now()
			if _, err := h(msg); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			if msg.Context() != t.Context() {
				t.Error("the context was not restored")
			}
		}
	})
}

func ExampleTimeout() {
	calls := 0
	route(func(m *message.Message) ([]*message.Message, error) {
		if calls++; calls == 1 {
			<-m.Context().Done()
			fmt.Println(m.Context().Err())
			return nil, m.Context().Err()
		}
		return nil, nil
	}, middleware.Timeout(time.Millisecond))
	// Output: context deadline exceeded
}

func TestNoTimeoutLeavesTheContextAlone(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, -time.Second} {
		msg := newMessage("1")
		_, err := chain(func(m *message.Message) ([]*message.Message, error) { return nil, m.Context().Err() }, middleware.Timeout(d))(msg)
		if err != nil {
			t.Errorf("Timeout(%v) gave %v", d, err)
		}
	}
}

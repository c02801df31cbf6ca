package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// full takes the whole bound, so that the schedule can be seen.
func full() float64 { return 1 }

func TestRetryWaitsInProcessWithoutADelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		h := chain(func(*message.Message) ([]*message.Message, error) {
			at = append(at, time.Since(began))
			return nil, errBoom
		}, mustRetry(middleware.RetryPolicy{MaxAttempts: 5, InitialDelay: time.Second, MaxDelay: 3 * time.Second, Jitter: full}))
		_, err := h(newMessage("1"))
		spent, ok := errors.AsType[*middleware.ExhaustedError](err)
		if !ok || spent.Attempts != 5 || !errors.Is(err, errBoom) {
			t.Errorf("got %v", err)
		}
		if want := "[0s 1s 3s 6s 9s]"; fmt.Sprint(at) != want {
			t.Errorf("called at %v, want %s", at, want)
		}
	})
}

func TestRetryLeavesTheWaitingToTheTransport(t *testing.T) {
	t.Parallel()
	calls := 0
	h := chain(failing(99, &calls), mustRetry(middleware.RetryPolicy{MaxAttempts: 3, InitialDelay: time.Hour, Jitter: full}))
	for n, want := range []time.Duration{time.Hour, 2 * time.Hour} {
		msg := newMessage("1")
		d := deliver(t.Context(), msg, n+1)
		if _, err := h(msg); !errors.Is(err, errBoom) || calls != n+1 {
			t.Fatalf("delivery %d: %v after %d calls", n+1, err, calls)
		}
		want = min(want, time.Hour) // MaxDelay is no less than InitialDelay, and 5 minutes would be
		if d.Delay() != want {
			t.Errorf("delivery %d: delay %v, want %v", n+1, d.Delay(), want)
		}
	}
	msg := newMessage("1")
	deliver(t.Context(), msg, 3)
	if _, err := h(msg); calls != 3 || !isExhausted(err) {
		t.Errorf("the last delivery gave %v after %d calls", err, calls)
	}
}

func isExhausted(err error) bool {
	_, ok := errors.AsType[*middleware.ExhaustedError](err)
	return ok
}

func TestRetryStopsAtOnceForAPermanentError(t *testing.T) {
	t.Parallel()
	calls := 0
	h := chain(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, event.Permanent(errBoom)
	}, mustRetry(middleware.RetryPolicy{}))
	if _, err := h(newMessage("1")); calls != 1 || !errors.Is(err, event.ErrPermanent) || isExhausted(err) {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestRetryAfterRaisesTheDelay(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{time.Hour: time.Hour, time.Millisecond: time.Second} {
		msg := newMessage("1")
		d := deliver(t.Context(), msg, 1)
		_, _ = chain(func(*message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("wrapped: %w", event.RetryAfter(errBoom, asked))
		}, mustRetry(middleware.RetryPolicy{InitialDelay: time.Second, Jitter: full}))(msg)
		if d.Delay() != want {
			t.Errorf("asked for %v, delay is %v, want %v", asked, d.Delay(), want)
		}
	}
}

func TestRetryLeavesCutOffHandlersAlone(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{transport.ErrShutdown, transport.ErrLeaseLost} {
		ctx, cancel := context.WithCancelCause(t.Context())
		msg := newMessage("1")
		d := deliver(ctx, msg, 10)
		_, err := chain(func(m *message.Message) ([]*message.Message, error) {
			cancel(cause)
			return nil, m.Context().Err()
		}, mustRetry(middleware.RetryPolicy{MaxAttempts: 1}))(msg)
		if isExhausted(err) || !errors.Is(err, context.Canceled) || d.Delay() != 0 {
			t.Errorf("%v: got %v, delay %v", cause, err, d.Delay())
		}
	}
}

func TestRetryReportsEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := middleware.Retry(middleware.RetryPolicy{
		MaxAttempts: -1, InitialDelay: time.Hour, MaxDelay: time.Minute, Multiplier: math.NaN(),
	})
	for _, want := range []string{"max attempts is -1", "1h0m0s to 1m0s", "multiplier is NaN"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestRetryJitterIsFullAndBounded(t *testing.T) {
	t.Parallel()
	h := chain(func(*message.Message) ([]*message.Message, error) { return nil, errBoom },
		mustRetry(middleware.RetryPolicy{MaxAttempts: 1000, InitialDelay: time.Second, MaxDelay: time.Minute}))
	low, high := time.Hour, time.Duration(0)
	for range 2000 {
		msg := newMessage("1")
		d := deliver(t.Context(), msg, 500) // far beyond where the exponent overflows
		_, _ = h(msg)
		low, high = min(low, d.Delay()), max(high, d.Delay())
	}
	if low > 10*time.Second || high < 50*time.Second || high > time.Minute {
		t.Errorf("delays from %v to %v, want spread over zero to a minute", low, high)
	}
}

func ExampleRetry() {
	retry, err := middleware.Retry(middleware.RetryPolicy{MaxAttempts: 3, InitialDelay: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	calls := 0
	route(func(*message.Message) ([]*message.Message, error) {
		if calls++; calls < 3 {
			return nil, errors.New("not yet")
		}
		fmt.Println("handled at attempt", calls)
		return nil, nil
	}, retry)
	// Output: handled at attempt 3
}

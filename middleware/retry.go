package middleware

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// RetryPolicy says how often and how fast failed attempts are repeated: exponential backoff with full jitter, so that the
// delay before attempt n+1 is random between zero and min(MaxDelay, InitialDelay × Multiplier^(n-1)). Zero fields have the
// defaults given; the zero value is a good policy.
//
// Full jitter follows M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
type RetryPolicy struct {
	// MaxAttempts is how many handler calls there are in all; 10 by default.
	MaxAttempts int
	// InitialDelay bounds the first delay; 500 ms by default.
	InitialDelay time.Duration
	// MaxDelay bounds every delay that the policy chooses; 5 minutes by default. event.RetryAfter may ask for more.
	MaxDelay time.Duration
	// Multiplier is the growth of the bound; 2 by default, at least 1.
	Multiplier float64
	// Jitter returns a random number in [0, 1); math/rand/v2 by default. It is called concurrently.
	Jitter func() float64
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = 10
	}
	if p.InitialDelay == 0 {
		p.InitialDelay = 500 * time.Millisecond
	}
	if p.MaxDelay == 0 {
		p.MaxDelay = max(5*time.Minute, p.InitialDelay)
	}
	if p.Multiplier == 0 {
		p.Multiplier = 2
	}
	if p.Jitter == nil {
		p.Jitter = rand.Float64
	}
	return p
}

func (p RetryPolicy) validate() error {
	var errs []error
	if p.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("max attempts is %d, want at least 1", p.MaxAttempts))
	}
	if p.InitialDelay < 0 || p.MaxDelay < p.InitialDelay {
		errs = append(errs, fmt.Errorf("delays are %v to %v, want zero or more and the longest no less than the first",
			p.InitialDelay, p.MaxDelay))
	}
	if !(p.Multiplier >= 1) || math.IsInf(p.Multiplier, 0) {
		errs = append(errs, fmt.Errorf("multiplier is %v, want at least 1", p.Multiplier))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("middleware: retry: %w", err)
	}
	return nil
}

// Longest returns the longest delay that the policy chooses by itself.
func (p RetryPolicy) Longest() time.Duration {
	p = p.withDefaults()
	return p.bound(p.MaxAttempts - 1)
}

func (p RetryPolicy) bound(attempt int) time.Duration {
	d := float64(p.InitialDelay) * math.Pow(p.Multiplier, float64(max(attempt, 1)-1))
	if d > float64(p.MaxDelay) {
		return p.MaxDelay
	}
	return time.Duration(d)
}

// delay returns how long to wait after the failed attempt.
func (p RetryPolicy) delay(attempt int, err error) time.Duration {
	d := time.Duration(float64(p.bound(attempt)) * p.Jitter())
	if least, ok := event.Delay(err); ok {
		d = max(d, least)
	}
	return d
}

// ExhaustedError says that the last attempt failed. It unwraps to that attempt's error.
type ExhaustedError struct {
	Attempts int
	Err      error
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("attempt %d, the last: %v", e.Attempts, e.Err)
}

// Unwrap returns the last attempt's error.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// Retry repeats failed attempts. Where the message comes with a transport.Delivery it sets the delivery's delay and returns
// the error, and the transport redelivers: the key waits, nothing else does, and no lease is held meanwhile. In a plain
// router it waits in this process. A permanent error ends it at once; after the last attempt it returns an
// [ExhaustedError], for [DeadLetter] to act on. A handler that was cut off by shutdown or a lost lease is not retried here,
// and the attempt does not count.
//
// Attempts are counted by [Attempts] inside it; without that, by its own loop or else by the broker's count of deliveries.
// The error reports every wrong field of p.
func Retry(p RetryPolicy) (message.HandlerMiddleware, error) {
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return p.run(next, msg) }
	}, nil
}

func (p RetryPolicy) run(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	c := callOf(msg)
	c.maxAttempts, c.retries = p.MaxAttempts, true
	outer := msg.Context()
	delivery, remote := transport.FromContext(outer)
	for calls := 1; ; calls++ {
		count := calls
		if remote {
			count = max(delivery.Deliveries, 1)
		}
		c.attempt.Store(int64(count)) // Attempts inside knows better
		out, err := next(msg)
		msg.SetContext(outer)
		attempt := int(c.attempt.Load())
		_, spent := errors.AsType[*ExhaustedError](err)
		switch {
		case err == nil:
			return out, nil
		case cutOff(outer):
			return nil, err
		case spent, errors.Is(err, event.ErrPermanent):
			return nil, err
		case isUncounted(err):
			calls, attempt = calls-1, 1 // the store is broken, not the event
		case attempt >= p.MaxAttempts:
			return nil, &ExhaustedError{Attempts: attempt, Err: err}
		}
		wait := p.delay(attempt, err)
		if remote {
			delivery.SetDelay(wait)
			return nil, err
		}
		if ctxErr := sleep(outer, wait); ctxErr != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

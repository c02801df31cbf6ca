package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// call is what the links say to each other about one delivery: Retry how many attempts there are, Attempts which one it
// is, DeadLetter that it was the last. It travels in the message's context; whichever of them is outermost makes it.
type call struct {
	attempt     int
	maxAttempts int    // 0: no Retry around
	retries     bool   // a Retry is around
	forget      func() // drops the count once the verdict is final
	times       AttemptStore
	key         Key
}

// began returns when the first attempt began, or zero where nobody knows: a letter without a time is better than none.
func (c *call) began(ctx context.Context) time.Time {
	if times, ok := c.times.(AttemptTimes); ok {
		if at, err := times.FirstAttempt(ctx, c.key); err == nil && !at.IsZero() {
			return at.UTC()
		}
	}
	return time.Time{}
}

type callKey struct{}

// callOf finds the delivery's call, or makes one and puts it into the message's context.
func callOf(msg *message.Message) *call {
	ctx := msg.Context()
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	c := new(call)
	msg.SetContext(context.WithValue(ctx, callKey{}, c))
	return c
}

// final tells Attempts that no attempt follows.
func (c *call) final() {
	if c.forget != nil {
		c.forget()
		c.forget = nil
	}
}

// Attempt returns which handler call of the event this is, from 1, or 0 outside [Attempts].
func Attempt(ctx context.Context) int {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c.attempt
	}
	return 0
}

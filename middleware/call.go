package middleware

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/internal/tracing"
)

// call is what the links say to each other about one delivery: Retry how many attempts there are, Attempts which one it
// is, DeadLetter that it was the last. Whichever of them is outermost makes it and puts it into the message's context; being
// a context itself it costs one layer there.
type call struct {
	context.Context // the message's, when it reached the outermost link

	uuid        string       // of the message this is about
	attempt     atomic.Int64 // read by goroutines that a handler leaves behind, too
	maxAttempts int          // 0: no Retry around
	retries     bool         // a Retry is around
	store       AttemptStore // where the attempts are counted, until the verdict is final
	key         Key
}

type callKey struct{}

// Value answers for the call itself and passes every other question on.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// callOf finds the delivery's call, or makes one. A message that a handler published with its own context may bring that
// handler's call along: it belongs to another message and is left alone.
func callOf(msg *message.Message) *call {
	ctx := msg.Context()
	if c, ok := ctx.Value(callKey{}).(*call); ok && c.uuid == msg.UUID {
		return c
	}
	c := &call{Context: ctx, uuid: msg.UUID}
	msg.SetContext(c)
	return c
}

// began returns when the first attempt began, or zero where nobody knows: a letter without a time is better than none.
func (c *call) began(ctx context.Context) time.Time {
	if times, ok := c.store.(AttemptTimes); ok {
		if at, err := times.FirstAttempt(ctx, c.key); err == nil && !at.IsZero() {
			return at.UTC()
		}
	}
	return time.Time{}
}

// failed notes in the store what became of the attempt. A note that cannot be made is missed by nobody who handles events.
func (c *call) failed(ctx context.Context, err error) {
	if log, ok := c.store.(AttemptLog); ok {
		_ = log.Failed(context.WithoutCancel(c.Context), c.key, event.Failure{
			Attempt: int(c.attempt.Load()), Time: time.Now().UTC(), Node: node(), Class: event.Class(err), Reason: errtext.Clean(err),
			TraceID: tracing.ID(ctx),
		})
	}
}

// history returns what is known of the failed attempts.
func (c *call) history(ctx context.Context) []event.Failure {
	log, ok := c.store.(AttemptLog)
	if !ok {
		return nil
	}
	failures, err := log.Failures(ctx, c.key)
	if err != nil { // as with began
		return nil
	}
	return failures
}

// node names this process among those that handle.
var node = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
})

// giveBack takes the latest attempt back. Failing to is one attempt too many at worst.
func (c *call) giveBack() {
	c.attempt.Add(-1)
	_ = c.store.GiveBack(context.WithoutCancel(c.Context), c.key)
}

// final drops the count: no attempt follows. One that stays behind is never asked for again.
func (c *call) final() {
	if c.store != nil {
		_ = c.store.Forget(context.WithoutCancel(c.Context), c.key)
		c.store = nil
	}
}

// Attempt returns which handler call of the event this is, from 1, as [Attempts] counts, or else [Retry]; without either it
// is 0.
func Attempt(ctx context.Context) int {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return int(c.attempt.Load())
	}
	return 0
}

package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/lazyctx"
)

// Timeout ends the message's context d after the handler was called. Afterwards the context is what it was before, so
// that whatever is outside, a retry or a dead letter, has one that lives. A handler that ignores its context is not cut off,
// and what it returns counts. Zero or less means no timeout.
func Timeout(d time.Duration) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		if d <= 0 {
			return next
		}
		return func(msg *message.Message) ([]*message.Message, error) {
			outer := msg.Context()
			ctx := new(lazyctx.Context)
			ctx.Init(outer, time.Now().Add(d))
			defer func() {
				ctx.End(context.Canceled)
				msg.SetContext(outer)
			}()
			msg.SetContext(ctx)
			return next(msg)
		}
	}
}

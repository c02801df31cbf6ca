package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Timeout ends the message's context d after the handler was called. Afterwards the context is what it was before, so
// that whatever is outside, a retry or a dead letter, has one that lives. A handler that ignores its context is not cut off,
// and what it returns counts.
func Timeout(d time.Duration) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			outer := msg.Context()
			ctx, cancel := context.WithTimeout(outer, d)
			defer func() {
				cancel()
				msg.SetContext(outer)
			}()
			msg.SetContext(ctx)
			return next(msg)
		}
	}
}

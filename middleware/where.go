package middleware

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// topicOf and groupOf say where a message came from: by its delivery, or in a plain router by what Watermill knows.
func topicOf(ctx context.Context) string {
	if d, ok := transport.FromContext(ctx); ok {
		return d.Topic
	}
	return message.SubscribeTopicFromCtx(ctx)
}

func groupOf(ctx context.Context) string {
	if d, ok := transport.FromContext(ctx); ok {
		return d.Group
	}
	return message.HandlerNameFromCtx(ctx)
}

// Key identifies one event for one group, for whoever remembers ids or counts attempts.
type Key struct {
	Group  string
	Source string
	ID     string
}

// keyOf returns the key of msg, by its UUID where it cannot be read as an envelope: a contract break is counted too.
func keyOf(msg *message.Message) Key {
	k := Key{Group: groupOf(msg.Context()), ID: msg.UUID}
	if env, err := event.Of(msg); err == nil {
		k.Source, k.ID = env.Source, env.ID
	}
	return k
}

// cutOff reports whether the delivery was taken away from its handler: its context was cancelled, by a lost lease, a
// shutdown or, in a plain router, whatever stopped it. What the handler returned then is nobody's fault. A deadline on the
// context is the handler's own.
func cutOff(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

package middleware

import (
	"context"
	"errors"
	"time"

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
// Of a message that has neither id nor UUID the ID is empty: all such messages would be one, so nobody may remember them.
func keyOf(msg *message.Message) Key {
	ctx := msg.Context()
	if c, ok := ctx.Value(callKey{}).(*call); ok && c.uuid == msg.UUID && c.key.ID != "" {
		return c.key
	}
	k := Key{Group: groupOf(ctx), ID: msg.UUID}
	if env, err := event.Of(msg); err == nil {
		k.Source, k.ID = env.Source, env.ID
	}
	return k
}

// cutOff reports whether the delivery was taken away from its handler: its context was cancelled, by a lost lease, a
// shutdown or, in a plain router, whatever stopped it. What the handler returned then is nobody's fault. A deadline on the
// context is the handler's own.
func cutOff(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// pause holds back the message's next delivery, for a failure that is not the message's and that no Retry spaces out: by its
// delivery, or in a plain router by waiting here, since a nack there is redelivered at once.
func pause(ctx context.Context, d time.Duration) {
	if delivery, ok := transport.FromContext(ctx); ok {
		delivery.SetDelay(d)
		return
	}
	_ = sleep(ctx, d)
}

package bus

import (
	"context"
	"errors"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrPublishInTx holds for a Publish inside an inbox transaction: the event would be sent even if the transaction
	// rolled back. Record it in an outbox instead.
	ErrPublishInTx = errors.New("publish inside an inbox transaction: record the event in an outbox instead")
	// ErrConfig holds for every problem that Run finds in what was registered.
	ErrConfig = errors.New("configuration")
	// ErrStarted holds for a registration after Run, or a second Run.
	ErrStarted = errors.New("already started")
	// ErrDrain holds where the drain deadline passed and something was left behind.
	ErrDrain = errors.New("drain deadline passed")
)

// PublishError names the events of one Publish that the broker did not accept. See [transport.PublishError].
type PublishError = transport.PublishError

// Permanent marks a handler's error as beyond healing: the event goes to the dead letters at once.
func Permanent(err error) error { return event.Permanent(err) }

// RetryAfter asks that the next attempt come no sooner than d from now.
func RetryAfter(err error, d time.Duration) error { return event.RetryAfter(err, d) }

// IdempotencyKey returns a text that is the same each time the same group handles the same event: through retry,
// redelivery, redrive and replay. Give it to the far side of a call that must not be done twice. Outside a handler it is
// empty.
func IdempotencyKey(ctx context.Context) string {
	env, ok := event.FromContext(ctx)
	if !ok {
		return ""
	}
	group := ""
	if d, ok := transport.FromContext(ctx); ok {
		group = d.Group
	}
	return group + ":" + env.Source + ":" + env.ID
}

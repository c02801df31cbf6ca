package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/tracing"
	"github.com/seambus/seambus/transport"
)

// Bus publishes and handles events over one transport. Publish is safe for concurrent use at any time. Subscriptions are
// registered before Run; a Bus runs once.
type Bus struct {
	transport transport.Transport
	publisher message.Publisher
	limits    transport.Limits
	config    config

	mu       sync.Mutex
	subs     []*subscription
	problems []error
	late     []error // registered after Run had begun
	started  bool

	ready    chan struct{}        // closed once every subscription is up
	shutdown chan context.Context // the first Shutdown's context
	done     chan struct{}        // closed when Run has returned
	runErr   error                // valid once done is closed
}

// New returns a bus over t, which stays the caller's to close. It reports every wrong option at once ([ErrConfig] holds).
func New(t transport.Transport, opts ...Option) (*Bus, error) {
	c := defaults()
	for _, o := range opts {
		if o != nil {
			o.applyBus(&c)
		}
	}
	if t == nil {
		c.errs = append(c.errs, errors.New("transport is nil"))
	}
	for i, box := range c.boxes {
		if box == nil {
			c.errs = append(c.errs, fmt.Errorf("outbox %d is nil", i+1))
		}
	}
	if err := errors.Join(c.errs...); err != nil {
		return nil, fmt.Errorf("bus: %w: %w", ErrConfig, err)
	}
	return &Bus{
		transport: t,
		publisher: t.Publisher(),
		limits:    t.Capabilities().Limits,
		config:    c,
		ready:     make(chan struct{}),
		shutdown:  make(chan context.Context, 1),
		done:      make(chan struct{}),
	}, nil
}

// Publish sends events without an outbox and blocks until the broker has accepted all of them, or ctx ends. Events of one
// key are sent in the order given. A [PublishError] names the ids that failed; nothing later of a failed key was sent.
// Inside an inbox transaction it refuses with [ErrPublishInTx]. An event that cannot travel is refused before any is sent.
func (b *Bus) Publish(ctx context.Context, topic *event.Topic, events ...event.Event) error {
	if topic == nil {
		return errors.New("bus: publish: topic is nil")
	}
	if inbox.Tx(ctx) != nil {
		return fmt.Errorf("bus: publish %q: %w", topic.Name(), ErrPublishInTx)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("bus: publish %q: %w", topic.Name(), err)
	}
	msgs := make([]*message.Message, 0, len(events))
	var errs []error
	for _, e := range events {
		msg, err := b.encode(ctx, topic, e)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		msgs = append(msgs, msg)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bus: publish %q: %w", topic.Name(), err)
	}
	if len(msgs) == 0 {
		return nil
	}
	if err := b.publisher.Publish(topic.Name(), msgs...); err != nil {
		return fmt.Errorf("bus: publish %q: %w", topic.Name(), err)
	}
	return nil
}

func (b *Bus) encode(ctx context.Context, topic *event.Topic, e event.Event) (*message.Message, error) {
	env, err := topic.Encode(ctx, e)
	if err != nil {
		return nil, err
	}
	if env.Source = b.config.source; env.Source == "" {
		env.Source = topic.Name()
	}
	msg := env.Message()
	tracing.Inject(ctx, msg.Metadata)
	if err := b.limits.Check(msg); err != nil {
		return nil, err
	}
	msg.SetContext(ctx)
	return msg, nil
}

// Ready is closed once every subscription is up and the relays have been started.
func (b *Bus) Ready() <-chan struct{} { return b.ready }

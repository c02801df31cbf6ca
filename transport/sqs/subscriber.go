package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

// Subscriber is one member of a group.
type Subscriber struct {
	transport *Transport
	cfg       transport.SubscriberConfig

	mu     sync.Mutex
	subs   []*subscription
	closed bool
}

var (
	_ transport.Subscriber         = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// Subscribe checks the group's queue and starts taking in. The channel is closed by Close, by the end of ctx, and by the
// transport's Close. A queue that does not exist, keeps no order or belongs to another group is an error that says so.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out, err := s.subscribe(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("sqs: subscribe %q as %q: %w", topic, s.cfg.Group, err)
	}
	return out, nil
}

func (s *Subscriber) subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.isClosed() {
		return nil, transport.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q, err := s.transport.subscribeTo(ctx, topicGroup{topic, s.cfg.Group})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	sub := newSubscription(ctx, s.transport, q, topic, s.cfg)
	s.subs = append(s.subs, sub)
	return sub.out, nil
}

// SubscribeInitialize makes the group get what is published from now on, without taking anything in: its queue exists, and
// behind SNS it is subscribed. It makes the Subscriber a message.SubscribeInitializer.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*s.transport.cfg.timeout)
	defer cancel()
	if _, err := s.transport.subscribeTo(ctx, topicGroup{topic, s.cfg.Group}); err != nil {
		return fmt.Errorf("sqs: prepare the subscription of %q as %q: %w", topic, s.cfg.Group, err)
	}
	return nil
}

func (s *Subscriber) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Drain returns to the broker what no handler has, leaves the rest alone until ctx ends, and waits until what was
// acknowledged is deleted; see [transport.Subscriber].
func (s *Subscriber) Drain(ctx context.Context) error {
	subs := s.all(false)
	for _, sub := range subs {
		sub.stop()
	}
	var errs []error
	for _, sub := range subs {
		errs = append(errs, sub.drain(ctx))
	}
	return errors.Join(errs...)
}

// Close hands back what is in flight, cancels its contexts with [transport.ErrShutdown] and closes the channels. It waits for
// the broker to be told, for no longer than a few calls take.
func (s *Subscriber) Close() error {
	var ending sync.WaitGroup
	for _, sub := range s.all(true) {
		ending.Go(sub.close)
	}
	ending.Wait()
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	delete(s.transport.members, s)
	return nil
}

func (s *Subscriber) all(closing bool) []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || closing
	return append([]*subscription(nil), s.subs...)
}

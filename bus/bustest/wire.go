package bustest

import (
	"context"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// wire is the memory transport with somebody listening, and tampering if asked to.
type wire struct {
	*memory.Transport
	kit *Kit
}

var _ transport.Transport = (*wire)(nil)

// Publisher returns the memory transport's publisher with faults before it.
func (w *wire) Publisher() message.Publisher { return &publisher{w.Transport.Publisher(), w.kit} }

// Subscriber returns a member whose deliveries are noted.
func (w *wire) Subscriber(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	s, err := w.Transport.Subscriber(cfg)
	if err != nil {
		return nil, err
	}
	return &subscriber{Subscriber: s, kit: w.kit, group: cfg.Group, done: make(chan struct{})}, nil
}

type publisher struct {
	message.Publisher
	kit *Kit
}

// Publish sends what no fault keeps back, each duplicate right behind its original, so that the key's order holds.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	defer p.kit.moved()
	var failures []transport.Failure
	var send []*message.Message
	index := make(map[int]int) // of those sent, in msgs
	failed := make(map[string]bool)
	for i, msg := range msgs {
		key := transport.Key(msg)
		err := transport.ErrSkipped
		if key == "" || !failed[key] {
			err = p.kit.faults.publishes()
		}
		if err != nil {
			failed[key] = true
			failures = append(failures, transport.Failure{Index: i, ID: msg.UUID, Err: err})
			continue
		}
		index[len(send)] = i
		send = append(send, msg)
		if p.kit.faults.duplicates() {
			send = append(send, msg.Copy())
		}
	}
	if len(send) > 0 {
		refused := transport.Failed(p.Publisher.Publish(topic, send...), len(send))
		for j, msg := range send {
			i, original := index[j]
			switch err := refused[j]; {
			case err == nil && original:
				p.kit.seen.published(topic, msg)
			case original:
				failures = append(failures, transport.Failure{Index: i, ID: msg.UUID, Err: err})
			}
		}
	}
	if failures == nil {
		return nil
	}
	slices.SortFunc(failures, func(a, b transport.Failure) int { return a.Index - b.Index })
	return &transport.PublishError{Topic: topic, Failures: failures}
}

// subscriber is a member whose messages pass through the kit's hands.
type subscriber struct {
	transport.Subscriber
	kit   *Kit
	group string
	done  chan struct{}
	once  sync.Once
	pumps sync.WaitGroup
}

func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	if l := lifeOf(ctx); l != nil {
		if m, ok := s.Subscriber.(*memory.Subscriber); ok {
			l.join(m)
		}
	}
	s.kit.seen.subscribed(topic, s.group)
	out := make(chan *message.Message)
	s.pumps.Go(func() {
		defer close(out)
		for msg := range in {
			s.pass(msg, out)
		}
	})
	return out, nil
}

// pass hands a message on, unless it is to come later.
func (s *subscriber) pass(msg *message.Message, out chan<- *message.Message) {
	d, ok := transport.FromContext(msg.Context())
	if !ok {
		return
	}
	at := place{d.Topic, d.Group, d.Key, msg.UUID}
	if delay := s.kit.faults.delays(at); delay > 0 {
		d.SetDelay(delay)
		msg.Nack()
		return
	}
	s.kit.seen.delivered(at, msg, s.kit.moved)
	select {
	case out <- msg:
	case <-s.done: // the memory transport takes it back
	}
}

// Close hands back what is in flight and ends the channels.
func (s *subscriber) Close() error {
	s.once.Do(func() { close(s.done) })
	err := s.Subscriber.Close()
	s.pumps.Wait()
	return err
}

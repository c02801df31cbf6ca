package sqs_test

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

// straight sends each topic straight to the queue of the suite's one group. For the case that has several groups it is as many
// transports.
type straight struct {
	*sqs.Transport
	client sqs.Client
	opts   []sqs.Option

	mu     sync.Mutex
	others map[string]*sqs.Transport // by group
}

func newStraight(client sqs.Client, opts ...sqs.Option) (*straight, error) {
	t, err := sqs.New(client, append(opts, sqs.WithSoleGroup("conformance"))...)
	return &straight{Transport: t, client: client, opts: opts, others: make(map[string]*sqs.Transport)}, err
}

func (s *straight) Subscriber(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	if cfg.Group == "conformance" {
		return s.Transport.Subscriber(cfg)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	other, err := sqs.New(s.client, append(s.opts, sqs.WithSoleGroup(cfg.Group))...)
	if err != nil {
		return nil, err
	}
	s.others[cfg.Group] = other
	return other.Subscriber(cfg)
}

func (s *straight) Publisher() message.Publisher { return everywhere{s} }

func (s *straight) Close() error {
	err := s.Transport.Close()
	for _, o := range s.others {
		err = errors.Join(err, o.Close())
	}
	return err
}

type everywhere struct{ *straight }

func (e everywhere) Publish(topic string, msgs ...*message.Message) error {
	e.mu.Lock()
	others := e.others
	e.mu.Unlock()
	for _, o := range others {
		if err := o.Publisher().Publish(topic, msgs...); err != nil {
			return err
		}
	}
	return e.Transport.Publisher().Publish(topic, msgs...)
}

func base(t transport.Transport) *sqs.Transport {
	if s, ok := t.(*straight); ok {
		return s.Transport
	}
	return t.(*sqs.Transport)
}

func broker(t transport.Transport) *fakeaws.Broker { return sqs.ClientOf(base(t)).(*fakeaws.Broker) }

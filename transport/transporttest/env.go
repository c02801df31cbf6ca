package transporttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// env is what a case works with.
type env struct {
	*Harness
	ctx       context.Context
	transport transport.Transport
	topic     string
	opened    []transport.Transport
	members   []*member
}

func (e *env) open() (transport.Transport, error) {
	t, err := e.Open(e.ctx, e.transport)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if t == nil {
		return nil, errors.New("open: neither a transport nor an error")
	}
	e.opened = append(e.opened, t)
	return t, nil
}

func (e *env) close() error {
	var errs []error
	for _, m := range e.members {
		errs = append(errs, m.Close())
	}
	for _, t := range e.opened {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// member is a subscriber and its channel.
type member struct {
	transport.Subscriber
	messages <-chan *message.Message
	unit     time.Duration
	patience time.Duration
}

func (e *env) join(t transport.Transport, group string, concurrency int) (*member, error) {
	return e.joinTopic(t, e.topic, group, concurrency)
}

func (e *env) joinTopic(t transport.Transport, topic, group string, concurrency int) (*member, error) {
	sub, err := t.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: concurrency})
	if err != nil {
		return nil, err
	}
	if sub == nil {
		return nil, errors.New("neither a subscriber nor an error")
	}
	m := &member{Subscriber: sub, unit: e.Unit, patience: e.Patience}
	e.members = append(e.members, m)
	m.messages, err = sub.Subscribe(e.ctx, topic)
	return m, err
}

// next returns the next message, which must be called id unless id is empty.
func (m *member) next(id string) (*message.Message, error) {
	timer := time.NewTimer(m.patience)
	defer timer.Stop()
	select {
	case msg, open := <-m.messages:
		switch {
		case !open:
			return nil, fmt.Errorf("the channel was closed, want message %q", id)
		case id != "" && msg.UUID != id:
			return nil, fmt.Errorf("got message %q, want %q", msg.UUID, id)
		}
		return msg, nil
	case <-timer.C:
		return nil, fmt.Errorf("message %q did not come within %v", id, m.patience)
	}
}

// ack receives and acknowledges messages in this order.
func (m *member) ack(ids ...string) error {
	for _, id := range ids {
		msg, err := m.next(id)
		if err != nil {
			return err
		}
		msg.Ack()
	}
	return nil
}

// silent fails if a message comes within a few units.
func (m *member) silent(why string) error {
	timer := time.NewTimer(5 * m.unit)
	defer timer.Stop()
	select {
	case msg, open := <-m.messages:
		if open {
			return fmt.Errorf("message %q came %s", msg.UUID, why)
		}
	case <-timer.C:
	}
	return nil
}

func newMessage(key, id string) *message.Message {
	env := &event.Envelope{ID: id, Source: "transporttest", Type: "conformance.tested", PartitionKey: key, Data: []byte(id)}
	return env.Message()
}

func (e *env) publish(msgs ...*message.Message) error {
	for _, m := range msgs {
		m.SetContext(e.ctx)
	}
	return e.transport.Publisher().Publish(e.topic, msgs...)
}

// ids makes messages called by key and number: a1, a2, b1, ….
func ids(names ...string) []*message.Message {
	msgs := make([]*message.Message, len(names))
	for i, n := range names {
		msgs[i] = newMessage(n[:1], n)
	}
	return msgs
}

// pause lets a few units pass.
func (e *env) pause() {
	timer := time.NewTimer(5 * e.Unit)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
	}
}

// within waits for done to be closed.
func (e *env) within(done <-chan struct{}, what string) error {
	timer := time.NewTimer(e.Patience)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not happen within %v", what, e.Patience)
	}
}

func delivery(msg *message.Message) (*transport.Delivery, error) {
	d, ok := transport.FromContext(msg.Context())
	if !ok {
		return nil, fmt.Errorf("message %q has no delivery in its context", msg.UUID)
	}
	return d, nil
}

package memory

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

type publisher struct {
	transport *Transport
	closed    atomic.Bool
}

// Publish accepts the messages one by one. After a failure it goes on with other keys.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("memory: publish %q: %w", topic, transport.ErrClosed)
	}
	tp, err := p.transport.topic(topic)
	if err != nil {
		return fmt.Errorf("memory: publish %q: %w", topic, err)
	}
	var failures []transport.Failure
	var failed map[string]bool
	for i, msg := range msgs {
		key := transport.Key(msg)
		err := transport.ErrSkipped
		if !failed[key] {
			err = p.publish(tp, msg)
		}
		if err == nil {
			continue
		}
		failures = append(failures, transport.Failure{Index: i, ID: msg.UUID, Err: err})
		if key != "" {
			if failed == nil {
				failed = make(map[string]bool)
			}
			failed[key] = true
		}
	}
	if failures != nil {
		return &transport.PublishError{Topic: topic, Failures: failures}
	}
	return nil
}

func (p *publisher) publish(tp *topic, msg *message.Message) error {
	ctx := msg.Context()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.transport.caps.Limits.Check(msg); err != nil {
		return err
	}
	err := tp.accept(ctx, msg)
	if errors.Is(err, partition.ErrClosed) {
		return transport.ErrClosed
	}
	return err
}

func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

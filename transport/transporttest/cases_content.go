package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

func bytesUnchanged(e *env) error {
	m, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	for i, payload := range [][]byte{nil, {}, {0}, []byte("\x00\xff"), []byte("bad \xc3\x28 utf-8"), []byte("\uFFFE"), []byte("x")} {
		sent := newMessage("a", fmt.Sprintf("a%d", i))
		sent.Payload = payload
		for h := range 30 {
			sent.Metadata[fmt.Sprintf("header-%02d", h)] = []string{"plain", "", "zażółć gęślą", "two\nlines"}[h%4]
		}
		if err := e.publish(sent.Copy()); err != nil {
			return fmt.Errorf("payload %q: %w", payload, err)
		}
		got, err := m.next(sent.UUID)
		if err != nil {
			return fmt.Errorf("payload %q: %w", payload, err)
		}
		if !bytes.Equal(got.Payload, payload) {
			return fmt.Errorf("payload %q came as %q", payload, got.Payload)
		}
		for k, v := range sent.Metadata {
			if w, ok := got.Metadata[k]; !ok || w != v {
				return fmt.Errorf("header %q: %q came as %q (present: %t)", k, v, w, ok)
			}
		}
		got.Ack()
	}
	return nil
}

func limitsRefused(e *env) error {
	limits := e.transport.Capabilities().Limits
	limit := limits.MessageBytes
	if limit == 0 {
		return errors.New("the transport states no limit for message bytes")
	}
	m, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	fill := func(id string, over int) *message.Message {
		msg := newMessage("a", id)
		msg.Payload = []byte("x")
		room := limit - limits.Bytes(msg) // a broker may encode an empty payload, so it is measured with one byte
		msg.Payload = bytes.Repeat([]byte("x"), 1+room+over)
		return msg
	}
	err = e.publish(fill("a1", 1))
	if le, ok := errors.AsType[*transport.LimitError](err); !ok || !errors.Is(err, transport.ErrTooLarge) || le.Max != limit {
		return fmt.Errorf("a message one byte too large gave %v, want a LimitError that names %d", err, limit)
	}
	if err := e.publish(fill("a2", 0)); err != nil {
		return fmt.Errorf("the largest message: %w", err)
	}
	if err := m.ack("a2"); err != nil {
		return err
	}
	return otherLimits(e, m)
}

// otherLimits tries the longest key and the most headers, and one more, where the transport states a limit for them.
func otherLimits(e *env, m *member) error {
	limits := e.transport.Capabilities().Limits
	for what, tc := range map[string]struct {
		most int
		make func(id string, n int) *message.Message
	}{
		"partition key bytes": {limits.KeyBytes, func(id string, n int) *message.Message { return newMessage(strings.Repeat("k", n), id) }},
		"headers": {limits.Headers, func(id string, n int) *message.Message {
			msg := newMessage("a", id)
			for len(msg.Metadata) < n {
				msg.Metadata[fmt.Sprintf("header-%d", len(msg.Metadata))] = "x"
			}
			return msg
		}},
	} {
		if tc.most == 0 {
			continue
		}
		err := e.publish(tc.make(what+" 1", tc.most+1))
		if le, ok := errors.AsType[*transport.LimitError](err); !ok || le.Max != tc.most {
			return fmt.Errorf("%d %s gave %v, want a LimitError that names %d", tc.most+1, what, err, tc.most)
		}
		if err := e.publish(tc.make(what+" 2", tc.most)); err != nil {
			return fmt.Errorf("%d %s: %w", tc.most, what, err)
		}
		if err := m.ack(what + " 2"); err != nil {
			return err
		}
	}
	return nil
}

func deliverySaysWhere(e *env) error {
	m, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1")...); err != nil {
		return err
	}
	msg, err := m.next("a1")
	if err != nil {
		return err
	}
	d, err := delivery(msg)
	if err != nil {
		return err
	}
	if d.Topic != e.topic || d.Group != groupName || d.Key != "a" || d.Deliveries < 1 {
		return fmt.Errorf("delivery is %q %q %q, number %d", d.Topic, d.Group, d.Key, d.Deliveries)
	}
	msg.Ack()
	return e.within(msg.Context().Done(), "the end of an acknowledged message's context")
}

func publishNames(e *env) error {
	limit := e.transport.Capabilities().Limits.MessageBytes
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	msgs := ids("a1", "a2", "a3", "b1")
	msgs[1].Payload = []byte(strings.Repeat("x", limit+1))
	err = e.publish(msgs...)
	pe, ok := errors.AsType[*transport.PublishError](err)
	if !ok {
		return fmt.Errorf("publish gave %v, want a PublishError", err)
	}
	failed := transport.Failed(pe, len(msgs))
	if len(failed) != 2 || !errors.Is(failed[1], transport.ErrTooLarge) || !errors.Is(failed[2], transport.ErrSkipped) {
		return fmt.Errorf("failures are %v, want a2 too large and a3 skipped", failed)
	}
	seen := make(map[string]bool)
	for range 2 {
		msg, err := m.next("")
		if err != nil {
			return err
		}
		seen[msg.UUID] = true
		msg.Ack()
	}
	if !seen["a1"] || !seen["b1"] {
		return fmt.Errorf("got %v, want a1 and b1", seen)
	}
	return m.silent("though it was reported as failed")
}

func publishEnded(e *env) error {
	m, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(e.ctx)
	cancel()
	expired, cancel := context.WithTimeout(e.ctx, -1)
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, expired: context.DeadlineExceeded} {
		msg := newMessage("a", "a1")
		msg.SetContext(ctx)
		if err := e.transport.Publisher().Publish(e.topic, msg); !errors.Is(err, want) {
			return fmt.Errorf("publish gave %v, want %v", err, want)
		}
	}
	return m.silent("though its context had ended")
}

func settled(e *env) error {
	one, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	two, err := e.join(e.transport, groupName+"-2", 1)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	msg := newMessage("a", "a1")
	msg.SetContext(transport.OnSettled(e.ctx, func() { close(done) }))
	if err := e.transport.Publisher().Publish(e.topic, msg); err != nil {
		return err
	}
	if err := one.ack("a1"); err != nil {
		return err
	}
	got, err := two.next("a1")
	if err != nil {
		return err
	}
	select {
	case <-done:
		return errors.New("settled while a group had not acknowledged")
	default:
	}
	got.Ack()
	return e.within(done, "settlement")
}

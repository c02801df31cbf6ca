package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

func leaseOutlasts(e *env) error {
	m, err := e.join(e.transport, groupName, 2)
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
	for range 12 { // longer than the lease that a harness gives to Unit
		if err := m.silent("again while its handler was running"); err != nil {
			return err
		}
	}
	if err := msg.Context().Err(); err != nil {
		return fmt.Errorf("the running handler's context ended: %w", context.Cause(msg.Context()))
	}
	msg.Ack()
	return nil
}

func leaseLost(e *env) error {
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2")...); err != nil {
		return err
	}
	first, err := m.next("a1")
	if err != nil {
		return err
	}
	if err := e.ExpireLease(e.transport, e.topic, groupName, "a1"); err != nil {
		return err
	}
	if err := e.within(first.Context().Done(), "the end of the context of a lost lease"); err != nil {
		return err
	}
	if cause := context.Cause(first.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
		return fmt.Errorf("the context ended with %v, want ErrLeaseLost", cause)
	}
	second, err := m.next("a1")
	if err != nil {
		return err
	}
	first.Ack()
	if err := m.silent("after the ack of a lost lease"); err != nil {
		return err
	}
	second.Ack()
	return m.ack("a2")
}

func membersShare(e *env) error {
	other, err := e.open()
	if err != nil {
		return err
	}
	members := make([]*member, 2)
	for i, t := range []transport.Transport{e.transport, other} {
		if members[i], err = e.join(t, groupName, 1); err != nil {
			return err
		}
	}
	const keys = 64
	for k := range keys {
		if err := e.publish(newMessage(fmt.Sprint(k), fmt.Sprintf("k%d", k))); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	seen, counts := make(map[string]int), make([]int, len(members))
	all := make(chan struct{})
	for i, m := range members {
		go func() {
			for msg := range m.messages {
				mu.Lock()
				seen[msg.UUID]++
				counts[i]++
				if len(seen) == keys && seen[msg.UUID] == 1 {
					close(all)
				}
				mu.Unlock()
				msg.Ack()
			}
		}()
	}
	if err := e.within(all, "the delivery of all messages to one of two members"); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range seen {
		if n > 1 {
			return fmt.Errorf("message %s was delivered to the group %d times", id, n)
		}
	}
	if counts[0] == 0 || counts[1] == 0 {
		return fmt.Errorf("members got %v of %d, want both some", counts, keys)
	}
	return nil
}

func takenOver(e *env) error {
	first, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2")...); err != nil {
		return err
	}
	if err := first.ack("a1"); err != nil {
		return err
	}
	if err := first.Drain(e.ctx); err != nil {
		// a2 may have been received in the meantime by nobody: draining hands it back
		return err
	}
	if err := first.Close(); err != nil {
		return err
	}
	other, err := e.open()
	if err != nil {
		return err
	}
	second, err := e.join(other, groupName, 4)
	if err != nil {
		return err
	}
	return second.ack("a2")
}

func crashed(e *env) error {
	first, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2")...); err != nil {
		return err
	}
	lost, err := first.next("a1")
	if err != nil {
		return err
	}
	if err := e.Crash(e.transport, groupName); err != nil {
		return err
	}
	other, err := e.open()
	if err != nil {
		return err
	}
	second, err := e.join(other, groupName, 4)
	if err != nil {
		return err
	}
	lost.Ack() // nobody listens any more
	return second.ack("a1", "a2")
}

func drainFinishes(e *env) error {
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2")...); err != nil {
		return err
	}
	msg, err := m.next("a1")
	if err != nil {
		return err
	}
	drained := make(chan error, 1)
	go func() { drained <- m.Drain(e.ctx) }()
	if err := m.silent("while draining"); err != nil {
		return err
	}
	if msg.Context().Err() != nil {
		return fmt.Errorf("draining ended the handler's context: %w", context.Cause(msg.Context()))
	}
	select {
	case err := <-drained:
		return fmt.Errorf("drain returned %v with a message in flight", err)
	default:
	}
	msg.Ack()
	if err := <-drained; err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if err := m.Close(); err != nil {
		return err
	}
	next, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	return next.ack("a2")
}

func drainCutsOff(e *env) error {
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2")...); err != nil {
		return err
	}
	msg, err := m.next("a1")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.Unit)
	defer cancel()
	if err := m.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("drain gave %v with a message in flight at the deadline, want DeadlineExceeded", err)
	}
	if cause := context.Cause(msg.Context()); !errors.Is(cause, transport.ErrShutdown) {
		return fmt.Errorf("the handler's context ended with %v, want ErrShutdown", cause)
	}
	if err := m.Close(); err != nil {
		return err
	}
	msg.Ack() // too late
	next, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	return next.ack("a1", "a2")
}

func closes(e *env) error {
	before, err := e.transport.Subscriber(transport.SubscriberConfig{Group: groupName})
	if err != nil {
		return err
	}
	if err := before.Close(); err != nil {
		return fmt.Errorf("close before subscribing: %w", err)
	}
	if _, err := before.Subscribe(e.ctx, e.topic); !errors.Is(err, transport.ErrClosed) {
		return fmt.Errorf("subscribe after close gave %v, want ErrClosed", err)
	}
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1")...); err != nil {
		return err
	}
	held, err := m.next("a1")
	if err != nil {
		return err
	}
	errs := make(chan error, 8)
	for range 8 {
		go func() { errs <- m.Close() }()
	}
	for range 8 {
		if err := <-errs; err != nil {
			return fmt.Errorf("concurrent close: %w", err)
		}
	}
	if err := e.within(held.Context().Done(), "the end of the context of a message in flight at close"); err != nil {
		return err
	}
	if _, open := <-m.messages; open {
		return errors.New("the channel is open after close")
	}
	if err := e.transport.Close(); err != nil {
		return err
	}
	if err := e.transport.Publisher().Publish(e.topic, newMessage("a", "a2")); !errors.Is(err, transport.ErrClosed) {
		return fmt.Errorf("publish after close gave %v, want ErrClosed", err)
	}
	return nil
}

func endsWithContext(e *env) error {
	sub, err := e.transport.Subscriber(transport.SubscriberConfig{Group: groupName})
	if err != nil {
		return err
	}
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(e.ctx, key{}, "value"))
	defer cancel()
	messages, err := sub.Subscribe(ctx, e.topic)
	if err != nil {
		return err
	}
	m := &member{Subscriber: sub, messages: messages, unit: e.Unit, patience: e.Patience}
	e.members = append(e.members, m)
	if err := e.publish(ids("a1")...); err != nil {
		return err
	}
	msg, err := m.next("a1")
	if err != nil {
		return err
	}
	if msg.Context().Value(key{}) != "value" {
		return errors.New("the message's context lacks the values of Subscribe's")
	}
	cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range messages { // until it is closed
		}
	}()
	if err := e.within(ended, "the end of a subscription whose context ended"); err != nil {
		return err
	}
	next, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	return next.ack("a1")
}

func restarted(e *env) error {
	m, err := e.join(e.transport, groupName, 4)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1")...); err != nil {
		return err
	}
	if err := m.ack("a1"); err != nil {
		return err
	}
	if err := e.publish(ids("a2")...); err != nil {
		return err
	}
	if err := e.Restart(e.ctx); err != nil {
		return err
	}
	if err := e.publish(ids("a3")...); err != nil {
		return err
	}
	seen := make(map[string]*message.Message)
	for seen["a2"] == nil || seen["a3"] == nil {
		msg, err := m.next("")
		if err != nil {
			return fmt.Errorf("lost over a restart: %w", err)
		}
		if msg.UUID == "a3" && seen["a2"] == nil {
			return errors.New("reordered over a restart: a3 before a2")
		}
		seen[msg.UUID] = msg
		msg.Ack()
	}
	return nil
}

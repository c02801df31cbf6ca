package transporttest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func orderUnderPublishers(e *env) error {
	const publishers, each = 16, 50
	m, err := e.join(e.transport, groupName, 32)
	if err != nil {
		return err
	}
	errs := make(chan error, publishers)
	for p := range publishers {
		go func() {
			for n := range each {
				if err := e.publish(newMessage(fmt.Sprint(p), fmt.Sprintf("%d/%d", p, n))); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	seen := make(map[string]int)
	for range publishers * each {
		msg, err := m.next("")
		if err != nil {
			return fmt.Errorf("lost: got %v of %d each: %w", seen, each, err)
		}
		key, n, _ := strings.Cut(msg.UUID, "/")
		if want := fmt.Sprint(seen[key]); n != want {
			return fmt.Errorf("reordered: key %s gave %s, want %s", key, n, want)
		}
		seen[key]++
		msg.Ack()
	}
	for range publishers {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func oneAtATime(e *env) error {
	m, err := e.join(e.transport, groupName, 8)
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
	if err := m.silent("while an earlier one of its key was in flight"); err != nil {
		return err
	}
	first.Ack()
	return m.ack("a2")
}

// keysAtOnce has a barrier that opens only when all keys are in flight.
func keysAtOnce(e *env) error {
	const keys = 8
	m, err := e.join(e.transport, groupName, keys)
	if err != nil {
		return err
	}
	for k := range keys {
		if err := e.publish(newMessage(fmt.Sprint(k), fmt.Sprintf("k%d", k))); err != nil {
			return err
		}
	}
	var held []*message.Message
	for range keys {
		msg, err := m.next("")
		if err != nil {
			return fmt.Errorf("%d of %d keys were in flight at once: %w", len(held), keys, err)
		}
		held = append(held, msg)
	}
	for _, msg := range held {
		msg.Ack()
	}
	return nil
}

func boundedConcurrency(e *env) error {
	m, err := e.join(e.transport, groupName, 2)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "b1", "c1")...); err != nil {
		return err
	}
	var held []*message.Message
	for range 2 {
		msg, err := m.next("")
		if err != nil {
			return err
		}
		held = append(held, msg)
	}
	if err := m.silent("beyond the concurrency of 2"); err != nil {
		return err
	}
	for _, msg := range held {
		msg.Ack()
	}
	return m.ack("c1")
}

func nackRedelivers(e *env) error {
	m, err := e.join(e.transport, groupName, 8)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2", "b1", "b2")...); err != nil {
		return err
	}
	nacked, got := false, map[string]string{}
	for len(got["a"]) < 4 || len(got["b"]) < 4 {
		msg, err := m.next("")
		if err != nil {
			return fmt.Errorf("lost: got %v: %w", got, err)
		}
		if msg.UUID == "a1" && !nacked {
			nacked = true
			msg.Nack()
			continue
		}
		got[msg.UUID[:1]] += msg.UUID
		msg.Ack()
	}
	if got["a"] != "a1a2" || got["b"] != "b1b2" {
		return fmt.Errorf("reordered: got %v, want a1 before a2 and b1 before b2", got)
	}
	return nil
}

func nackWaits(e *env) error {
	m, err := e.join(e.transport, groupName, 8)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1", "a2", "b1")...); err != nil {
		return err
	}
	delay := 20 * e.Unit
	var nackedAt time.Time
	var order []string
	for len(order) < 3 {
		msg, err := m.next("")
		if err != nil {
			return err
		}
		if msg.UUID == "a1" && nackedAt.IsZero() {
			d, err := delivery(msg)
			if err != nil {
				return err
			}
			d.SetDelay(delay)
			nackedAt = time.Now()
			msg.Nack()
			continue
		}
		if waited := time.Since(nackedAt); msg.UUID == "a1" && waited < delay {
			return fmt.Errorf("a1 came again after %v, want no sooner than %v", waited, delay)
		}
		order = append(order, msg.UUID)
		msg.Ack()
	}
	if got := strings.Join(order, " "); got != "b1 a1 a2" {
		return fmt.Errorf("got %s, want b1 to go on and a1 before a2", got)
	}
	if limit := e.transport.Capabilities().MaxDelay; limit > 0 && limit < delay {
		return fmt.Errorf("MaxDelay is %v, less than the %v that was kept", limit, delay)
	}
	return nil
}

func deliveriesCounted(e *env) error {
	m, err := e.join(e.transport, groupName, 1)
	if err != nil {
		return err
	}
	if err := e.publish(ids("a1")...); err != nil {
		return err
	}
	for n := 1; n <= 4; n++ {
		msg, err := m.next("a1")
		if err != nil {
			return err
		}
		d, err := delivery(msg)
		if err != nil {
			return err
		}
		if d.Deliveries != n {
			return fmt.Errorf("delivery says it is number %d, want %d", d.Deliveries, n)
		}
		if n == 4 {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}
	return nil
}

func everyGroup(e *env) error {
	var wg sync.WaitGroup
	const groups = 3
	errs := make([]error, groups)
	for g := range groups {
		m, err := e.join(e.transport, fmt.Sprintf("%s-%d", groupName, g), 4)
		if err != nil {
			return err
		}
		wg.Go(func() { errs[g] = m.ack("a1", "a2", "a3") })
	}
	if err := e.publish(ids("a1", "a2", "a3")...); err != nil {
		return err
	}
	wg.Wait()
	return errors.Join(errs...)
}

func notForEver(e *env) error {
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
	msg.Nack()
	if err := m.ack("a1"); err != nil {
		return err
	}
	return m.silent("again after its ack")
}

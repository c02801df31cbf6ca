package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/internal/lazyctx"
	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// entry is a record that waits or is in flight.
type entry struct {
	*kgo.Record
	assigned   *assignment
	deliveries int // in this assignment
}

// delivery is a message in flight and the context it travels with, in one piece.
type delivery struct {
	transport.Delivery
	lazyctx.Context
	worker *worker
}

// Value answers with the delivery itself, so that finding it costs no context of its own.
func (d *delivery) Value(key any) any {
	if key == transport.DeliveryKey() {
		return &d.Delivery
	}
	return d.Context.Value(key)
}

// worker has at most one delivery in flight.
type worker struct {
	ended chan struct{} // the current delivery was ended by somebody else

	mu      sync.Mutex
	current *delivery
	cutBy   error // no further delivery once set
}

// stop ends d, if it is the current delivery.
func (w *worker) stop(d *delivery, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == d {
		w.stopLocked(cause)
	}
}

func (w *worker) stopLocked(cause error) {
	w.current.End(cause)
	select {
	case w.ended <- struct{}{}:
	default:
	}
}

// cut ends the current delivery and makes the worker end after it. It reports whether there was one.
func (w *worker) cut(cause error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cutBy == nil {
		w.cutBy = cause
	}
	if w.current == nil {
		return false
	}
	w.stopLocked(cause)
	return true
}

// begin makes d the current delivery, unless the worker was cut: then it returns by what.
func (w *worker) begin(d *delivery) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cutBy != nil {
		return w.cutBy
	}
	w.current = d
	select {
	case <-w.ended: // of an earlier one, which had settled by then
	default:
	}
	return nil
}

// takeBack ends d, which nobody has received, if it is still the current delivery.
func (w *worker) takeBack(d *delivery) { w.stop(d, transport.ErrShutdown) }

func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = nil
}

func (w *worker) run(sub *subscription) {
	for {
		taken, err := sub.stream.lanes.Take(sub.taking)
		if err != nil {
			return
		}
		if sub.taking.Err() != nil { // taking does not ask while there is something to take
			taken.Retry(0)
			return
		}
		taken.Item.deliveries++
		sub.stream.busy.Add(1)
		more := w.deliver(sub, taken)
		sub.stream.busy.Add(-1)
		if !more {
			return
		}
	}
}

// deliver hands out one message and settles it. It reports false when the worker is to end.
func (w *worker) deliver(sub *subscription, taken *partition.Taken[entry]) bool {
	d := sub.deliveryOf(taken)
	d.worker = w
	defer d.End(context.Canceled)
	if err := w.begin(d); err != nil {
		handBack(taken, err)
		return false
	}
	defer w.end()
	assigned := taken.Item.assigned
	if !assigned.enter(d) {
		taken.Done()
		return true
	}
	defer assigned.leave(d)
	msg := decode(taken.Item.Record)
	msg.SetContext(d)
	select {
	case sub.out <- msg:
	case <-sub.taking.Done():
		handBack(taken, d.Ended())
		return false
	case <-w.ended:
		handBack(taken, d.Ended())
		return true
	}
	if sub.taking.Err() != nil { // a drain began while it was being sent
		sub.takeBack()
	}
	select {
	case <-msg.Acked():
		assigned.finish(taken.Item.Offset)
		taken.Done()
	case <-msg.Nacked():
		taken.Retry(min(d.Delay(), maxDelay))
	case <-w.ended:
		handBack(taken, d.Ended())
	}
	return true
}

func (sub *subscription) deliveryOf(taken *partition.Taken[entry]) *delivery {
	e := &taken.Item
	d := &delivery{Delivery: transport.Delivery{
		Topic: sub.stream.topic, Group: sub.stream.member.group, Key: taken.Key[min(prefixBytes, len(taken.Key)):],
		Partition: e.Partition, Deliveries: e.deliveries,
	}}
	d.Init(sub.values, time.Time{})
	return d
}

// handBack returns a message that was not settled. A delivery that was cut off by a shutdown does not count. One whose
// partition is gone is dropped by whoever takes it next.
func handBack(taken *partition.Taken[entry], cause error) {
	if !errors.Is(cause, transport.ErrLeaseLost) {
		taken.Item.deliveries--
	}
	taken.Retry(0)
}

package memory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// errCrashed is the cause of deliveries whose member died: their leases run on.
var errCrashed = errors.New("member crashed")

// delivery is a message in flight and the context it travels with, in one piece. What a context costs beyond that is spent
// only when somebody asks for it: a handler that neither waits nor looks up values does not.
type delivery struct {
	transport.Delivery
	id     string
	values context.Context // Subscribe's, without its cancellation
	worker *worker

	mu     sync.Mutex
	ctx    context.Context // once asked for
	cancel context.CancelCauseFunc
	cause  error // once ended
}

// end cancels the context. Only the first cause counts.
func (d *delivery) end(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil {
		return
	}
	d.cause = cause
	if d.cancel != nil {
		d.cancel(cause)
	}
}

// why returns the cause of the end, or nil before.
func (d *delivery) why() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

func (d *delivery) full() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithCancelCause(d.values)
		if d.cause != nil {
			d.cancel(d.cause)
		}
	}
	return d.ctx
}

// Deadline says that there is none.
func (d *delivery) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done ends with the delivery: by settlement, a lost lease, or a shutdown.
func (d *delivery) Done() <-chan struct{} { return d.full().Done() }

// Err is context.Canceled once the delivery has ended.
func (d *delivery) Err() error {
	if d.why() != nil {
		return context.Canceled
	}
	return nil
}

// Value answers with the delivery itself, so that finding it costs no context of its own. Everything else, context.Cause
// among it, asks a context of the standard library, which knows its children.
func (d *delivery) Value(key any) any {
	if key == transport.DeliveryKey() {
		return &d.Delivery
	}
	return d.full().Value(key)
}

// worker has at most one delivery in flight.
type worker struct {
	ended chan struct{} // the current delivery was ended by somebody else

	mu      sync.Mutex
	current *delivery
	cutBy   error // no further delivery once set
}

// stop ends the current delivery. The lock is held.
func (w *worker) stop(cause error) {
	w.current.end(cause)
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
	w.stop(cause)
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
func (w *worker) takeBack(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == d {
		w.stop(transport.ErrShutdown)
	}
}

func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = nil
}

// expire ends the current delivery if it is of the message id, as if its lease had run out.
func (w *worker) expire(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil || w.current.id != id {
		return false
	}
	w.stop(transport.ErrLeaseLost)
	return true
}

func (w *worker) run(sub *subscription) {
	for {
		taken, err := sub.group.lanes.Take(sub.taking)
		if err != nil {
			return
		}
		if sub.taking.Err() != nil { // taking does not ask while there is something to take
			taken.Retry(0)
			return
		}
		sub.passes(crash.Delivered)
		taken.Item.deliveries++
		if !w.deliver(sub, taken) {
			return
		}
	}
}

// deliver hands out one message and settles it. It reports false when the worker is to end.
func (w *worker) deliver(sub *subscription, taken *partition.Taken[entry]) bool {
	d, msg := sub.deliveryOf(taken.Item)
	d.worker = w
	defer d.end(context.Canceled)
	if err := w.begin(d); err != nil {
		sub.handBack(taken, err)
		return false
	}
	defer w.end()
	select {
	case sub.out <- msg:
	case <-sub.taking.Done():
		sub.handBack(taken, d.why())
		return false
	case <-w.ended:
		sub.handBack(taken, d.why())
		return true
	}
	if sub.taking.Err() != nil { // a drain began while it was being sent
		sub.takeBack()
	}
	select {
	case <-msg.Acked():
		taken.Done()
		taken.Item.settle.groupDone()
		sub.passes(crash.Acked)
	case <-msg.Nacked():
		taken.Retry(d.Delay())
	case <-w.ended:
		sub.handBack(taken, d.why())
	}
	return true
}

func (sub *subscription) deliveryOf(e entry) (*delivery, *message.Message) {
	d := &delivery{
		Delivery: transport.Delivery{
			Topic: sub.topic, Group: sub.group.name, Key: e.key, Partition: -1, Deliveries: e.deliveries,
		},
		id: e.uuid, values: sub.values,
	}
	msg := message.NewMessage(e.uuid, slices.Clone(e.payload))
	for _, h := range e.metadata {
		msg.Metadata[h.name] = h.value
	}
	msg.SetContext(d)
	return d, msg
}

// handBack returns a message that was not settled. A crashed member keeps it until its lease is over; a delivery that was
// cut off by a shutdown does not count.
func (sub *subscription) handBack(taken *partition.Taken[entry], cause error) {
	switch {
	case errors.Is(cause, errCrashed):
		sub.transport.after(sub.transport.cfg.lease, func() { taken.Retry(0) })
		return
	case !errors.Is(cause, transport.ErrLeaseLost):
		taken.Item.deliveries--
	}
	taken.Retry(0)
}

// passes lets a test crash the member at a point of the path.
func (sub *subscription) passes(p crash.Point) {
	if sub.hook != nil && sub.hook(sub.values, p) != nil {
		sub.crash()
	}
}

// crash makes the member vanish as a killed process would: it takes nothing in, settles nothing, and what it holds comes
// back when the lease is over. Handlers that still run find their context cancelled and their acks ignored.
func (sub *subscription) crash() {
	sub.stopTaking()
	sub.cut(errCrashed)
}

package memory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/lazyctx"
	"github.com/seambus/seambus/transport"
)

// errCrashed is the cause of deliveries whose member died: their leases run on.
var errCrashed = errors.New("member crashed")

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
	claim   claim            // what current delivers
	message *message.Message // and as what
	cutBy   error            // no further delivery once set
}

// stop ends the current delivery. The lock is held.
func (w *worker) stop(cause error) {
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
	w.stop(cause)
	return true
}

// begin makes d the current delivery, unless the worker was cut: then it returns by what.
func (w *worker) begin(d *delivery, c claim, msg *message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cutBy != nil {
		return w.cutBy
	}
	w.current, w.claim, w.message = d, c, msg
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
	w.current, w.claim, w.message = nil, nil, nil
}

// holds returns what the worker is delivering, or nil.
func (w *worker) holds() claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claim
}

// acked reports whether the handler of c has acknowledged it, which the worker may not have noticed yet.
func (w *worker) acked(c claim) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claim != c {
		return false
	}
	select {
	case <-w.message.Acked():
		return true
	default:
		return false
	}
}

// stopIf ends the current delivery if it is of c.
func (w *worker) stopIf(c claim, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claim == c {
		w.stop(cause)
	}
}

func (w *worker) run(sub *subscription) {
	defer sub.source.release() // what others wait with, this one leaves behind
	for {
		c, err := sub.source.take(sub.taking)
		if err != nil {
			return
		}
		for c != nil {
			if sub.taking.Err() != nil { // taking does not ask while there is something to take
				c.back(sub, transport.ErrShutdown)
				return
			}
			sub.passes(crash.Delivered)
			next, goOn := w.deliver(sub, c)
			if !goOn {
				return
			}
			c = next
		}
	}
}

// deliver hands out one message and settles it. It returns what the worker must deliver next, if anything, and false when
// the worker is to end.
func (w *worker) deliver(sub *subscription, c claim) (next claim, goOn bool) {
	d, msg := sub.deliveryOf(c)
	d.worker = w
	defer d.End(context.Canceled)
	if err := w.begin(d, c, msg); err != nil {
		c.back(sub, err)
		return nil, false
	}
	defer w.end()
	if !c.live() { // from here on, whoever ends it finds it in this worker
		c.back(sub, transport.ErrLeaseLost)
		return nil, true
	}
	select {
	case sub.out <- msg:
	case <-sub.taking.Done():
		c.back(sub, d.Ended())
		return nil, false
	case <-w.ended:
		c.back(sub, d.Ended())
		return nil, true
	}
	if sub.taking.Err() != nil { // a drain began while it was being sent
		sub.takeBack()
	}
	select {
	case <-msg.Acked():
		next = c.done()
		sub.passes(crash.Acked)
	case <-msg.Nacked():
		c.retry(d.Delay())
	case <-w.ended:
		if cause := d.Ended(); !errors.Is(cause, transport.ErrShutdown) || !acked(msg) {
			c.back(sub, cause)
			break
		}
		next = c.done() // its handler had finished when the member was closed, and nobody had looked yet
	}
	return next, true
}

func acked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func (sub *subscription) deliveryOf(c claim) (*delivery, *message.Message) {
	s, deliveries, partition := c.message()
	d := &delivery{
		Delivery: transport.Delivery{
			Topic: sub.topic, Group: sub.group.name, Key: s.key, Partition: partition, Deliveries: deliveries,
		},
	}
	d.Init(sub.values, time.Time{})
	msg := message.NewMessage(s.uuid, slices.Clone(s.payload))
	for _, h := range s.metadata {
		msg.Metadata[h.name] = h.value
	}
	msg.SetContext(d)
	return d, msg
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
	sub.source.die()
	sub.stopTaking()
	sub.cut(errCrashed)
}

package transport

import (
	"context"
	"sync/atomic"
	"time"
)

// Delivery is what a transport knows about a message it is delivering. It lives in the message's context from delivery to
// settlement. The fields are set before delivery and never change; SetDelay and Delay are safe for concurrent use.
type Delivery struct {
	// Topic, Group and Key say where the message came from and what it keeps order with.
	Topic string
	Group string
	Key   string
	// Partition is the broker's partition, or -1 where the broker has none.
	Partition int32
	// Deliveries is the broker's count of deliveries of this message, this one included. It is approximate and may count
	// deliveries that no handler saw; see the attempt count for handler calls.
	Deliveries int

	delay atomic.Int64
}

// SetDelay asks that, if this delivery is nacked, the next one come no sooner than d later. Later events of the key wait
// behind it. Negative means zero; a delay over the transport's MaxDelay is cut to it.
func (d *Delivery) SetDelay(delay time.Duration) { d.delay.Store(int64(max(delay, 0))) }

// Delay returns what SetDelay was last given. Transports call it when a message is nacked.
func (d *Delivery) Delay() time.Duration { return time.Duration(d.delay.Load()) }

type deliveryKey struct{}

// WithDelivery returns a context that carries d. Transports that have a context type of their own may instead answer
// Value([DeliveryKey]()) with d.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryKey returns the context key under which a *[Delivery] is found.
func DeliveryKey() any { return deliveryKey{} }

// FromContext returns the delivery that ctx belongs to. It reports false outside a delivery, as in a plain router over a
// plain Watermill subscriber.
func FromContext(ctx context.Context) (*Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(*Delivery)
	return d, ok
}

type settledKey struct{}

// OnSettled returns a context for a message about to be published, whose transport is not durable: the transport calls fn
// exactly once when every group that was subscribed at the time of publishing has acknowledged the message, at once if there was
// none. It never calls it for a message it loses, and fn must not block. Durable transports ignore it.
func OnSettled(ctx context.Context, fn func()) context.Context {
	return context.WithValue(ctx, settledKey{}, fn)
}

// Settled returns the function that [OnSettled] put into ctx, or nil.
func Settled(ctx context.Context) func() {
	fn, _ := ctx.Value(settledKey{}).(func())
	return fn
}

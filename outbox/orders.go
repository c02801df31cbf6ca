package outbox

import (
	"container/heap"
	"context"
	"time"
)

// ordersEvery is the least time between two looks for what operators did.
const ordersEvery = 200 * time.Millisecond

// ordered returns how often operators have changed rows that wait: [relay.obey] is due when it is not what it was.
func (r *relay) ordered(ctx context.Context, now time.Time) (int64, error) {
	rd := &r.read
	if rd.orderDue.IsZero() || now.Before(rd.orderDue) {
		return rd.orders, nil
	}
	n, err := r.box.store.Orders(ctx)
	if err != nil {
		return rd.orders, err
	}
	if rd.lastOrder.IsZero() {
		rd.orders = n // what waits is read with the first leases, after this
	}
	rd.orderDue, rd.lastOrder = time.Time{}, now
	return n, nil
}

// obey takes up what operators did to rows that wait: it learns about blocked keys as if their ranges were claimed anew. A row
// that was failed and is pending again is read from the head before its key goes on, so that it comes first.
func (r *relay) obey(ctx context.Context, orders int64) error {
	r.mu.Lock()
	mask := r.mask()
	r.mu.Unlock()
	if mask == 0 {
		r.read.orders = orders // what waits is read with the next lease
		return nil
	}
	blocked, err := r.box.store.Blocked(ctx, mask, r.box.cfg.policy == HoldKey)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := make(map[laneKey]bool, len(blocked))
	for _, b := range blocked {
		waits[laneKey{b.Topic, b.Key}] = true
	}
	later := false
	for k, ks := range r.keys {
		switch _, unwritten := r.flight[ks.blocker]; {
		case !ks.blocked || !ks.failed || unwritten || !mask.Has(ks.shard):
		case ks.busy > 0:
			later = true // its rows are just being held
		case !waits[k]:
			ks.failed, ks.due = false, time.Now()
			r.park(ks)
		}
	}
	r.restore(blocked)
	heap.Init(&r.due)
	r.rewind()
	if later {
		r.read.orderDue = r.read.lastOrder.Add(ordersEvery)
	} else {
		r.read.orders = orders
	}
	return nil
}

// park keeps a blocked key from going on until the head has been read once. The lock is held.
func (r *relay) park(ks *keyState) {
	if !ks.parked {
		ks.parked = true
		r.read.parked = append(r.read.parked, ks)
	}
}

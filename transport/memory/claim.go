package memory

import (
	"context"
	"errors"
	"time"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// queue is what a group has before it, as one kind of broker keeps it.
type queue interface {
	// add appends a message. It blocks while the group is full.
	add(ctx context.Context, s *stored) error
	// open makes the source of a new member.
	open(sub *subscription) source
	held() int
	close()
	// rebalance takes every partition from its member and gives them out anew. It returns how many there were.
	rebalance() int
}

// source is where one member's workers get their messages.
type source interface {
	// take blocks until there is a message or ctx ends.
	take(ctx context.Context) (claim, error)
	// release gives back what was fetched and waits for a worker: the member takes nothing in any more.
	release()
	// leave ends the membership once everything is settled. It is idempotent.
	leave()
	// die is the end of a process: nothing is given back, and leases run out.
	die()
}

// claim is one message that a worker has. Each is settled by one of done, retry and back.
type claim interface {
	message() (s *stored, deliveries int, partition int32)
	// live reports whether the broker would still accept a verdict.
	live() bool
	// done is an ack. It returns the message that is to be delivered next by the same worker, or nil.
	done() claim
	retry(delay time.Duration)
	// back gives back what was not settled, for this cause.
	back(sub *subscription, cause error)
	// expire ends the lease, as a broker would that has not heard of the member; w is the worker that has the message.
	expire(w *worker)
}

// direct is the default queue: members take from the group's lanes themselves, and a live member's leases never end.
type direct struct{ lanes *partition.Lanes[entry] }

func newDirect(cfg *config) *direct {
	return &direct{partition.NewLanes[entry](partition.LanesConfig{MaxHeld: cfg.buffer})}
}

func (q *direct) add(ctx context.Context, s *stored) error {
	return q.lanes.Add(ctx, s.key, entry{stored: s})
}

func (q *direct) open(*subscription) source { return q }
func (q *direct) held() int                 { return q.lanes.Len() }
func (q *direct) close()                    { q.lanes.Close() }
func (q *direct) rebalance() int            { return 0 }
func (q *direct) release()                  {}
func (q *direct) leave()                    {}
func (q *direct) die()                      {}

func (q *direct) take(ctx context.Context) (claim, error) {
	taken, err := q.lanes.Take(ctx)
	if err != nil {
		return nil, err
	}
	taken.Item.deliveries++
	return directClaim{taken}, nil
}

type directClaim struct{ *partition.Taken[entry] }

func (c directClaim) message() (*stored, int, int32) { return c.Item.stored, c.Item.deliveries, -1 }
func (c directClaim) live() bool                     { return true }
func (c directClaim) retry(delay time.Duration)      { c.Retry(delay) }
func (c directClaim) expire(w *worker)               { w.stopIf(c, transport.ErrLeaseLost) }

func (c directClaim) done() claim {
	c.Done()
	c.Item.settle.groupDone()
	return nil
}

// back returns the message. A crashed member keeps it until its lease is over; a delivery that was cut off by a shutdown
// does not count.
func (c directClaim) back(sub *subscription, cause error) {
	switch {
	case errors.Is(cause, errCrashed):
		sub.transport.after(sub.transport.cfg.lease, func() { c.Retry(0) })
		return
	case !errors.Is(cause, transport.ErrLeaseLost):
		c.Item.deliveries--
	}
	c.Retry(0)
}

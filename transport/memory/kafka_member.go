package memory

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/seambus/seambus/partition"
)

// consumer is one member of a Kafka group: lanes that all its partitions share.
type consumer struct {
	queue *partitionLog
	sub   *subscription
	lanes *partition.Lanes[*fetched]
	dead  atomic.Bool
}

func (q *partitionLog) open(sub *subscription) source {
	c := &consumer{queue: q, sub: sub, lanes: partition.NewLanes[*fetched](partition.LanesConfig{})}
	q.join(c)
	return c
}

func (c *consumer) take(ctx context.Context) (claim, error) {
	for {
		taken, err := c.lanes.Take(ctx)
		if err != nil {
			return nil, err
		}
		f := taken.Item
		if f.taken = taken; !f.live() {
			taken.Done() // of a partition that was lost meanwhile
			continue
		}
		f.deliveries++
		return f, nil
	}
}

// release has nothing to do: what was fetched and not handled is not committed.
func (c *consumer) release() {}

func (c *consumer) leave() {
	if !c.dead.Load() {
		c.queue.leave(c)
	}
	c.lanes.Close() // the workers have ended
}

// die leaves the partitions to the dead until their session is over.
func (c *consumer) die() {
	if !c.dead.Swap(true) {
		c.queue.home.after(c.queue.home.cfg.lease, func() { c.queue.leave(c) })
	}
}

// ownership is one partition in the hands of one member, from assignment to revocation. All of it is under the queue's lock.
type ownership struct {
	queue   *partitionLog
	part    *part
	by      *consumer
	lane    string // what the names of its lanes begin with: a later ownership must not wait for this one's delays
	next    int64  // offset to fetch
	mark    partition.Watermark
	revoked bool

	keys    map[string]int  // how many are fetched and not finished
	failing map[string]bool // keys whose first event has failed
	behind  int             // events that wait behind failing ones
}

func newOwnership(q *partitionLog, p *part, by *consumer) *ownership {
	return &ownership{
		queue: q, part: p, by: by, lane: strconv.Itoa(q.epoch) + "/", next: p.committed,
		keys: make(map[string]int), failing: make(map[string]bool),
	}
}

// fetch moves what the log has to the member's lanes, until the partition pauses.
func (o *ownership) fetch() {
	end := o.part.committed + int64(len(o.part.log))
	for o.next < end && o.behind < maxWaiting && o.mark.Gap() < maxGap {
		rec := o.part.log[o.next-o.part.committed]
		o.mark.Begin(o.next)
		o.next++
		lane := ""
		if rec.key != "" {
			lane = o.lane + rec.key
			o.keys[rec.key]++
			if o.failing[rec.key] {
				o.behind++
			}
		}
		_ = o.by.lanes.TryAdd(lane, &fetched{own: o, rec: rec}) // fails only once the member has left
	}
}

// fail notes that a key's first event was nacked: the others wait behind it.
func (o *ownership) fail(key string) {
	if !o.revoked && key != "" && !o.failing[key] {
		o.failing[key] = true
		o.behind += o.keys[key] - 1
	}
}

// finish says that an event is done, and commits what can be. It reports whether the group has acknowledged the event for the
// first time. After a revocation it does nothing.
func (o *ownership) finish(rec *record) (first bool) {
	if o.revoked {
		return false
	}
	if rec.key != "" {
		if o.failing[rec.key] {
			delete(o.failing, rec.key)
			o.behind -= o.keys[rec.key] - 1
		}
		if o.keys[rec.key]--; o.keys[rec.key] <= 0 {
			delete(o.keys, rec.key)
		}
	}
	first, rec.acked = !rec.acked, true
	o.mark.Done(rec.offset)
	if low, ok := o.mark.Low(); ok {
		o.queue.commit(o.part, low)
	}
	o.fetch()
	return first
}

// settled tells the publisher, if this was the group's first ack of the record.
func (r *record) settled(first bool) {
	if first {
		r.settle.groupDone()
	}
}

// fetched is a record in a member's hands.
type fetched struct {
	own        *ownership
	rec        *record
	taken      *partition.Taken[*fetched]
	deliveries int
}

func (f *fetched) message() (*stored, int, int32) {
	return f.rec.stored, f.deliveries, f.own.part.number
}

func (f *fetched) live() bool {
	f.own.queue.mu.Lock()
	defer f.own.queue.mu.Unlock()
	return !f.own.revoked
}

func (f *fetched) done() claim {
	f.own.queue.mu.Lock()
	first := f.own.finish(f.rec)
	f.own.queue.mu.Unlock()
	f.taken.Done()
	f.rec.settled(first)
	return nil
}

func (f *fetched) retry(delay time.Duration) {
	f.own.queue.mu.Lock()
	f.own.fail(f.rec.key)
	revoked := f.own.revoked
	f.own.queue.mu.Unlock()
	if revoked {
		f.taken.Done()
		return
	}
	f.taken.Retry(min(delay, maxKafkaDelay))
}

// back drops it here: it is not committed, and comes again to whoever has the partition next.
func (f *fetched) back(*subscription, error) { f.taken.Done() }

func (f *fetched) expire(*worker) { f.own.queue.bounce(f.own) }

package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// partitionLog is a Kafka topic as one group sees it: partitions, what is committed of each, and who has them.
type partitionLog struct {
	home  *Transport
	slots chan struct{} // one for each record that is not committed
	ended chan struct{}
	end   sync.Once

	mu      sync.Mutex
	parts   []*part
	members []*consumer // in the order in which they joined
	keyless int         // records without a key go round
	epoch   int
}

// part is one partition. Its log begins at the committed offset.
type part struct {
	number    int32
	committed int64
	log       []*record
	owned     *ownership // nil while nobody has it
}

type record struct {
	*stored
	offset int64
	acked  bool
}

func newLog(home *Transport) *partitionLog {
	q := &partitionLog{home: home, slots: make(chan struct{}, home.cfg.buffer), ended: make(chan struct{})}
	for n := range home.cfg.partitions {
		q.parts = append(q.parts, &part{number: int32(n)})
	}
	return q
}

func (q *partitionLog) add(ctx context.Context, s *stored) error {
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.ended:
		return partition.ErrClosed
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.keyless % len(q.parts)
	if s.key != "" {
		n = partition.Of(s.key, len(q.parts))
	} else {
		q.keyless++
	}
	p := q.parts[n]
	p.log = append(p.log, &record{stored: s, offset: p.committed + int64(len(p.log))})
	if p.owned != nil {
		p.owned.fetch()
	}
	return nil
}

func (q *partitionLog) held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, p := range q.parts {
		n += len(p.log)
	}
	return n
}

func (q *partitionLog) close() { q.end.Do(func() { close(q.ended) }) }

// commit moves the committed offset. The lock is held.
func (q *partitionLog) commit(p *part, offset int64) {
	n := offset - p.committed
	if n <= 0 {
		return
	}
	clear(p.log[:n])
	p.log, p.committed = p.log[n:], offset
	for range n {
		<-q.slots
	}
}

// balance spreads the partitions over the members and moves no more than it must. The lock is held.
func (q *partitionLog) balance() {
	if len(q.members) == 0 {
		return
	}
	has := make(map[*consumer]int)
	for _, p := range q.parts {
		if p.owned != nil {
			has[p.owned.by]++
		}
	}
	most := slices.Clone(q.members) // those who have most keep one more where it does not come out even
	slices.SortStableFunc(most, func(a, b *consumer) int { return has[b] - has[a] })
	share := make(map[*consumer]int)
	for i, m := range most {
		share[m] = len(q.parts) / len(most)
		if i < len(q.parts)%len(most) {
			share[m]++
		}
	}
	for _, p := range q.parts {
		if o := p.owned; o != nil && has[o.by] > share[o.by] {
			has[o.by]--
			q.revoke(o)
		}
	}
	next := 0
	for _, p := range q.parts {
		for p.owned == nil {
			m := q.members[next%len(q.members)]
			next++
			if has[m] < share[m] {
				has[m]++
				q.assign(p, m)
			}
		}
	}
}

// assign gives p to a member, which begins at the committed offset. The lock is held.
func (q *partitionLog) assign(p *part, to *consumer) {
	q.epoch++
	p.owned = newOwnership(q, p, to)
	p.owned.fetch()
}

// revoke takes a partition from its member: what its handlers have finished is committed first, then their contexts end, and
// what they acknowledge later is ignored. The lock is held.
func (q *partitionLog) revoke(o *ownership) {
	workers := o.by.sub.workers
	for i := range workers {
		if c, ok := workers[i].holds().(*fetched); ok && c.own == o && workers[i].acked(c) {
			c.rec.settled(o.finish(c.rec))
		}
	}
	o.revoked, o.part.owned = true, nil
	for i := range workers {
		if c, ok := workers[i].holds().(*fetched); ok && c.own == o {
			workers[i].stopIf(c, transport.ErrLeaseLost)
		}
	}
}

// rebalance gives every partition to the next member.
func (q *partitionLog) rebalance() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, p := range q.parts {
		if p.owned != nil {
			q.revoke(p.owned)
			n++
		}
	}
	if len(q.members) > 1 {
		q.members = append(q.members[1:len(q.members):len(q.members)], q.members[0])
	}
	q.balance()
	return n
}

// bounce takes one partition from its member, as an expired session would, and gives it out again.
func (q *partitionLog) bounce(o *ownership) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !o.revoked {
		q.revoke(o)
		q.balance()
	}
}

func (q *partitionLog) join(c *consumer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.members = append(q.members, c)
	q.balance()
}

func (q *partitionLog) leave(c *consumer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.members, c)
	if i < 0 {
		return
	}
	q.members = slices.Delete(slices.Clone(q.members), i, i+1)
	for _, p := range q.parts {
		if p.owned != nil && p.owned.by == c {
			q.revoke(p.owned)
		}
	}
	q.balance()
}

package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// prefixBytes is how long an assignment's prefix is.
const prefixBytes = 8

// assignment is a partition while it is this member's. A partition that comes back is a new assignment.
type assignment struct {
	member *member
	stream *stream
	number int32
	prefix string // of its lanes' keys, so that nothing waits behind what is left of an earlier assignment
	mark   partition.Watermark

	mu        sync.Mutex
	inFlight  map[*delivery]struct{}
	leaving   bool // nothing more is delivered
	gone      bool // nothing more is finished
	idle      chan struct{}
	held      int   // begun and not finished
	last      int64 // highest offset begun
	epoch     int32 // the leader's, of the last record
	committed int64 // by this member
	full      bool
	paused    bool
}

func newAssignment(m *member, st *stream, number int32, prefix string) *assignment {
	return &assignment{
		member: m, stream: st, number: number, prefix: prefix,
		inFlight: make(map[*delivery]struct{}), last: -1, committed: -1,
	}
}

// add takes records in. It returns what is left where a record is not after the one before: the log was cut off or made
// anew.
func (a *assignment) add(recs []*kgo.Record) []*kgo.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving {
		return nil
	}
	cfg := a.member.transport.cfg
	for i, rec := range recs {
		if rec.Offset <= a.last || !a.mark.Begin(rec.Offset) {
			return recs[i:]
		}
		a.last, a.epoch = rec.Offset, rec.LeaderEpoch
		a.held++
		lane := ""
		if key := orderKey(rec); len(key) > 0 {
			lane = a.prefix + string(key)
		}
		_ = a.stream.lanes.TryAdd(lane, entry{Record: rec, assigned: a}) // closed lanes: the subscription is ending
	}
	a.full = a.full || a.held >= cfg.maxWaiting || a.mark.Gap() >= cfg.maxGap
	return nil
}

// enter says that d is in flight. It reports false if the partition is on its way out.
func (a *assignment) enter(d *delivery) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving {
		return false
	}
	a.inFlight[d] = struct{}{}
	return true
}

func (a *assignment) leave(d *delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.inFlight, d)
	if a.idle != nil && len(a.inFlight) == 0 {
		close(a.idle)
		a.idle = nil
	}
}

// finish says that the record at offset is handled, which is ignored once the partition is gone.
func (a *assignment) finish(offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return
	}
	a.mark.Done(offset)
	a.held--
	cfg := a.member.transport.cfg
	if a.full && a.held <= cfg.maxWaiting/2 && a.mark.Gap() < cfg.maxGap {
		a.full = false
		a.resume()
		a.member.poke()
	}
}

// pause stops fetching while the partition is full.
func (a *assignment) pause() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full && !a.paused && !a.leaving {
		a.paused = true
		a.member.client.PauseFetchPartitions(a.asMap())
	}
}

// resume undoes pause. The lock is held.
func (a *assignment) resume() {
	if a.paused {
		a.paused = false
		a.member.client.ResumeFetchPartitions(a.asMap())
	}
}

func (a *assignment) asMap() map[string][]int32 {
	return map[string][]int32{a.stream.topic: {a.number}}
}

// blocks reports whether fetching must wait for this partition.
func (a *assignment) blocks() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full && !a.paused && !a.leaving
}

// retire stops deliveries and cancels the contexts of those in flight, and returns a channel that is closed once they are
// settled, which still counts.
func (a *assignment) retire(cause error) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving = true
	a.resume()
	for d := range a.inFlight {
		d.End(cause)
	}
	idle := make(chan struct{})
	if len(a.inFlight) == 0 {
		close(idle)
		return idle
	}
	if a.idle != nil {
		return a.idle
	}
	a.idle = idle
	return idle
}

// cut ignores whatever is still in flight.
func (a *assignment) cut() {
	a.mu.Lock()
	a.leaving, a.gone = true, true
	flying := make([]*delivery, 0, len(a.inFlight))
	for d := range a.inFlight {
		flying = append(flying, d)
	}
	a.mu.Unlock()
	for _, d := range flying {
		d.worker.stop(d, transport.ErrLeaseLost)
	}
}

// pending returns what is to be committed, if anything is.
func (a *assignment) pending() (kgo.EpochOffset, bool) {
	low, begun := a.mark.Low()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !begun || a.gone || low <= a.committed || low == 0 {
		return kgo.EpochOffset{}, false
	}
	return kgo.EpochOffset{Epoch: a.epoch, Offset: low}, true
}

func (a *assignment) hasCommitted(offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.committed = max(a.committed, offset)
}

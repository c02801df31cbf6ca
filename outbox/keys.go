package outbox

import (
	"container/heap"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// laneKey is what keeps order: a partition key within its topic.
type laneKey struct{ topic, key string }

func keyOf(r *dialect.Row) laneKey { return laneKey{r.Topic, r.Key} }

// lane is the name of the key's lane. Rows without a key have no order.
func (k laneKey) lane() string {
	if k.key == "" {
		return ""
	}
	return k.topic + "\x00" + k.key
}

// keyState is what the relay knows of a key that has rows in its hands or is blocked. A blocked key's rows leave the head: the
// reader holds them as it meets them. Once its time has come, its rows are taken from the held ones in their order,
// page by page, and only when none are left may rows from the head follow.
type keyState struct {
	laneKey
	shard   int
	busy    int // rows in the relay's hands whose outcome is not written, sent ones aside
	blocked bool
	failed  bool  // blocked for good, by the row blocker
	blocker int64 // the row that failed
	epoch   int   // grows with each failure: what was loaded before it must not be sent
	due     time.Time
	queued  bool // in the due heap
	parked  bool // found blocked at a claim: not before the head has been read once
}

// dueHeap orders blocked keys by the time of their next attempt.
type dueHeap []*keyState

func (h *dueHeap) Len() int           { return len(*h) }
func (h *dueHeap) Less(i, j int) bool { return (*h)[i].due.Before((*h)[j].due) }
func (h *dueHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *dueHeap) Push(x any)         { *h = append(*h, x.(*keyState)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// key returns the state of a key, made if need be. The lock is held.
func (r *relay) key(k laneKey, shard int) *keyState {
	ks := r.keys[k]
	if ks == nil {
		ks = &keyState{laneKey: k, shard: shard}
		r.keys[k] = ks
	}
	return ks
}

// block stops the key of row until due. The lock is held.
func (r *relay) block(row *dialect.Row, due time.Time) *keyState {
	ks := r.key(keyOf(row), row.Shard)
	ks.epoch++
	ks.blocked, ks.due = true, due
	return ks
}

// await notes that a row without a key is to be tried again at due. Such rows share one state per topic, which holds nobody
// back and only says when the first of them is due. The lock is held.
func (r *relay) await(topic string, due time.Time) {
	ks := r.key(laneKey{topic: topic}, 0)
	if !ks.blocked || due.Before(ks.due) {
		ks.due = due
	}
	ks.blocked = true
	if ks.queued {
		heap.Init(&r.due)
	}
	r.schedule(ks)
}

// held reports whether rows of the key must not be sent now. The lock is held.
func (ks *keyState) held() bool { return ks != nil && ks.blocked && ks.key != "" }

// stops reports whether the item must not be sent now: its key is blocked, and it is none of those that are let through
// since. The lock is held.
func (ks *keyState) stops(it *item) bool { return ks.held() && (!it.drain || it.epoch != ks.epoch) }

// unbusy says that a row of the key left the relay's hands. The lock is held.
func (r *relay) unbusy(k laneKey) {
	ks := r.keys[k]
	if ks == nil || k.key == "" {
		return
	}
	if ks.busy--; ks.busy > 0 {
		return
	}
	switch {
	case !ks.blocked:
		delete(r.keys, k)
	case !ks.failed:
		r.schedule(ks)
	}
}

// schedule queues a blocked key for its next attempt. The lock is held.
func (r *relay) schedule(ks *keyState) {
	if ks.queued || ks.parked {
		return
	}
	ks.queued = true
	heap.Push(&r.due, ks)
	r.poke()
}

// unpark lets the keys go on that were blocked when their range was claimed. The relay before this one may have stopped with
// row 5 of a key failed, 6 and 7 in its lanes and 8 held already: 6 and 7 are still in the head, and only once it has been
// read to its end are they held too, so that 8 comes after them. The lock is held.
func (r *relay) unpark() {
	for _, ks := range r.read.parked {
		ks.parked = false
		if r.keys[ks.laneKey] == ks && ks.blocked && !ks.failed && ks.busy == 0 {
			r.schedule(ks)
		}
	}
	r.read.parked = nil
}

// popDue returns a key whose time has come. The lock is held.
func (r *relay) popDue(now time.Time) *keyState {
	for len(r.due) > 0 && !r.due[0].due.After(now) {
		ks, _ := heap.Pop(&r.due).(*keyState)
		ks.queued = false
		if r.keys[ks.laneKey] == ks && ks.blocked && !ks.failed && !ks.parked && (ks.busy == 0 || ks.key == "") {
			return ks
		}
	}
	return nil
}

package outbox

import (
	"context"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// drain takes the next page of a blocked key's held rows. When none are left the key opens: rows from the head may follow.
func (r *relay) drain(ctx context.Context, ks *keyState) (found int, err error) {
	if ks.key == "" {
		return r.drainKeyless(ctx, ks)
	}
	var page []*dialect.Row
	var stop *dialect.Row
	now := time.Now()
	hold := r.box.cfg.policy == HoldKey
	defer r.watchDrops()()
	err = r.box.store.Waiting(ctx, ks.topic, ks.key, 0, hold, func(row *dialect.Row) bool {
		switch {
		case r.here(row.Seq):
			return true
		case row.State == dialect.Failed || row.Available.After(now):
			stop = row
			return false
		}
		page = append(page, row)
		return len(page) < pageRows
	})
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[ks.laneKey] != ks {
		return 0, nil
	}
	for _, row := range page {
		found += r.sendHeld(row, ks)
	}
	if found > 0 {
		return found, nil // the last of them to be settled schedules the key again
	}
	switch {
	case len(page) > 0: // the range is lost or on its way out
		delete(r.keys, ks.laneKey)
	case stop == nil:
		delete(r.keys, ks.laneKey)
	case stop.State == dialect.Failed:
		ks.failed, ks.blocker = true, stop.Seq
	default:
		ks.due = stop.Available
		r.schedule(ks)
	}
	return 0, nil
}

// here reports whether a row that was just read is or was in the relay's hands.
func (r *relay) here(seq int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, left := r.dropped[seq]
	return left || r.flight[seq] != nil
}

// watchDrops remembers, until the returned function is called, which rows leave the relay's hands. A query shows what was
// before it began: a row that it shows as held may have been marked, and dropped, before the relay looks whether it has
// it, and would be sent a second time.
func (r *relay) watchDrops() (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped = make(map[int64]struct{})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dropped = nil
	}
}

// sendHeld sends a held row. The lock is held.
func (r *relay) sendHeld(row *dialect.Row, ks *keyState) int {
	rng := dialect.RangeOf(row.Shard)
	token, mine := r.tokens[rng]
	if !mine || r.read.leaving[rng] {
		return 0
	}
	r.send(&item{row: row, token: token, drain: true, epoch: ks.epoch})
	return 1
}

// drainKeyless takes the rows without a key that are due, and finds out when the next one is.
func (r *relay) drainKeyless(ctx context.Context, ks *keyState) (found int, err error) {
	now := time.Now()
	r.mu.Lock()
	ks.blocked = false
	mask := r.mask()
	r.mu.Unlock()
	var page []*dialect.Row
	defer r.watchDrops()()
	err = r.box.store.Retrying(ctx, ks.topic, now, mask, func(row *dialect.Row) bool {
		if !r.here(row.Seq) {
			page = append(page, row)
		}
		return len(page) < pageRows
	})
	if err != nil {
		r.mu.Lock()
		ks.blocked = true
		r.mu.Unlock()
		return 0, err
	}
	due, err := r.nextKeyless(ctx, ks.topic, now, len(page) == pageRows)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range page {
		found += r.sendHeld(row, ks)
	}
	switch {
	case err != nil:
		r.await(ks.topic, now.Add(readPause))
	case !due.IsZero():
		r.await(ks.topic, due)
	case !ks.blocked:
		delete(r.keys, ks.laneKey)
	}
	return found, nil
}

// nextKeyless returns when the topic's next row without a key is due.
func (r *relay) nextKeyless(ctx context.Context, topic string, now time.Time, full bool) (time.Time, error) {
	if full {
		return now.Add(readPause), nil
	}
	r.mu.Lock()
	mask := r.mask()
	r.mu.Unlock()
	return r.box.store.NextRetry(ctx, topic, now, mask)
}

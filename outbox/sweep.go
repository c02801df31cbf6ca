package outbox

import (
	"context"
	"time"
)

const sweepBatch = 1000

// sweep deletes a batch of old rows, if it is time to. The relay that holds the first range does it, so that there is one at
// a time. It waits until no row is in flight, or goes on slowly.
func (r *relay) sweep(ctx context.Context) error {
	rd := &r.read
	now := time.Now()
	cfg := &r.box.cfg
	if r.newMarks.Swap(0) > 0 && rd.sweepDue.IsZero() {
		rd.sweepDue = now.Add(max(cfg.retention, sweepPause(cfg.retention)))
	}
	if !rd.swept {
		rd.swept, rd.sweepDue = true, now // what an earlier process left
	}
	if rd.sweepDue.IsZero() || now.Before(rd.sweepDue) {
		return nil
	}
	r.mu.Lock()
	_, mine := r.tokens[0]
	r.mu.Unlock()
	if !mine {
		rd.sweepFrom, rd.sweepDue = 0, now.Add(sweepPause(cfg.retention))
		if rd.relays < 2 {
			rd.sweepDue = time.Time{}
		}
		return nil
	}
	s, err := r.box.store.Sweep(ctx, rd.sweepFrom, now.Add(-cfg.retention), sweepBatch)
	if err != nil {
		return err
	}
	switch {
	case !s.Young.IsZero():
		rd.sweepFrom = 0
		rd.sweepDue = s.Young.Add(cfg.retention)
		if soonest := now.Add(sweepPause(cfg.retention)); rd.sweepDue.Before(soonest) {
			rd.sweepDue = soonest
		}
	case s.More:
		rd.sweepFrom, rd.sweepDue = s.Next, now.Add(time.Millisecond)
	default:
		rd.sweepFrom, rd.sweepDue = 0, time.Time{}
	}
	return nil
}

// sweepPause is the least time between two sweeps.
func sweepPause(retention time.Duration) time.Duration {
	return min(max(retention/10, time.Second), time.Minute)
}

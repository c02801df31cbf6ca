package outbox

import (
	"context"
	"time"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/errtext"
)

// Marks are collected for a moment: a commit costs far more than a row in it.
const (
	markLinger = 5 * time.Millisecond
	markLeast  = 500
	markPause  = 100 * time.Millisecond // after the database refused
)

// markBatch is how many rows are marked at once: as many as are read at once, if they are many.
func (r *relay) markBatch() int { return max(markLeast, r.box.cfg.batch) }

// markLater queues items for marking. The lock is held.
func (r *relay) markLater(its ...*item) {
	r.marks = append(r.marks, its...)
	if len(r.marks) == len(its) || len(r.marks) >= r.markBatch() {
		select {
		case r.marked <- struct{}{}:
		default:
		}
	}
}

func (r *relay) mark(ctx context.Context, done <-chan struct{}) {
	for {
		select {
		case <-r.marked:
			r.linger(done)
		case <-done:
			r.markDown(ctx, 0)
			return
		}
		r.markDown(ctx, r.markBatch()-1)
	}
}

// markDown marks what is collected, one batch at least, until no more than rest is left; that lingers for company.
func (r *relay) markDown(ctx context.Context, rest int) {
	for r.dead() == nil && ctx.Err() == nil && r.markSome(ctx) {
		r.mu.Lock()
		left := len(r.marks)
		if left > 0 && left <= rest { // came meanwhile, and found the queue not empty: nobody has signalled it
			select {
			case r.marked <- struct{}{}:
			default:
			}
		}
		r.mu.Unlock()
		if left <= rest {
			return
		}
	}
}

func (r *relay) linger(done <-chan struct{}) {
	t := time.NewTimer(markLinger)
	defer t.Stop()
	for {
		r.mu.Lock()
		n := len(r.marks)
		r.mu.Unlock()
		if n >= r.markBatch() {
			return
		}
		select {
		case <-r.marked:
		case <-t.C:
			return
		case <-done:
			return
		}
	}
}

// markSome marks a batch of what is collected. It reports false if it could not.
func (r *relay) markSome(ctx context.Context) bool {
	r.mu.Lock()
	n := min(len(r.marks), r.markBatch())
	batch := r.marks[:n:n]
	r.marks = r.marks[n:]
	if len(r.marks) == 0 {
		r.marks = nil
	}
	r.mu.Unlock()
	for token, seqs := range byToken(batch) {
		if !r.markToken(ctx, token, seqs) {
			return false
		}
	}
	r.mu.Lock()
	for _, it := range batch {
		r.drop(it)
	}
	r.mu.Unlock()
	if n > 0 {
		if err := crash.At(ctx, crash.Marked); err != nil {
			r.die(err)
		}
	}
	return true
}

// markToken does not give up while the database refuses: what was sent must not be sent again for want of patience.
func (r *relay) markToken(ctx context.Context, token int64, seqs []int64) bool {
	for {
		n, err := r.box.store.Mark(ctx, dialect.Fence{Owner: r.owner, Token: token}, seqs, time.Now(), r.box.cfg.retention == 0)
		if err == nil {
			r.box.count.published.Add(n)
			r.newMarks.Add(n)
			if lost := int64(len(seqs)) - n; lost > 0 {
				r.box.count.lost.Add(lost)
				r.mu.Lock()
				r.recheck = true
				r.mu.Unlock()
				r.poke()
			}
			return true
		}
		r.log.Warn("outbox rows could not be marked, trying again", "rows", len(seqs), "error", errtext.Clean(err))
		if sleep(ctx, markPause) != nil || r.dead() != nil {
			return false
		}
	}
}

func byToken(its []*item) map[int64][]int64 {
	groups := make(map[int64][]int64, 1)
	for _, it := range its {
		groups[it.token] = append(groups[it.token], it.row.Seq)
	}
	return groups
}

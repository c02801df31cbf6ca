package outbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// On a server a number is given out before its row is committed, and the cursor passes numbers that nobody can see yet. Say 5 of
// a key is such a hole while 6 of another key is read; then 5 is committed, and 9 of the same key after it. Whoever reads 9 must
// have 5 by then. So before rows are taken in, the holes are looked at once more, by number: what was committed before a row that
// was read is seen by a query that began later. Holes that stay, of transactions that were rolled back, are given up after a
// while; what is committed in them later still is found by [relay.readGaps].
const (
	holesMost  = 2000
	holesReach = 5000 // numbers below the cursor; at a start there may be millions
	holesFor   = 10 * time.Minute
)

// noteHoles remembers the numbers up to the cursor that rows may still appear under.
func (r *relay) noteHoles(ctx context.Context, after int64, rows []*dialect.Row) error {
	rd := &r.read
	after = max(after, rd.cursor-holesReach)
	if !r.box.shared || rd.cursor-after == int64(len(rows)) {
		return nil
	}
	r.mu.Lock()
	mask := r.mask()
	r.mu.Unlock()
	done, err := r.box.store.Done(ctx, after, rd.cursor, mask)
	if err != nil {
		return err
	}
	known := make(map[int64]bool, len(done)+len(rows))
	for _, seq := range done {
		known[seq] = true
	}
	for _, row := range rows {
		known[row.Seq] = true
	}
	now := time.Now()
	r.mu.Lock()
	for seq := after + 1; seq <= rd.cursor; seq++ {
		if !known[seq] && r.flight[seq] == nil {
			rd.holes[seq] = now
		}
	}
	r.mu.Unlock()
	maps.DeleteFunc(rd.holes, func(_ int64, since time.Time) bool { return now.Sub(since) > holesFor })
	if over := len(rd.holes) - holesMost; over > 0 {
		for _, seq := range slices.Sorted(maps.Keys(rd.holes))[:over] {
			delete(rd.holes, seq)
		}
	}
	return nil
}

// readHoles takes in what has appeared in the holes.
func (r *relay) readHoles(ctx context.Context) (found int, err error) {
	if len(r.read.holes) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	mask := r.mask()
	r.mu.Unlock()
	var rows []*dialect.Row
	err = r.box.store.Load(ctx, slices.Sorted(maps.Keys(r.read.holes)), func(row *dialect.Row) bool {
		if row.Shard < 0 || mask.Has(row.Shard) {
			rows = append(rows, row)
		}
		return true
	})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return r.admit(ctx, rows)
}

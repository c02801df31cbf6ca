package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/errtext"
)

const (
	idleFirst   = 200 * time.Millisecond
	idleLongest = 5 * time.Minute
	gapEvery    = 50 * time.Millisecond // between looks for rows that became visible behind the cursor
	gapCost     = 10                    // times what a look took is the least time between two, added to gapEvery
	readPause   = 100 * time.Millisecond
	pageRows    = 100 // of a blocked key at once
)

// reading is what only the reader knows.
type reading struct {
	cursor    int64               // every pending row up to here was seen, unless it became visible later
	before    int64               // where the cursor was before it went back to the beginning
	holes     map[int64]time.Time // numbers up to the cursor that no row was seen under, and since when
	gapDue    time.Time
	lastGap   time.Time
	idle      time.Duration
	pollDue   time.Time
	relays    int
	absent    int       // other relays that may come back
	worked    time.Time // when there was last something to do
	share     int
	parked    []*keyState
	leaving   map[int]bool // ranges to give up once nothing of them is in flight
	sweepFrom int64
	sweepDue  time.Time
	swept     bool
	orders    int64 // what operators did until then is known
	orderDue  time.Time
	gapFull   bool // the last look behind the cursor found more than fits
	lastOrder time.Time
}

// reader runs until ctx ends. Each round looks at everything that may be due and then sleeps until woken or until the next
// thing is due: an idle relay that is alone has nothing due but its own rare looks.
func (r *relay) reader(ctx, late context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	r.read.leaving = make(map[int]bool)
	r.read.holes = make(map[int64]time.Time)
	woken := true
	for ctx.Err() == nil {
		next, err := r.round(late, woken)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			r.log.Warn("outbox could not be read, trying again", "error", errtext.Clean(err))
			next = time.Now().Add(readPause)
		}
		woken = err != nil
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
		case <-r.box.wake:
			woken = true
		case <-r.poked:
		case <-timer.C:
		}
	}
}

// round does whatever is due and returns when to come back.
func (r *relay) round(ctx context.Context, woken bool) (next time.Time, err error) {
	rd := &r.read
	now := time.Now()
	if err := r.flush(ctx); err != nil {
		return now, err
	}
	polling := !now.Before(rd.pollDue)
	if woken || polling {
		rd.gapDue = earliest(rd.gapDue, rd.lastGap.Add(gapEvery))
		rd.orderDue = earliest(rd.orderDue, rd.lastOrder.Add(ordersEvery))
	}
	r.mu.Lock()
	if rd.gapFull && r.room() > 0 {
		rd.gapFull, rd.gapDue = false, earliest(rd.gapDue, rd.lastGap.Add(gapEvery))
	}
	r.mu.Unlock()
	orders, err := r.ordered(ctx, now)
	if err != nil {
		return now, err
	}
	woken = woken || orders != rd.orders
	ok, err := r.lease(ctx, now, woken)
	if err != nil {
		return now, err
	}
	if ok && orders != rd.orders {
		if err := r.obey(ctx, orders); err != nil {
			return now, err
		}
	}
	found := 0
	if !ok {
		rd.gapDue = time.Time{}
	} else {
		if found, err = r.readAll(ctx); err != nil {
			return now, err
		}
		if err := r.leave(ctx); err != nil {
			return now, err
		}
	}
	if err := r.sweep(ctx); err != nil {
		return now, err
	}
	return r.next(time.Now(), woken || found > 0, polling), nil
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// next returns when there is something to do again.
func (r *relay) next(now time.Time, active, polled bool) time.Time {
	rd := &r.read
	cfg := &r.box.cfg
	switch {
	case cfg.poll > 0:
		rd.idle = cfg.poll
	case rd.relays > 1:
		rd.idle = idleFirst
	case active:
		rd.idle = idleFirst
	case polled:
		rd.idle = min(2*rd.idle, idleLongest)
	}
	if active || polled {
		rd.pollDue = now.Add(rd.idle)
	}
	next := rd.pollDue
	if !rd.gapDue.IsZero() {
		next = earliest(next, rd.gapDue)
	}
	if !rd.orderDue.IsZero() {
		next = earliest(next, rd.orderDue)
	}
	if !rd.sweepDue.IsZero() {
		next = earliest(next, rd.sweepDue)
	}
	if r.box.burst.Load() > dialect.Micros(now) {
		next = earliest(next, now.Add(burstEvery))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.due) > 0 {
		next = earliest(next, r.due[0].due)
	}
	if r.working() || r.guards(now) || rd.relays > 1 {
		next = earliest(next, r.leaseUntil.Add(-cfg.leaseTTL*2/3))
	}
	return next
}

// flush writes the outcomes that are not success. Until they are written nothing else is read: the held rows must be held
// before their key can open.
func (r *relay) flush(ctx context.Context) error {
	r.mu.Lock()
	holds, fails := r.holds, r.fails
	r.holds, r.fails = nil, nil
	r.mu.Unlock()
	if len(holds)+len(fails) == 0 {
		return nil
	}
	err := r.write(ctx, holds, fails)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.holds, r.fails = append(holds, r.holds...), append(fails, r.fails...)
		return err
	}
	for _, f := range fails {
		r.drop(f.item)
		if f.row.Key == "" && f.State == dialect.Held {
			r.await(f.row.Topic, f.Retry)
		}
		r.unbusy(keyOf(f.row))
	}
	for _, it := range holds {
		r.drop(it)
		r.unbusy(keyOf(it.row))
	}
	return nil
}

func (r *relay) write(ctx context.Context, holds []*item, fails []failure) error {
	byFence := make(map[int64][]dialect.Failure)
	for _, f := range fails {
		byFence[f.token] = append(byFence[f.token], f.Failure)
	}
	for token, group := range byFence {
		if err := r.box.store.Fail(ctx, dialect.Fence{Owner: r.owner, Token: token}, group, time.Now()); err != nil {
			return err
		}
	}
	for token, seqs := range byToken(holds) {
		if err := r.box.store.Hold(ctx, dialect.Fence{Owner: r.owner, Token: token}, seqs); err != nil {
			return err
		}
	}
	return nil
}

// readAll takes in what is due: blocked keys whose time has come, new rows, and rows that became visible late.
func (r *relay) readAll(ctx context.Context) (found int, err error) {
	for {
		r.mu.Lock()
		ks := r.popDue(time.Now())
		r.mu.Unlock()
		if ks == nil {
			break
		}
		n, err := r.drain(ctx, ks)
		if err != nil {
			r.mu.Lock()
			r.schedule(ks)
			r.mu.Unlock()
			return found, err
		}
		found += n
	}
	for {
		n, more, err := r.readHeads(ctx)
		found += n
		if err != nil || !more {
			if err != nil {
				return found, err
			}
			break
		}
	}
	rd := &r.read
	if now := time.Now(); !rd.gapDue.IsZero() && !now.Before(rd.gapDue) {
		rd.gapDue, rd.lastGap = time.Time{}, now
		n, err := r.readGaps(ctx)
		// Dead index entries that no vacuum may remove yet make this slow; then it is done less often.
		rd.lastGap = rd.lastGap.Add(gapCost * time.Since(now))
		return found + n, err
	}
	return found, nil
}

// rewind makes the reader begin anew. What it reads again may be in the relay's hands, and leave them meanwhile.
func (r *relay) rewind() {
	r.read.before = max(r.read.before, r.read.cursor)
	r.read.cursor = 0
}

// readHeads takes in new rows. It reports whether there may be more to read at once.
func (r *relay) readHeads(ctx context.Context) (found int, more bool, err error) {
	r.mu.Lock()
	limit := r.room()
	budget := maxBytes - r.bytes
	r.hungry = limit <= 0
	mask := r.mask()
	r.mu.Unlock()
	if limit <= 0 || mask == 0 {
		return 0, false, nil
	}
	top := int64(0)
	if r.read.cursor == 0 {
		if top, err = r.box.store.Top(ctx); err != nil {
			return 0, false, err
		}
	}
	from, again := r.read.cursor, r.read.cursor < r.read.before
	if again {
		defer r.watchDrops()()
	}
	var rows []*dialect.Row
	last, read := int64(0), 0
	err = r.box.store.Heads(ctx, r.read.cursor, mask, limit, func(row *dialect.Row) bool {
		last = row.Seq
		if read++; again && r.here(row.Seq) {
			return true
		}
		rows = append(rows, row)
		budget -= len(row.Payload)
		return budget > 0
	})
	if err != nil {
		return 0, false, err
	}
	if found, err = r.readEarlier(ctx, rows); err != nil || found > 0 || r.read.gapFull {
		return found, err == nil && !r.read.gapFull, err
	}
	if read > 0 {
		if found, err = r.admit(ctx, rows); err != nil {
			return found, false, err
		}
		r.read.cursor = last
		if r.read.gapDue.IsZero() {
			r.read.gapDue = r.read.lastGap.Add(gapEvery)
		}
	}
	more = read == limit || budget <= 0
	if !more {
		r.read.cursor = max(r.read.cursor, top, r.read.before) // what was pending up to there was in rows
	}
	if err := r.noteHoles(ctx, from, rows); err != nil {
		return found, false, err
	}
	if !more && r.read.parked != nil {
		r.mu.Lock()
		r.unpark()
		r.mu.Unlock()
	}
	return found, more, nil
}

// readEarlier takes in what must come before rows that were just read beyond the cursor; if it finds any, they are read again.
func (r *relay) readEarlier(ctx context.Context, rows []*dialect.Row) (found int, err error) {
	if len(rows) == 0 || r.read.cursor == 0 {
		return 0, nil
	}
	if slices.ContainsFunc(rows, func(row *dialect.Row) bool { return row.Generation > 0 }) {
		// A replay may have begun behind the cursor.
		if found, err = r.readGaps(ctx); err != nil || found > 0 {
			return found, err
		}
	}
	return r.readHoles(ctx)
}

// readGaps takes in pending rows behind the cursor that are in nobody's hands: of a transaction that took its number
// early and committed late, or made pending again by an operator. One query sees them all, or the first of them if they are too
// many: of rows that were committed together an earlier one of the key must not be missed.
func (r *relay) readGaps(ctx context.Context) (found int, err error) {
	r.mu.Lock()
	mask, room := r.mask(), max(r.room(), 0)
	limit := len(r.flight) + room + 1
	r.mu.Unlock()
	seqs, err := r.box.store.Stragglers(ctx, 0, r.read.cursor, mask, limit)
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	r.mu.Lock()
	late := seqs[:0]
	for _, seq := range seqs {
		if r.flight[seq] == nil {
			late = append(late, seq)
		}
	}
	if room = max(r.room(), 0); len(late) > room { // the rest comes later, and before all that comes after it
		late = late[:room]
		r.hungry, r.read.gapFull = true, true
	}
	r.mu.Unlock()
	if len(late) == 0 {
		return 0, nil
	}
	var rows []*dialect.Row
	err = r.box.store.Load(ctx, late, func(row *dialect.Row) bool {
		rows = append(rows, row)
		return true
	})
	if err != nil {
		return 0, err
	}
	return r.admit(ctx, rows)
}

// admit puts pending rows into their lanes, or out of the head where their key is blocked.
func (r *relay) admit(ctx context.Context, rows []*dialect.Row) (found int, err error) {
	if err := r.adopt(ctx, rows); err != nil {
		return 0, err
	}
	if err := crash.At(ctx, crash.Claimed); err != nil {
		r.die(err)
		return 0, err
	}
	now := time.Now()
	r.mu.Lock()
	for _, row := range rows {
		delete(r.read.holes, row.Seq)
		if r.admitRow(row, now) {
			found++
		}
	}
	held := len(r.holds) > 0
	r.mu.Unlock()
	if held {
		err = r.flush(ctx)
	}
	return found, err
}

// adopt completes rows that foreign writers wrote.
func (r *relay) adopt(ctx context.Context, rows []*dialect.Row) error {
	var foreign []*dialect.Row
	for _, row := range rows {
		if row.Shard >= 0 {
			continue
		}
		row.Shard = shardOf(row.Key, row.ID)
		if row.Created.IsZero() {
			row.Created = time.Now().UTC().Truncate(time.Microsecond)
		}
		if row.Source == "" {
			row.Source = row.Topic
		}
		foreign = append(foreign, row)
	}
	if foreign == nil {
		return nil
	}
	return r.box.store.Adopt(ctx, foreign)
}

// admitRow takes one row in, unless it is here already or another relay's. The lock is held.
func (r *relay) admitRow(row *dialect.Row, now time.Time) bool {
	rng := dialect.RangeOf(row.Shard)
	token, mine := r.tokens[rng]
	if !mine || r.read.leaving[rng] || r.flight[row.Seq] != nil {
		return false
	}
	it := &item{row: row, token: token}
	k := keyOf(row)
	ks := r.keys[k]
	switch {
	case ks.held():
		if ks.failed && row.Seq <= ks.blocker { // made pending again by an operator
			ks.failed, ks.due = false, now
		}
		ks.busy++
		r.hold(it)
	case row.Available.After(now):
		if row.Key == "" {
			r.await(row.Topic, row.Available)
		} else {
			r.block(row, now).busy++ // rows before it go first; the drain stops at this one
		}
		r.hold(it)
	default:
		r.send(it)
	}
	return true
}

// hold takes a row out of the head. The lock is held.
func (r *relay) hold(it *item) {
	r.flight[it.row.Seq] = it
	r.holds = append(r.holds, it)
}

// send puts a row into its lane. The lock is held.
func (r *relay) send(it *item) {
	it.bytes = len(it.row.Payload)
	r.flight[it.row.Seq] = it
	r.bytes += it.bytes
	r.box.count.unsettled.Store(int64(len(r.flight)))
	k := keyOf(it.row)
	if k.key != "" {
		r.key(k, it.row.Shard).busy++
	}
	// It fails after Close only, when nothing is read any more.
	_ = r.lanes.TryAdd(k.lane(), it)
}

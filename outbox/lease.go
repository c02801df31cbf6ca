package outbox

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// mask returns the ranges to read. The lock is held.
func (r *relay) mask() (m dialect.Mask) {
	for rng := range r.tokens {
		if !r.read.leaving[rng] {
			m |= 1 << rng
		}
	}
	return m
}

// lease makes sure that the leases are good for reading. It reports false if there is nothing to read for and nothing to
// keep a lease for: then an idle relay's leases may run out, and cost nothing. A relay that is alone and whose rows only wait
// for groups to acknowledge them is idle too, for they may wait for hours: its marks are fenced by the token, so that they
// hold if nobody else came, and are refused if somebody did.
func (r *relay) lease(ctx context.Context, now time.Time, woken bool) (ok bool, err error) {
	ttl := r.box.cfg.leaseTTL
	r.mu.Lock()
	left := r.leaseUntil.Sub(now)
	if woken || r.working() {
		r.read.worked = now
	}
	busy := r.working() || r.guards(now) || len(r.due) > 0 && !r.due[0].due.After(now)
	force := r.recheck
	r.mu.Unlock()
	if left > ttl*2/3 && !force {
		return true, nil
	}
	if !woken && !busy && !force && r.read.relays == 1 && r.box.cfg.poll == 0 {
		pending, err := r.anyElse(ctx)
		if err != nil || !pending {
			return false, err
		}
	}
	claim, err := r.box.store.Renew(ctx, r.owner, now, ttl)
	if err != nil {
		return false, err
	}
	return true, r.claimed(ctx, claim, now.Add(ttl))
}

// lingerTTLs is for how many lease times a relay keeps its leases after it last had something to do, so that it sees who else
// has come by then.
const lingerTTLs = 6

// guards reports whether rows that only wait must be kept from others: there are other relays, or may be. The lock is held.
func (r *relay) guards(now time.Time) bool {
	rd := &r.read
	return len(r.flight) > 0 &&
		(rd.relays > 1 || rd.absent > 0 || r.box.cfg.poll > 0 || now.Sub(rd.worked) < lingerTTLs*r.box.cfg.leaseTTL)
}

// anyElse reports whether rows are pending that are not in the relay's hands.
func (r *relay) anyElse(ctx context.Context) (bool, error) {
	r.mu.Lock()
	none := len(r.flight) == 0
	r.mu.Unlock()
	if none {
		return r.box.store.AnyPending(ctx)
	}
	const all = dialect.Mask(1<<dialect.Ranges - 1)
	for after, limit := int64(0), r.box.cfg.batch; ; {
		seqs, err := r.box.store.Stragglers(ctx, after, math.MaxInt64, all, limit)
		if err != nil {
			return false, err
		}
		for _, seq := range seqs {
			if !r.here(seq) {
				return true, nil
			}
		}
		if len(seqs) < limit {
			return false, nil
		}
		after = seqs[len(seqs)-1]
	}
}

// claimed takes up a new set of leases: forgets what was lost, learns about what was gained, and sees what is to be given
// up because another relay came.
func (r *relay) claimed(ctx context.Context, claim dialect.Claim, until time.Time) error {
	r.mu.Lock()
	r.read.relays, r.read.share, r.read.absent = claim.Relays, claim.Share, claim.Absent
	r.box.relays.Store(int64(claim.Relays))
	r.recheck = false
	var gained dialect.Mask
	for rng := range dialect.Ranges {
		was, had := r.tokens[rng]
		is, has := claim.Tokens[rng]
		if had && (!has || was != is) {
			r.forget(rng)
		}
		if has && (!had || was != is) {
			gained |= 1 << rng
		}
	}
	r.surplus(claim, &gained)
	r.mu.Unlock()
	if gained != 0 {
		blocked, err := r.box.store.Blocked(ctx, gained, r.box.cfg.policy == HoldKey)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.restore(blocked)
		r.mu.Unlock()
		r.rewind()
	}
	r.mu.Lock()
	maps.Copy(r.tokens, claim.Tokens)
	r.leaseUntil = until
	r.mu.Unlock()
	return nil
}

// forget drops a range and what is known about its blocked keys. The lock is held.
func (r *relay) forget(rng int) {
	delete(r.tokens, rng)
	delete(r.read.leaving, rng)
	for k, ks := range r.keys {
		if k.key != "" && dialect.RangeOf(ks.shard) == rng && ks.blocked && ks.busy == 0 {
			delete(r.keys, k)
		}
	}
}

// surplus decides which ranges are to be given up. One that was to be given up and is not any more counts as gained. One
// that was lost and is back, while rows of it are in flight under the old claim, is given up too and claimed afresh after:
// their outcome cannot be written, so later rows of their keys must not be read before they are out of the way. The lock
// is held.
func (r *relay) surplus(claim dialect.Claim, gained *dialect.Mask) {
	stale := make(map[int]bool)
	for _, it := range r.flight {
		rng := dialect.RangeOf(it.row.Shard)
		stale[rng] = stale[rng] || it.token != claim.Tokens[rng]
	}
	ranges := slices.Sorted(maps.Keys(claim.Tokens))
	for i, rng := range ranges {
		switch {
		case i >= claim.Share || stale[rng]:
			r.read.leaving[rng] = true
			*gained &^= 1 << rng
		case r.read.leaving[rng]:
			delete(r.read.leaving, rng)
			*gained |= 1 << rng
		}
	}
}

// restore learns which keys were blocked before this relay had them. The lock is held.
func (r *relay) restore(blocked []dialect.BlockedKey) {
	for _, b := range blocked {
		if b.Key == "" {
			r.await(b.Topic, b.Available)
			continue
		}
		ks := r.key(laneKey{b.Topic, b.Key}, b.Shard)
		if ks.blocked && ks.busy > 0 {
			continue // known, and in the middle of something
		}
		ks.blocked, ks.due = true, b.Available
		if ks.failed = b.State == dialect.Failed; ks.failed {
			ks.blocker = b.Seq
		}
		r.park(ks)
	}
}

// leave gives up the ranges that another relay should have, once nothing of them is in flight.
func (r *relay) leave(ctx context.Context) error {
	if len(r.read.leaving) == 0 {
		return nil
	}
	r.mu.Lock()
	busy := make(map[int]bool)
	for _, it := range r.flight {
		busy[dialect.RangeOf(it.row.Shard)] = true
	}
	var free []int
	for rng := range r.read.leaving {
		if !busy[rng] {
			free = append(free, rng)
		}
	}
	r.mu.Unlock()
	if len(free) == 0 {
		return nil
	}
	if err := r.box.store.Release(ctx, r.owner, free); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rng := range free {
		r.forget(rng)
	}
	r.recheck = r.recheck || len(r.tokens) < r.read.share
	if r.recheck {
		r.poke()
	}
	return nil
}

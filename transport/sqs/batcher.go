package sqs

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seambus/seambus/transport"
)

// batcher gathers entries of many goroutines into calls of up to ten. Entries of one lane go in their order: the next is
// sent when all before it have their result, so that an entry that fails alone is repeated alone and nothing passes it. It has
// goroutines only while it has entries.
type batcher struct {
	cfg batchConfig

	mu      sync.Mutex
	lanes   map[string]*batchLane
	ready   []*batchLane // oldest first
	timer   *time.Timer  // runs out when the oldest ready lane has lingered
	armed   time.Time
	sending int
	pause   time.Time // no call before: the broker throttles
	pauses  int       // in a row
	closed  bool
	quit    chan struct{}
	running sync.WaitGroup
}

type batchConfig struct {
	perLane  int           // entries of a lane in one call
	bytes    int           // in one call; zero means no bound
	parallel int           // calls at once
	linger   time.Duration // how long an entry waits for others
	timeout  time.Duration // of one call
	tries    int           // of an entry, when it is not to blame; zero means no bound
	// call reports what failed, by place. A transient failure is one that wraps transport.ErrUnavailable. An err is the failure of
	// all.
	call func(ctx context.Context, items []*batchItem) (failed map[int]error, err error)
}

type batchLane struct {
	key   string
	items []*batchItem
	busy  bool
}

// batchItem is one entry. Its fields belong to the batcher once added.
type batchItem struct {
	lane  string
	value any
	size  int
	owner any             // whose later entries of the lane are not to be sent if this one fails; nil for nobody
	done  func(error)     // called once, without locks held
	stale func() bool     // asked before each sending; may be nil. A stale entry is dropped without a word
	sent  time.Time       // when the call with its result began
	ctx   <-chan struct{} // identifies the context that it was added with
	added time.Time
	tries int
	alone bool // its batch was refused as a whole
	over  bool // has its result, whatever becomes of it
}

const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func newBatcher(cfg batchConfig) *batcher {
	return &batcher{cfg: cfg, lanes: make(map[string]*batchLane), quit: make(chan struct{})}
}

func (b *batcher) add(items ...*batchItem) {
	now := time.Now()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		for _, it := range items {
			it.done(transport.ErrClosed)
		}
		return
	}
	defer b.mu.Unlock()
	for _, it := range items {
		it.added = now
		ln := b.lanes[it.lane]
		if ln == nil {
			ln = &batchLane{key: it.lane}
			b.lanes[it.lane] = ln
		}
		if ln.items = append(ln.items, it); len(ln.items) == 1 && !ln.busy {
			b.ready = append(b.ready, ln)
		}
	}
	b.kick()
}

// kick starts the calls that are due and arms the timer for the next. The lock is held.
func (b *batcher) kick() {
	for b.sending < b.cfg.parallel {
		wait, some := b.due(time.Now())
		if !some {
			return
		}
		if wait > 0 {
			b.arm(wait)
			return
		}
		batch := b.take()
		if len(batch) == 0 {
			continue
		}
		b.sending++
		b.running.Go(func() { b.send(batch) })
	}
}

// due says how long to wait before the next call, and whether there is something for it.
func (b *batcher) due(now time.Time) (wait time.Duration, some bool) {
	if len(b.ready) == 0 {
		return 0, false
	}
	if b.pause.After(now) {
		return b.pause.Sub(now), true
	}
	n := 0
	oldest := now
	for _, ln := range b.ready {
		if len(ln.items) == 0 {
			continue // withdrawn; take forgets the lane
		}
		n += min(len(ln.items), b.cfg.perLane)
		if at := ln.items[0].added; at.Before(oldest) {
			oldest = at
		}
		if n >= maxBatch {
			return 0, true
		}
	}
	return max(b.cfg.linger-now.Sub(oldest), 0), true
}

func (b *batcher) arm(wait time.Duration) {
	at := time.Now().Add(wait)
	if b.timer != nil {
		if !b.armed.IsZero() && !b.armed.After(at) {
			return
		}
		b.timer.Stop()
	}
	b.armed = at
	b.timer = time.AfterFunc(wait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.armed = time.Time{}
		if !b.closed {
			b.kick()
		}
	})
}

// take makes the next batch of ready lanes' first entries.
func (b *batcher) take() []*batchItem {
	var batch []*batchItem
	bytes, i := 0, 0
	for ; i < len(b.ready) && len(batch) < maxBatch; i++ {
		ln := b.ready[i]
		ln.dropStale()
		n := 0
		for n < len(ln.items) && n < b.cfg.perLane && len(batch) < maxBatch {
			it := ln.items[n]
			if len(batch) > 0 && (b.cfg.bytes > 0 && bytes+it.size > b.cfg.bytes || it.alone || batch[0].alone) {
				break
			}
			bytes += it.size
			batch = append(batch, it)
			n++
		}
		if n == 0 && len(ln.items) > 0 {
			break // no room: first of the next one
		}
		ln.items = ln.items[n:]
		ln.busy = n > 0
		if n == 0 {
			delete(b.lanes, ln.key)
		}
	}
	b.ready = append(b.ready[:0], b.ready[i:]...)
	return batch
}

func (ln *batchLane) dropStale() {
	kept := ln.items[:0]
	for _, it := range ln.items {
		if !it.over && (it.stale == nil || !it.stale()) {
			kept = append(kept, it)
		}
	}
	clear(ln.items[len(kept):])
	ln.items = kept
}

func (b *batcher) send(batch []*batchItem) {
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.timeout)
	began := time.Now()
	failed, err := b.cfg.call(ctx, batch)
	cancel()
	results := make([]result, 0, len(batch))
	b.mu.Lock()
	b.sending--
	b.throttle(err)
	again := make(map[string][]*batchItem)
	for i, it := range batch {
		it.sent = began
		e := err
		if e == nil {
			e = failed[i]
		}
		if b.again(it, e, err != nil && len(batch) > 1) {
			again[it.lane] = append(again[it.lane], it)
		} else {
			results = b.finish(results, it, e)
		}
	}
	for i, it := range batch {
		if i == 0 || batch[i-1].lane != it.lane {
			b.requeue(b.lanes[it.lane], again[it.lane], err == nil)
		}
	}
	b.kick()
	b.mu.Unlock()
	for _, r := range results {
		r.item.done(r.err)
	}
}

type result struct {
	item *batchItem
	err  error
}

// throttle holds the next call back while the broker answers no call at all.
func (b *batcher) throttle(err error) {
	if err == nil || !errors.Is(err, transport.ErrUnavailable) {
		b.pauses = 0
		return
	}
	b.pauses++
	b.pause = time.Now().Add(backoff(b.pauses))
}

func backoff(n int) time.Duration {
	d := minBackoff << min(n-1, 10)
	d = min(d, maxBackoff)
	return d/2 + rand.N(d/2)
}

// again decides whether an entry is sent once more.
func (b *batcher) again(it *batchItem, err error, whole bool) bool {
	switch {
	case err == nil || it.over || b.closed:
		return false
	case errors.Is(err, transport.ErrUnavailable):
		it.tries++
		return b.cfg.tries == 0 || it.tries < b.cfg.tries
	case whole && !it.alone:
		it.alone = true // to see which one is to blame
		return true
	}
	return false
}

// finish gives an entry its result, and where it failed also those of its owner's entries that wait behind it.
func (b *batcher) finish(results []result, it *batchItem, err error) []result {
	if !it.over {
		it.over = true
		results = append(results, result{it, err})
	}
	if err != nil && it.owner != nil {
		results = b.skip(results, it)
	}
	return results
}

func (b *batcher) skip(results []result, failed *batchItem) []result {
	ln := b.lanes[failed.lane]
	kept := ln.items[:0]
	for _, it := range ln.items {
		switch {
		case it.over:
		case it.owner == failed.owner:
			it.over = true
			results = append(results, result{it, transport.ErrSkipped})
		default:
			kept = append(kept, it)
		}
	}
	clear(ln.items[len(kept):])
	ln.items = kept
	return results
}

// requeue makes a lane ready again, with what is to be repeated before everything else, or forgets it. Entries that failed
// by themselves wait by themselves; where a whole call failed, all calls wait.
func (b *batcher) requeue(ln *batchLane, again []*batchItem, byItself bool) {
	ln.busy = false
	if len(again) > 0 {
		ln.items = append(append([]*batchItem(nil), again...), ln.items...)
	}
	switch {
	case len(ln.items) == 0:
		delete(b.lanes, ln.key)
	case byItself && len(again) > 0:
		ln.busy = true
		b.running.Go(func() { b.later(ln, backoff(again[0].tries)) })
	default:
		b.ready = append(b.ready, ln)
	}
}

// later makes a lane ready after a while.
func (b *batcher) later(ln *batchLane, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.quit:
		return // what the lane holds has its result
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	ln.busy = false
	b.ready = append(b.ready, ln)
	b.kick()
}

// withdraw gives the owner's entries with this context their result before they have one. What is on its way may still be
// accepted; what is not is never sent.
func (b *batcher) withdraw(items []*batchItem, ended <-chan struct{}, err error) {
	var results []result
	b.mu.Lock()
	for _, it := range items {
		if it.ctx == ended && !it.over {
			it.over = true
			results = append(results, result{it, err})
		}
	}
	for _, r := range results {
		if ln := b.lanes[r.item.lane]; ln != nil {
			results = b.skip(results, r.item)
		}
	}
	b.mu.Unlock()
	for _, r := range results {
		r.item.done(r.err)
	}
}

// close refuses what is not on its way, and waits for what is.
func (b *batcher) close() {
	for _, r := range b.refuseAll() {
		r.item.done(r.err)
	}
	b.running.Wait()
}

func (b *batcher) refuseAll() []result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.quit)
	if b.timer != nil {
		b.timer.Stop()
	}
	var results []result
	for _, ln := range b.lanes {
		for _, it := range ln.items {
			if !it.over {
				it.over = true
				results = append(results, result{it, transport.ErrClosed})
			}
		}
		ln.items = nil
	}
	b.ready = nil
	return results
}

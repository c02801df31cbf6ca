package partition

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrClosed holds for a call on closed lanes.
	ErrClosed = errors.New("partition: lanes are closed")
	// ErrFull holds for a TryAdd that would exceed MaxHeld.
	ErrFull = errors.New("partition: lanes are full")
)

// LanesConfig bounds [Lanes]. A zero field means no bound.
type LanesConfig struct {
	// MaxInFlight is how many items may be taken and not yet settled.
	MaxInFlight int
	// MaxHeld is how many items may be held at all: waiting, delayed or in flight. Add blocks beyond it.
	MaxHeld int
}

// Lanes keeps items in FIFO order per key and hands them out in parallel across keys: while items of a key are in flight,
// no other take gets that key. A failing or delayed key stops itself only. Items with an empty key have no order. Lanes has
// no goroutines of its own, only one timer while a key is delayed; everything is safe for concurrent use. A key costs memory
// only while it holds items.
type Lanes[T any] struct {
	cfg LanesConfig

	mu       sync.Mutex
	keys     map[string]*lane[T]
	peak     int // most keys since the map was made
	free     []*lane[T]
	ready    queue[T]
	delayed  delayHeap[T]
	timer    *time.Timer
	takers   waiters
	adders   waiters
	seq      uint64
	held     int
	inFlight int
	closed   bool
}

// lane is one key's queue. It is in exactly one place: busy (items taken), in the ready queue, or in the delay heap.
type lane[T any] struct {
	key        string
	head, tail *Taken[T]
	busy       int
	notBefore  time.Time
	next       *lane[T] // in the ready queue
}

// Taken is an item in flight. It is settled exactly once, by Done or Retry; whoever comes later is told so, which makes a
// late acknowledgement harmless.
type Taken[T any] struct {
	Key  string
	Item T

	lanes *Lanes[T]
	lane  *lane[T]
	next  *Taken[T]
	seq   uint64
	state takenState
}

type takenState uint8

const (
	waiting takenState = iota
	taken
	settled
)

// maxFree bounds the lanes kept for reuse, and the key map's size above which an empty map is made anew.
const maxFree = 1024

// NewLanes returns empty lanes.
func NewLanes[T any](cfg LanesConfig) *Lanes[T] {
	return &Lanes[T]{cfg: cfg, keys: make(map[string]*lane[T])}
}

// Add appends item to key's lane. It blocks while MaxHeld items are held, until ctx ends.
func (l *Lanes[T]) Add(ctx context.Context, key string, item T) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		err := l.add(key, item)
		if err == nil || !errors.Is(err, ErrFull) {
			return err
		}
		if err := l.wait(ctx, &l.adders); err != nil {
			return err
		}
	}
}

// TryAdd is Add that returns [ErrFull] instead of blocking.
func (l *Lanes[T]) TryAdd(key string, item T) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.add(key, item)
}

func (l *Lanes[T]) add(key string, item T) error {
	if l.closed {
		return ErrClosed
	}
	if l.cfg.MaxHeld > 0 && l.held >= l.cfg.MaxHeld {
		return ErrFull
	}
	l.held++
	l.seq++
	t := &Taken[T]{Key: key, Item: item, lanes: l, seq: l.seq}
	ln := l.laneOf(key)
	t.lane = ln
	if ln.head == nil {
		ln.head, ln.tail = t, t
		if ln.busy == 0 {
			l.makeReady(ln)
		}
		return nil
	}
	ln.tail.next = t
	ln.tail = t
	return nil
}

// laneOf finds or makes the lane of key. Items without a key get one each.
func (l *Lanes[T]) laneOf(key string) *lane[T] {
	if ln, ok := l.keys[key]; ok && key != "" {
		return ln
	}
	var ln *lane[T]
	if n := len(l.free); n > 0 {
		ln, l.free[n-1] = l.free[n-1], nil
		l.free = l.free[:n-1]
	} else {
		ln = new(lane[T])
	}
	ln.key = key
	if key != "" {
		l.keys[key] = ln
		l.peak = max(l.peak, len(l.keys))
	}
	return ln
}

// Take blocks until a key is ready and fewer than MaxInFlight items are in flight, and returns the key's first item. It
// returns ctx's error when ctx ends, [ErrClosed] after Close.
func (l *Lanes[T]) Take(ctx context.Context) (*Taken[T], error) {
	return l.take(ctx, nil, 1)
}

// TakeBatch blocks like Take, then returns up to n items that are ready now. Several items of one key come in their order
// and next to each other; that key is handed out again once all of them are settled.
func (l *Lanes[T]) TakeBatch(ctx context.Context, n int) ([]*Taken[T], error) {
	var batch []*Taken[T]
	_, err := l.take(ctx, &batch, n)
	return batch, err
}

func (l *Lanes[T]) take(ctx context.Context, into *[]*Taken[T], n int) (*Taken[T], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.closed {
			return nil, ErrClosed
		}
		if first := l.pop(into, n); first != nil {
			l.wakeTaker() // there may be more for the next one
			return first, nil
		}
		if err := l.wait(ctx, &l.takers); err != nil {
			return nil, err
		}
	}
}

// wait gives up the lock until this call is woken or ctx ends, and holds it again when it returns.
func (l *Lanes[T]) wait(ctx context.Context, among *waiters) error {
	w := among.join()
	l.mu.Unlock()
	var err error
	select {
	case <-w.woken:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	switch {
	case err == nil:
		among.leave(w)
	case !among.remove(w): // woken meanwhile: the wake-up goes to the next one
		among.wake()
	}
	return err
}

// pop takes up to n items of ready lanes: one item where into is nil, otherwise also several of one lane.
func (l *Lanes[T]) pop(into *[]*Taken[T], n int) (first *Taken[T]) {
	for n > 0 && l.room() {
		ln := l.ready.pop()
		if ln == nil {
			break
		}
		for ln.head != nil && n > 0 && l.room() {
			t := ln.head
			if ln.head = t.next; ln.head == nil {
				ln.tail = nil
			}
			t.next, t.state = nil, taken
			ln.busy++
			l.inFlight++
			n--
			if first == nil {
				first = t
			}
			if into == nil {
				return first
			}
			*into = append(*into, t)
		}
	}
	return first
}

func (l *Lanes[T]) room() bool { return l.cfg.MaxInFlight <= 0 || l.inFlight < l.cfg.MaxInFlight }

// Done says that the item is finished with. It reports false, and does nothing, if the item was settled before.
func (t *Taken[T]) Done() bool {
	l := t.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.settle(t) {
		return false
	}
	l.held--
	l.adders.wake()
	l.requeue(t.lane)
	return true
}

// Retry puts the item back to the head of its key, to be taken again no sooner than delay from now; later items of the key
// wait behind it. It reports false, and does nothing, if the item was settled before.
func (t *Taken[T]) Retry(delay time.Duration) bool {
	l := t.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.settle(t) {
		return false
	}
	ln := t.lane
	ln.insert(&Taken[T]{Key: t.Key, Item: t.Item, lanes: l, lane: ln, seq: t.seq})
	if delay > 0 {
		if at := time.Now().Add(delay); at.After(ln.notBefore) {
			ln.notBefore = at
		}
	}
	l.requeue(ln)
	return true
}

func (l *Lanes[T]) settle(t *Taken[T]) bool {
	if t.state != taken {
		return false
	}
	t.state = settled
	t.lane.busy--
	l.inFlight--
	return true
}

// insert puts t where its place was: several items of one key may come back in any order.
func (ln *lane[T]) insert(t *Taken[T]) {
	at := &ln.head
	for *at != nil && (*at).seq < t.seq {
		at = &(*at).next
	}
	t.next = *at
	*at = t
	if t.next == nil {
		ln.tail = t
	}
}

// requeue moves a lane on once nothing of it is in flight: away if it is empty, else to the ready queue or to the delayed.
func (l *Lanes[T]) requeue(ln *lane[T]) {
	switch {
	case ln.busy > 0:
		if !l.room() {
			return
		}
	case ln.head == nil:
		l.drop(ln)
	case ln.notBefore.After(time.Now()):
		l.delayed.push(ln)
		l.arm()
	default:
		l.makeReady(ln)
		return
	}
	l.wakeTaker() // room in flight
}

func (l *Lanes[T]) drop(ln *lane[T]) {
	if ln.key != "" {
		delete(l.keys, ln.key)
		if len(l.keys) == 0 && l.peak > maxFree {
			l.keys, l.peak = make(map[string]*lane[T]), 0 // a map never shrinks
		}
	}
	*ln = lane[T]{}
	if len(l.free) < maxFree {
		l.free = append(l.free, ln)
	}
}

func (l *Lanes[T]) makeReady(ln *lane[T]) {
	ln.notBefore = time.Time{}
	l.ready.push(ln)
	l.wakeTaker()
}

func (l *Lanes[T]) wakeTaker() {
	if l.ready.head != nil && l.room() {
		l.takers.wake()
	}
}

// Len returns how many items are held: waiting, delayed and in flight.
func (l *Lanes[T]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// InFlight returns how many items are taken and not settled.
func (l *Lanes[T]) InFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight
}

// Close makes every Add and Take, blocked ones too, return [ErrClosed]. Items in flight may still be settled. It is
// idempotent.
func (l *Lanes[T]) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.takers.wakeAll()
	l.adders.wakeAll()
}

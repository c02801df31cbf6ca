package bustest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrFault is the error of an injected failure that was given none.
var ErrFault = errors.New("bustest: injected failure")

// faults are what is to go wrong.
type faults struct {
	mu       sync.Mutex
	copies   int
	publish  []countdown
	attempt  []countdown
	delay    func() time.Duration
	delayed  map[place]bool
	crash    []Point
	happened []string
}

// countdown fails when left reaches zero.
type countdown struct {
	left int
	err  error
}

// place is a message in a group.
type place struct{ topic, group, key, id string }

// Duplicate makes the next n messages that are published arrive twice, each copy right behind its original.
func (k *Kit) Duplicate(n int) {
	k.faults.mu.Lock()
	defer k.faults.mu.Unlock()
	k.faults.copies += n
}

// DelayDelivery makes messages that have not arrived yet arrive d later than they would. Each key keeps its order. Zero ends
// it. The transport counts one delivery more; attempts are what they were.
func (k *Kit) DelayDelivery(d time.Duration) {
	k.delay(d, func() time.Duration { return d })
}

// ReorderKeys makes messages that have not arrived yet arrive later by a time drawn from zero to most, so that messages of
// different keys overtake each other; each key keeps its order. The seed is logged. Zero ends it.
func (k *Kit) ReorderKeys(most time.Duration, seed uint64) {
	k.tb.Helper()
	k.tb.Logf("bustest: keys are reordered within %v, seed %d", most, seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	k.delay(most, func() time.Duration { return time.Duration(rng.Int64N(int64(most))) + 1 })
}

func (k *Kit) delay(most time.Duration, next func() time.Duration) {
	f := &k.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delay = next; most <= 0 {
		f.delay = nil
	}
	if f.delayed == nil {
		f.delayed = make(map[place]bool)
	}
}

// FailPublish makes the nth message published from now on fail with err, [ErrFault] if it is nil, which is worth another try.
// Nothing later of its key in the same call is sent.
func (k *Kit) FailPublish(nth int, err error) { k.faults.fail(&k.faults.publish, nth, err) }

// FailAttempt makes the nth handler call from now on fail with err, [ErrFault] if it is nil: after the handler has returned
// nil, so that an inbox must undo what it did. A call that fails by itself counts and uses it up.
func (k *Kit) FailAttempt(nth int, err error) { k.faults.fail(&k.faults.attempt, nth, err) }

// ExpireLease ends the lease of a delivery with this key that a handler has in hand: its context is cancelled, its verdict
// ignored, and the event delivered again. It fails the test if there is none; a handler may call it.
func (k *Kit) ExpireLease(key string) {
	k.tb.Helper()
	for _, at := range k.seen.inFlight(key) {
		if k.broker.ExpireLease(at.topic, at.group, at.id) {
			return
		}
	}
	k.tb.Errorf("bustest: expire the lease of key %q: no delivery of it is in hand", key)
}

func (f *faults) fail(list *[]countdown, nth int, err error) {
	if err == nil {
		err = ErrFault
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	*list = append(*list, countdown{max(nth, 1), err})
}

// next counts one down in every countdown and returns the error of one that has come to its end.
func (f *faults) next(list *[]countdown) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rest []countdown
	for _, c := range *list {
		if c.left--; c.left == 0 {
			err = c.err
			continue
		}
		rest = append(rest, c)
	}
	*list = rest
	return err
}

func (f *faults) publishes() error { return f.next(&f.publish) }
func (f *faults) attempts() error  { return f.next(&f.attempt) }

func (f *faults) duplicates() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copies == 0 {
		return false
	}
	f.copies--
	return true
}

// delays returns by how much a message is late, once for each message and group.
func (f *faults) delays(at place) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delay == nil || f.delayed[at] {
		return 0
	}
	f.delayed[at] = true
	return f.delay()
}

func (f *faults) crashAt(p Point) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crash = append(f.crash, p)
}

// crashes reports whether whoever passes p dies there.
func (f *faults) crashes(p Point) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, at := range f.crash {
		if at == p {
			f.crash = append(f.crash[:i:i], f.crash[i+1:]...)
			f.happened = append(f.happened, fmt.Sprintf("died at %q", p))
			return true
		}
	}
	return false
}

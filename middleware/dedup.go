package middleware

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DedupStore remembers which events were handled. It must be safe for concurrent use.
type DedupStore interface {
	// Claim reports whether k was handled before. If not, k is the caller's until Commit or Release; a second Claim waits
	// for that, or for ctx's end.
	Claim(ctx context.Context, k Key) (handled bool, err error)
	// Commit remembers that k was handled.
	Commit(k Key)
	// Release says that k was not handled after all.
	Release(k Key)
}

// Dedup acknowledges an event that was handled before without calling the handler again. An id is remembered after success
// only: a failed attempt never counts as seen. Of two copies at the same time, the second waits for what becomes of the
// first. A message with neither id nor UUID is nobody's copy and always handled. What it remembers in memory dies with the process; an inbox remembers in the handler's own transaction.
func Dedup(store DedupStore) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			k := keyOf(msg)
			if k.ID == "" {
				return next(msg)
			}
			handled, err := store.Claim(msg.Context(), k)
			if err != nil {
				return nil, fmt.Errorf("middleware: dedup: %w", err)
			}
			if handled {
				return nil, nil
			}
			done := false
			defer func() { // a panic, too, gives the claim back
				if !done {
					store.Release(k)
				}
			}()
			out, err := next(msg)
			if err == nil {
				store.Commit(k)
				done = true
			}
			return out, err
		}
	}
}

// NewMemoryDedup returns a store that remembers up to most ids for ttl each, the oldest forgotten first. Neither bound may
// be zero or less: they are then an hour and 100,000.
func NewMemoryDedup(ttl time.Duration, most int) DedupStore {
	if ttl <= 0 {
		ttl = time.Hour
	}
	if most <= 0 {
		most = 100_000
	}
	return &memoryDedup{ttl: ttl, most: most}
}

type memoryDedup struct {
	ttl  time.Duration
	most int

	mu    sync.Mutex
	seen  keyed[*sighting]
	order []*sighting // handled ones, oldest first
}

// sighting is an event being handled, or handled. Only a handled one is in the order.
type sighting struct {
	key     Key
	handled time.Time     // zero while it is claimed
	over    chan struct{} // made by the first who waits for the claim
}

func (s *memoryDedup) Claim(ctx context.Context, k Key) (bool, error) {
	for {
		s.mu.Lock()
		e, ok := s.seen.get(k)
		if ok && !e.handled.IsZero() && time.Since(e.handled) < s.ttl {
			s.mu.Unlock()
			return true, nil
		}
		if !ok || !e.handled.IsZero() {
			s.seen.put(k, &sighting{key: k})
			s.mu.Unlock()
			return false, nil
		}
		if e.over == nil {
			e.over = make(chan struct{})
		}
		over := e.over
		s.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (s *memoryDedup) Commit(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.seen.get(k)
	if !ok || !e.handled.IsZero() {
		return
	}
	e.handled = time.Now()
	e.end()
	s.order = append(s.order, e)
	s.expire(e.handled.Add(-s.ttl))
}

func (s *memoryDedup) Release(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.seen.get(k); ok && e.handled.IsZero() {
		e.end()
		s.seen.drop(k)
	}
}

func (e *sighting) end() {
	if e.over != nil {
		close(e.over)
		e.over = nil
	}
}

// expire forgets what was handled before a time, and the oldest beyond the bound.
func (s *memoryDedup) expire(before time.Time) {
	n := 0
	for n < len(s.order) && (len(s.order)-n > s.most || !s.order[n].handled.After(before)) {
		e := s.order[n]
		if now, _ := s.seen.get(e.key); now == e { // not claimed anew since it expired
			s.seen.drop(e.key)
		}
		s.order[n] = nil
		n++
	}
	s.order = s.order[n:]
}

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
// first. What it remembers in memory dies with the process; an inbox remembers in the handler's own transaction.
func Dedup(store DedupStore) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			k := keyOf(msg)
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
	return &memoryDedup{ttl: ttl, most: most, claims: make(map[Key]*claim), handled: make(map[Key]struct{})}
}

type memoryDedup struct {
	ttl  time.Duration
	most int

	mu      sync.Mutex
	claims  map[Key]*claim
	handled map[Key]struct{}
	order   []handledAt // oldest first
}

// claim is an event being handled. The channel is made by the first one who waits.
type claim struct{ over chan struct{} }

type handledAt struct {
	key Key
	at  time.Time
}

func (s *memoryDedup) Claim(ctx context.Context, k Key) (bool, error) {
	for {
		s.mu.Lock()
		s.expire()
		if _, ok := s.handled[k]; ok {
			s.mu.Unlock()
			return true, nil
		}
		c, busy := s.claims[k]
		if !busy {
			s.claims[k] = new(claim)
			s.mu.Unlock()
			return false, nil
		}
		if c.over == nil {
			c.over = make(chan struct{})
		}
		over := c.over
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
	s.handled[k] = struct{}{}
	s.order = append(s.order, handledAt{k, time.Now()})
	s.expire()
	s.end(k)
}

func (s *memoryDedup) Release(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(k)
}

func (s *memoryDedup) end(k Key) {
	if c := s.claims[k]; c != nil && c.over != nil {
		close(c.over)
	}
	delete(s.claims, k)
}

func (s *memoryDedup) expire() {
	oldest := time.Now().Add(-s.ttl)
	n := 0
	for n < len(s.order) && (len(s.order)-n > s.most || !s.order[n].at.After(oldest)) {
		delete(s.handled, s.order[n].key)
		n++
	}
	s.order = s.order[n:]
}

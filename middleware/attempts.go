package middleware

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// AttemptStore counts handler calls. It must be safe for concurrent use.
type AttemptStore interface {
	// Begin counts a call that is about to be made and returns which one it is, from 1. What it writes must last as long as
	// the store does, so that a call which kills the process counts.
	Begin(ctx context.Context, k Key) (int, error)
	// GiveBack takes back the latest count: the call was cut off.
	GiveBack(ctx context.Context, k Key) error
	// Forget drops the count: the event is done or given up.
	Forget(ctx context.Context, k Key) error
}

// ErrNoVerdict is the error of an event whose last attempt ended without one: the process died in it, or its dead letter
// could not be written then.
var ErrNoVerdict = errors.New("all attempts were spent and the last one left no verdict")

// Attempts counts the calls of what is inside it and tells [Attempt], [Retry] and [DeadLetter]. A call that was cut off by
// shutdown or a lost lease is given back. Inside a [Retry] whose attempts are spent already, the handler is not called any
// more ([ErrNoVerdict]). A store that fails fails the attempt, uncounted, before the handler is called.
func Attempts(store AttemptStore) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			k, c := keyOf(msg), callOf(msg)
			ctx := msg.Context()
			n, err := store.Begin(ctx, k)
			if err != nil {
				return nil, fmt.Errorf("middleware: count attempt: %w", err)
			}
			lasting := context.WithoutCancel(ctx)
			c.attempt = n
			c.forget = func() { _ = store.Forget(lasting, k) }
			if c.retries && n > c.maxAttempts {
				return nil, &ExhaustedError{Attempts: n - 1, Err: ErrNoVerdict}
			}
			out, err := next(msg)
			switch {
			case err == nil:
				c.final()
			case cutOff(ctx):
				c.attempt--
				_ = store.GiveBack(lasting, k) // failing to is one attempt too many at worst
			}
			return out, err
		}
	}
}

// maxCounted bounds the memory of [NewMemoryAttempts].
const maxCounted = 100_000

// memoryAttempts keeps the events with failed attempts, and forgets the longest untouched ones beyond a bound.
type memoryAttempts struct {
	mu     sync.Mutex
	counts map[Key]*list.Element
	recent *list.List // of *count, latest first
}

type count struct {
	key Key
	n   int
}

// NewMemoryAttempts returns a store that dies with the process. It holds events between a failed attempt and the verdict,
// at most 100,000 of them.
func NewMemoryAttempts() AttemptStore {
	return &memoryAttempts{counts: make(map[Key]*list.Element), recent: list.New()}
}

// Begin keeps nothing for a first attempt that succeeds except while it runs.
func (s *memoryAttempts) Begin(_ context.Context, k Key) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.counts[k]; ok {
		c := e.Value.(*count)
		c.n++
		s.recent.MoveToFront(e)
		return c.n, nil
	}
	s.counts[k] = s.recent.PushFront(&count{key: k, n: 1})
	if s.recent.Len() > maxCounted {
		s.drop(s.recent.Back())
	}
	return 1, nil
}

func (s *memoryAttempts) GiveBack(_ context.Context, k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.counts[k]; ok {
		if c := e.Value.(*count); c.n > 1 {
			c.n--
			return nil
		}
		s.drop(e)
	}
	return nil
}

func (s *memoryAttempts) Forget(_ context.Context, k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.counts[k]; ok {
		s.drop(e)
	}
	return nil
}

func (s *memoryAttempts) drop(e *list.Element) {
	delete(s.counts, e.Value.(*count).key)
	s.recent.Remove(e)
}

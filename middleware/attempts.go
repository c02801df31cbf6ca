package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
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

// AttemptTimes is what an [AttemptStore] may offer besides, for [DeadLetter] to write into its letters.
type AttemptTimes interface {
	// FirstAttempt returns when the first call that still counts was begun, or zero where that is not known.
	FirstAttempt(ctx context.Context, k Key) (time.Time, error)
}

// AttemptLog is what an [AttemptStore] may offer besides: it keeps what became of failed calls for as long as their count, for
// [DeadLetter] to tell.
type AttemptLog interface {
	// Failed adds a failure to the event's history.
	Failed(ctx context.Context, k Key, f event.Failure) error
	// Failures returns the event's history, oldest first.
	Failures(ctx context.Context, k Key) ([]event.Failure, error)
}

// ErrNoVerdict is the error of an event whose last attempt ended without one: the process died in it, or its dead letter
// could not be written then.
var ErrNoVerdict = errors.New("all attempts were spent and the last one left no verdict")

var errStillRuns = errors.New("an attempt that was cut off has not returned yet")

// stillRuns reports whether an attempt that is counted has neither failed nor been given back: its handler lost its lease and
// has not noticed yet. Only a store in this process can tell that from a process that died.
func (c *call) stillRuns(ctx context.Context) bool {
	_, here := c.store.(*memoryAttempts)
	return here && len(c.history(ctx)) < min(c.maxAttempts, event.MaxHistory)
}

// uncountedError says that the handler was not called because the call could not be counted: it spends no attempt.
type uncountedError struct{ err error }

func (e *uncountedError) Error() string { return fmt.Sprintf("middleware: count attempt: %v", e.err) }

func (e *uncountedError) Unwrap() error { return e.err }

func isUncounted(err error) bool {
	_, ok := errors.AsType[*uncountedError](err)
	return ok
}

// Attempts counts the calls of what is inside it and tells [Attempt], [Retry] and [DeadLetter]. A call that was cut off by
// shutdown or a lost lease is given back. Inside a [Retry] whose attempts are spent already, the handler is not called any
// more ([ErrNoVerdict]). A store that breaks fails the delivery before the handler is called: that spends no attempt, and
// the event is never given up for it. A message with neither id nor UUID cannot be told from others and is not counted here.
func Attempts(store AttemptStore) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			k, c := keyOf(msg), callOf(msg)
			if k.ID == "" {
				return next(msg)
			}
			ctx := msg.Context()
			n, err := store.Begin(ctx, k)
			if err != nil {
				return nil, &uncountedError{err}
			}
			c.store, c.key = store, k
			c.attempt.Store(int64(n))
			if c.retries && n > c.maxAttempts {
				c.giveBack() // nobody is called
				if c.stillRuns(ctx) {
					return nil, &uncountedError{errStillRuns}
				}
				return nil, &ExhaustedError{Attempts: n - 1, Err: ErrNoVerdict}
			}
			out, err := next(msg)
			switch {
			case err == nil:
				c.final()
			case cutOff(ctx):
				c.giveBack()
			default:
				c.failed(msg.Context(), err)
			}
			return out, err
		}
	}
}

const (
	maxCounted = 100_000 // bounds the memory of NewMemoryAttempts
	maxSpare   = 64      // counts are reused while few events are under way
)

// memoryAttempts counts, and beyond a bound forgets the event whose count was begun first.
type memoryAttempts struct {
	mu     sync.Mutex
	counts keyed[*count]
	first  *count
	last   *count
	spare  *count // dropped ones, linked by next
}

// count is an event's count, linked in the order in which counts were begun.
type count struct {
	key        Key
	n          int
	began      time.Time
	history    []event.Failure
	prev, next *count
}

// NewMemoryAttempts returns a store that dies with the process. It holds an event from its first attempt to its verdict, and
// at most 100,000 events.
func NewMemoryAttempts() AttemptStore { return new(memoryAttempts) }

func (s *memoryAttempts) Begin(_ context.Context, k Key) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		c.n++
		return c.n, nil
	}
	c := s.spare
	if c == nil {
		c = new(count)
	}
	s.spare = c.next
	*c = count{key: k, n: 1, began: time.Now(), prev: s.last}
	if s.last == nil {
		s.first = c
	} else {
		s.last.next = c
	}
	s.last = c
	s.counts.put(k, c)
	if s.counts.len() > maxCounted {
		s.drop(s.first)
	}
	return 1, nil
}

// FirstAttempt makes the store an AttemptTimes.
func (s *memoryAttempts) FirstAttempt(_ context.Context, k Key) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		return c.began, nil
	}
	return time.Time{}, nil
}

// Failed and Failures make the store an AttemptLog.
func (s *memoryAttempts) Failed(_ context.Context, k Key, f event.Failure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		c.history = event.Remember(c.history, f)
	}
	return nil
}

func (s *memoryAttempts) Failures(_ context.Context, k Key) ([]event.Failure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		return slices.Clone(c.history), nil
	}
	return nil, nil
}

func (s *memoryAttempts) GiveBack(_ context.Context, k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		if c.n--; c.n == 0 {
			s.drop(c)
		}
	}
	return nil
}

func (s *memoryAttempts) Forget(_ context.Context, k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.counts.get(k); ok {
		s.drop(c)
	}
	return nil
}

func (s *memoryAttempts) drop(c *count) {
	s.counts.drop(c.key)
	if c.prev == nil {
		s.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		s.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	*c = count{}
	if s.counts.len() < maxSpare {
		c.next, s.spare = s.spare, c
	}
}

// Package lazyctx has a context that costs next to nothing until somebody waits for its end. Most handlers never do, and
// for those a timer, a channel and a place in the parent's list of children would be made and unmade for nothing, once an
// event.
package lazyctx

import (
	"context"
	"sync"
	"time"
)

// Context is a child of another context, with an end and perhaps a deadline of its own. Set it up with Init, and call End
// when its work is over, as one calls a cancel function. It is safe for concurrent use after Init and must not be copied.
type Context struct {
	parent   context.Context
	deadline time.Time // zero means none of its own

	mu     sync.Mutex
	full   context.Context // once asked for
	cancel context.CancelCauseFunc
	cause  error // given to End
	err    error // what Err answers from now on
	byEnd  bool  // it was End that ended it, before anybody asked for full
}

// Init makes c a child of parent. A zero deadline means that it has none of its own.
func (c *Context) Init(parent context.Context, deadline time.Time) {
	c.parent, c.deadline = parent, deadline
}

// End ends c, with context.Canceled as its error and cause as its cause; nil means context.Canceled. Only the first call
// counts.
func (c *Context) End(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	switch {
	case c.full != nil:
		c.cancel(cause)
	case c.check() == nil:
		c.err, c.byEnd = context.Canceled, true
	}
}

// Ended returns the cause given to End, or nil before.
func (c *Context) Ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Deadline returns its own deadline or the parent's, whichever is earlier.
func (c *Context) Deadline() (time.Time, bool) {
	at, ok := c.parent.Deadline()
	if !c.deadline.IsZero() && (!ok || c.deadline.Before(at)) {
		return c.deadline, true
	}
	return at, ok
}

// Done makes the context that c stands for, if nobody has asked for it before.
func (c *Context) Done() <-chan struct{} { return c.standard().Done() }

// Err answers without that context: by End, by the parent and by the clock.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.check()
}

func (c *Context) check() error {
	switch {
	case c.err != nil:
	case c.full != nil:
		c.err = c.full.Err()
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		c.err = context.DeadlineExceeded
	default:
		c.err = c.parent.Err()
	}
	return c.err
}

// Value answers with the parent's values. A child that looks for the nearest context of the standard library, to be ended
// with it, and context.Cause are led to the one that c stands for.
func (c *Context) Value(key any) any {
	if key == selfKey || selfKey == nil {
		return c.standard().Value(key)
	}
	return c.parent.Value(key)
}

func (c *Context) standard() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.full != nil:
	case c.byEnd: // whatever has become of the parent and the deadline since
		c.full, c.cancel = context.WithCancelCause(context.WithoutCancel(c.parent))
		c.cancel(c.cause)
	case c.deadline.IsZero():
		c.full, c.cancel = context.WithCancelCause(c.parent)
	default:
		ctx, cancel := context.WithCancelCause(c.parent)
		timed, stop := context.WithDeadline(ctx, c.deadline)
		c.full, c.cancel = timed, func(cause error) { cancel(cause); stop() }
	}
	return c.full
}

// selfKey is the key under which the standard library's contexts answer with themselves. It is not exported, but
// context.Cause asks every context for it; if it ever stops doing so, selfKey is nil and each value costs a context again.
var selfKey = func() any {
	s := new(spy)
	_ = context.Cause(s)
	return s.asked
}()

// spy is an ended context that remembers what it was asked for.
type spy struct{ asked any }

func (*spy) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*spy) Done() <-chan struct{}       { return nil }
func (*spy) Err() error                  { return context.Canceled }
func (s *spy) Value(key any) any         { s.asked = key; return nil }

package lazyctx_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/internal/lazyctx"
)

var errCause = errors.New("the cause")

type valueKey struct{}

func newContext(parent context.Context, deadline time.Time) *lazyctx.Context {
	c := new(lazyctx.Context)
	c.Init(parent, deadline)
	return c
}

// However and whenever it is looked at, it says what a standard context in its place says.
func TestAgreesWithAStandardContext(t *testing.T) {
	t.Parallel()
	look := map[string]func(context.Context){
		"untouched": func(context.Context) {},
		"waited":    func(ctx context.Context) { ctx.Done() },
		"asked":     func(ctx context.Context) { _ = ctx.Err() },
		"child":     func(ctx context.Context) { _, cancel := context.WithCancel(ctx); _ = cancel },
	}
	happen := map[string]func(parent context.CancelCauseFunc, end func(error)){
		"nothing":     func(context.CancelCauseFunc, func(error)) {},
		"end":         func(_ context.CancelCauseFunc, end func(error)) { end(errCause) },
		"end twice":   func(_ context.CancelCauseFunc, end func(error)) { end(errCause); end(context.Canceled) },
		"parent":      func(parent context.CancelCauseFunc, _ func(error)) { parent(errCause) },
		"deadline":    func(context.CancelCauseFunc, func(error)) { time.Sleep(2 * time.Hour) },
		"end, late":   func(_ context.CancelCauseFunc, end func(error)) { time.Sleep(2 * time.Hour); end(errCause) },
		"end, parent": func(parent context.CancelCauseFunc, end func(error)) { end(errCause); parent(context.Canceled) },
		"end, wait":   func(_ context.CancelCauseFunc, end func(error)) { end(errCause); time.Sleep(2 * time.Hour) },
		"parent, end": func(parent context.CancelCauseFunc, end func(error)) { parent(context.Canceled); end(errCause) },
	}
	for lookName, look := range look {
		for happenName, happen := range happen {
			for _, limit := range []time.Duration{0, time.Hour} {
				t.Run(lookName+"/"+happenName+"/"+limit.String(), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { compare(t, limit, look, happen) })
				})
			}
		}
	}
}

func compare(t *testing.T, limit time.Duration, look func(context.Context), happen func(context.CancelCauseFunc, func(error))) {
	t.Helper()
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	lazyParent, cancelLazy := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, 1))
	lazy := newContext(lazyParent, deadline)
	parent, cancelParent := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, 1))
	want, cancel := context.WithCancelCause(parent)
	if limit > 0 {
		var stop context.CancelFunc
		want, stop = context.WithDeadline(want, deadline)
		defer stop()
	}
	defer lazy.End(context.Canceled)
	defer cancel(context.Canceled)
	look(lazy)
	happen(
		func(cause error) { cancelLazy(cause); cancelParent(cause) },
		func(cause error) { lazy.End(cause); cancel(cause) })
	synctest.Wait()
	if lazy.Err() != want.Err() || context.Cause(lazy) != context.Cause(want) {
		t.Errorf("ended with %v (%v), want %v (%v)", lazy.Err(), context.Cause(lazy), want.Err(), context.Cause(want))
	}
	if lazy.Value(valueKey{}) != 1 {
		t.Error("the parent's value is lost")
	}
	gotAt, gotOK := lazy.Deadline()
	if at, ok := want.Deadline(); !gotAt.Equal(at) || gotOK != ok {
		t.Errorf("deadline %v %v, want %v %v", gotAt, gotOK, at, ok)
	}
	select {
	case <-lazy.Done():
		if want.Err() == nil {
			t.Error("Done is closed too early")
		}
	default:
		if want.Err() != nil {
			t.Error("Done is not closed")
		}
	}
	cancelLazy(nil)
	cancelParent(nil)
}

// A child ends with it, and costs no goroutine while it lives.
func TestEndReachesChildren(t *testing.T) {
	t.Parallel()
	c := newContext(t.Context(), time.Time{})
	child, cancel := context.WithCancel(c)
	defer cancel()
	after := make(chan struct{})
	context.AfterFunc(c, func() { close(after) })
	c.End(errCause)
	<-child.Done()
	<-after
	if cause := context.Cause(child); cause != errCause {
		t.Errorf("the child's cause is %v", cause)
	}
}

// The point of it all: values and errors cost nothing.
func TestCostsNothingUntilSomebodyWaits(t *testing.T) { // not parallel: it counts
	parent := context.WithValue(t.Context(), valueKey{}, 1)
	var c *lazyctx.Context
	allocs := testing.AllocsPerRun(1000, func() {
		c = newContext(parent, time.Now().Add(time.Hour))
		if c.Value(valueKey{}) != 1 || c.Err() != nil {
			t.Error("wrong answer")
		}
		c.End(context.Canceled)
	})
	if allocs > 1 {
		t.Errorf("%v allocations, want the context's own", allocs)
	}
}

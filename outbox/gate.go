package outbox

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seambus/seambus/internal/errtext"
)

const longestProbe = 10 * time.Second

// gate stops the workers while the broker is away and lets one at a time probe. It costs one lock per publish.
type gate struct {
	first  time.Duration
	log    *slog.Logger
	paused *atomic.Bool

	mu      sync.Mutex
	down    bool
	probing bool
	delay   time.Duration
	until   time.Time
	change  chan struct{}
}

func newGate(first time.Duration, log *slog.Logger, paused *atomic.Bool) *gate {
	return &gate{first: min(first, longestProbe), log: log, paused: paused, change: make(chan struct{})}
}

// enter blocks while the gate is shut. It reports whether the caller is the one who probes; whoever enters must then call
// open, shut or leave.
func (g *gate) enter(ctx context.Context) (probe bool, err error) {
	for {
		g.mu.Lock()
		switch {
		case !g.down:
			g.mu.Unlock()
			return false, nil
		case g.probing:
			change := g.change
			g.mu.Unlock()
			select {
			case <-change:
			case <-ctx.Done():
				return false, ctx.Err()
			}
		default:
			g.probing = true
			wait := time.Until(g.until)
			g.mu.Unlock()
			if err := sleep(ctx, wait); err != nil {
				g.leave(true)
				return false, err
			}
			return true, nil
		}
	}
}

// open says that the broker answered.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.down {
		return
	}
	g.down, g.probing = false, false
	g.paused.Store(false)
	g.announce()
	g.log.Info("broker is back, relay goes on")
}

// shut says that the broker is away.
func (g *gate) shut(probe bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.down:
		g.down, g.delay = true, g.first
		g.paused.Store(true)
		g.log.Warn("broker is away, relay pauses", "error", errtext.Clean(err))
	case probe:
		g.delay = min(2*g.delay, longestProbe)
	default:
		return
	}
	if probe {
		g.probing = false
	}
	g.until = time.Now().Add(jitter(g.delay))
	g.announce()
}

// leave gives the probe up without a result.
func (g *gate) leave(probe bool) {
	if !probe {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.probing = false
	g.announce()
}

func (g *gate) announce() {
	close(g.change)
	g.change = make(chan struct{})
}

// jitter returns between half of d and d.
func jitter(d time.Duration) time.Duration {
	half := d / 2
	return half + rand.N(max(half, 1))
}

// backoff returns the delay after the nth attempt.
func backoff(n int, first, longest time.Duration) time.Duration {
	d := first
	for ; n > 1 && d < longest; n-- {
		d *= 2
	}
	return jitter(min(d, longest))
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

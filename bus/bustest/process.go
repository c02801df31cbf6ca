package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/transport/memory"
)

var (
	// errDied is what an injected crash leaves behind.
	errDied = errors.New("bustest: the process died")
	// errRecorded is a death before the commit.
	errRecorded = fmt.Errorf("%w at %q", errDied, crash.Recorded)
)

// life is one run of a process, from its start to its death or its orderly end.
type life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	dead    bool
	members []*memory.Subscriber
}

type lifeKey struct{}

// lifeOf returns the life that ctx belongs to, or nil for the test's own.
func lifeOf(ctx context.Context) *life {
	l, _ := ctx.Value(lifeKey{}).(*life)
	return l
}

// join notes that a member belongs to the process. A dead one takes nothing in.
func (l *life) join(m *memory.Subscriber) {
	l.mu.Lock()
	l.members = append(l.members, m)
	dead := l.dead
	l.mu.Unlock()
	if dead {
		m.Crash()
	}
}

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// die ends everything in the process at once: no point is passed any more, nothing is settled, leases run on.
func (l *life) die() {
	l.mu.Lock()
	l.dead = true
	members := l.members
	l.mu.Unlock()
	for _, m := range members {
		m.Crash()
	}
	l.cancel()
}

// hook is what happens at the points of the path to whoever belongs to l.
func (k *Kit) hook(l *life) crash.HookFunc {
	return func(ctx context.Context, p crash.Point) error {
		if p == crash.InboxCommitted {
			k.seen.committed(ctx) // whoever dies here, or did meanwhile, has committed
		}
		if l != nil && l.isDead() {
			return errDied
		}
		if p == crash.Stopping {
			return nil
		}
		defer k.moved()
		if k.faults.crashes(Point(p)) {
			if l != nil {
				l.die()
			}
			if p == crash.Recorded {
				return errRecorded
			}
			return fmt.Errorf("%w at %q", errDied, p)
		}
		k.seen.pass(ctx, p)
		return nil
	}
}

// Start runs the kit's bus, with the relay of its outbox, until the test ends or [Kit.Stop], and returns once every
// subscription is up. When an injected crash ends it, it is started again, as by a supervisor. It fails the test if the bus
// cannot start.
func (k *Kit) Start() {
	k.tb.Helper()
	up := make(chan error, 1)
	var once sync.Once
	ready := func(err error) { once.Do(func() { up <- err }) }
	k.Run(func(ctx context.Context) error {
		b := k.nextBus()
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-b.Ready():
				ready(nil)
			case <-over:
			}
		}()
		err := b.Run(ctx)
		ready(err)
		return err
	})
	if err := <-up; err != nil {
		k.tb.Fatalf("bustest: start: %v", err)
	}
}

// nextBus returns the bus to run now. A bus runs once.
func (k *Kit) nextBus() *bus.Bus {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used {
		k.bus = k.bus.Again()
	}
	k.used = true
	return k.bus
}

// Run runs fn as a process of the code under test: until the test ends or [Kit.Stop], which end ctx, and anew each time an
// injected crash has ended it. fn makes its buses and outboxes on [Kit.Transport], runs them with ctx, and returns once they
// have ended. A process that ends by itself fails the test. It does not wait for fn to be up.
func (k *Kit) Run(fn func(ctx context.Context) error) {
	k.mu.Lock()
	k.stopping = false
	k.processes++
	k.mu.Unlock()
	k.running.Go(func() {
		for k.live(fn) {
		}
		k.mu.Lock()
		k.processes--
		k.mu.Unlock()
		k.moved()
	})
}

// live runs a process once and reports whether it died and is to be started again.
func (k *Kit) live(fn func(ctx context.Context) error) bool {
	l := new(life)
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), lifeKey{}, l))
	defer cancel()
	l.ctx, l.cancel = crash.With(ctx, k.hook(l)), cancel
	k.mu.Lock()
	if k.stopping {
		k.mu.Unlock()
		return false
	}
	k.lives[l] = struct{}{}
	k.mu.Unlock()

	err := fn(l.ctx)

	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.lives, l)
	switch {
	case l.isDead():
		return true
	case err == nil && k.stopping:
	case err == nil:
		k.broken = append(k.broken, errors.New("a process ended by itself"))
	default:
		k.broken = append(k.broken, err)
	}
	return false
}

// Stop ends everything that [Kit.Start] and [Kit.Run] run, in good order, and fails the test if it was not, or if it has not
// ended within [WithPatience]. It is called at the end of the test; afterwards Start begins anew.
func (k *Kit) Stop() {
	k.tb.Helper()
	k.mu.Lock()
	k.stopping = true
	for l := range k.lives {
		l.cancel()
	}
	k.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		k.running.Wait()
		close(ended)
	}()
	timer := time.NewTimer(k.cfg.patience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		k.tb.Errorf("bustest: stop: a process ignores the end of its context, for %v", k.cfg.patience)
	}
	k.mu.Lock()
	broken := k.broken
	k.broken = nil
	k.mu.Unlock()
	for _, err := range broken {
		k.tb.Errorf("bustest: %v", err)
	}
}

// Crash kills everything that [Kit.Start] and [Kit.Run] run, wherever it is, and it is started again.
func (k *Kit) Crash() {
	k.mu.Lock()
	var all []*life
	for l := range k.lives {
		all = append(all, l)
	}
	k.mu.Unlock()
	for _, l := range all {
		l.die()
	}
}

// CrashAt kills the next process that passes p, once. It is started again, as by a supervisor; what it had in flight comes
// back when its leases are over. A test that dies while it records does so alone; see [Kit.Record] and [Kit.Do]. It fails the
// test if there is no such point.
func (k *Kit) CrashAt(p Point) {
	k.tb.Helper()
	if !slices.Contains(Points(), p) {
		k.tb.Errorf("bustest: crash at %q: the points are %q", p, Points())
		return
	}
	k.faults.crashAt(p)
}

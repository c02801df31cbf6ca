package bustest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"
)

// The pauses between two looks of [Kit.Settle] that nothing has asked for, and how many entries a failure names.
const (
	firstPause   = time.Millisecond
	longestPause = time.Minute
	realPause    = 20 * time.Millisecond
)

// Settle waits until nothing is in flight, nothing waits to be retried and every watched outbox is empty, rows aside that
// were refused for good: in a synctest bubble for as long in virtual time as the retries take. It fails the test at once if
// a process has ended by itself, or if nothing runs that could settle what is there, and after [WithPatience], naming what is
// left.
func (k *Kit) Settle() {
	k.tb.Helper()
	pause, most := firstPause, realPause
	if k.bubble {
		most = longestPause
	}
	timer := time.NewTimer(k.cfg.patience)
	defer timer.Stop()
	deadline := time.Now().Add(k.cfg.patience)
	for {
		if k.bubble {
			synctest.Wait()
		}
		moves := k.moves.Load()
		left := k.left(deadline)
		switch {
		case k.moves.Load() != moves:
			continue // it was no picture of one moment
		case left == "":
			return
		case k.idle() != "":
			k.tb.Fatalf("bustest: settle: %s\n%s", k.idle(), k.report(left))
		case !time.Now().Before(deadline):
			k.tb.Fatalf("bustest: settle: not within %v\n%s", k.cfg.patience, k.report(left))
		}
		timer.Reset(min(pause, time.Until(deadline)))
		select {
		case <-k.changed:
			pause = firstPause
		case <-timer.C:
			pause = min(2*pause, most)
		}
	}
}

// left says what is not settled, the cheap questions first, or nothing. Databases are asked until the deadline: somebody may
// keep the only connection.
func (k *Kit) left(deadline time.Time) string {
	if n := k.broker.Held(); n > 0 {
		return fmt.Sprintf("%d messages are on their way to a group, in a handler, or wait for a retry", n)
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for i, d := range k.watched() {
		depth, err := d.store.Depth(ctx)
		if err != nil {
			return fmt.Sprintf("outbox %d: %v (connections in use: %d of %d)", i+1, err, d.db.Stats().InUse, d.db.Stats().MaxOpenConnections)
		}
		if n := depth.Pending + depth.Held; n > 0 {
			return fmt.Sprintf("outbox %d has %d rows to publish, %d of them wait", i+1, n, depth.Held)
		}
	}
	return ""
}

// idle says why nothing can settle what is left, or nothing.
func (k *Kit) idle() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.broken) > 0:
		return fmt.Sprintf("a process has ended: %v", k.broken[0])
	case k.processes == 0:
		return "nothing runs: call Start first"
	}
	return ""
}

// report names what is left.
func (k *Kit) report(left string) string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "  %s\n", left)
	j := &k.seen
	j.mu.Lock()
	defer j.mu.Unlock()
	var names []string
	for at := range maps.Keys(j.hands) {
		names = append(names, fmt.Sprintf("    in a handler: %s group=%s key=%s id=%s\n", at.topic, at.group, at.key, at.id))
	}
	slices.Sort(names)
	for _, n := range names[:min(len(names), longest)] {
		b.WriteString(n)
	}
	if n := len(j.failed); n > 0 {
		fmt.Fprintf(b, "    failed last: %s\n", j.failed[n-1])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

package outbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

type counters struct {
	recorded, published, attempts, failures, failed, lost, unsettled, latency atomic.Int64
	paused                                                                    atomic.Bool
}

// Stats counts what this Outbox did since it was made.
type Stats struct {
	// Recorded is the number of rows written, committed or not; events recorded before are not counted again.
	Recorded int64
	// Published is the number of rows marked as published.
	Published int64
	// Attempts is the number of rows handed to the transport that it took or refused. An outage spends none.
	Attempts int64
	// Failures is the number of attempts that did not succeed, Failed the number of rows given up.
	Failures int64
	Failed   int64
	// Refused is the number of marks refused because another relay holds the rows' lease: they were published twice.
	Refused int64
	// InFlight is the number of rows read and not yet marked.
	InFlight int64
	// Latency is the sum of the times from recording to acceptance by the transport, over all rows published for the
	// first time.
	Latency time.Duration
	// Paused is true while the broker is away and the relay only probes.
	Paused bool
}

// Stats returns the counts so far.
func (o *Outbox) Stats() Stats {
	c := &o.count
	return Stats{
		Recorded: c.recorded.Load(), Published: c.published.Load(), Attempts: c.attempts.Load(), Failures: c.failures.Load(),
		Failed: c.failed.Load(), Refused: c.lost.Load(), InFlight: c.unsettled.Load(), Latency: time.Duration(c.latency.Load()),
		Paused: c.paused.Load(),
	}
}

// Depth counts the rows that are not done with.
type Depth struct {
	// Pending rows are to be published next.
	Pending int64
	// Held rows wait for their next attempt, or behind an earlier row of their key.
	Held int64
	// Failed rows were refused for good.
	Failed int64
}

// Depth counts rows in the database, so that it works in any process.
func (o *Outbox) Depth(ctx context.Context) (Depth, error) {
	d, err := o.store.Depth(ctx)
	if err != nil {
		return Depth{}, fmt.Errorf("outbox: depth: %w", err)
	}
	return Depth(d), nil
}

// Age returns how long ago the oldest row was recorded that is neither published nor failed, held rows included: the alarm
// for a relay that stands still. It is zero where there is none. It asks the database, so that it works in any process.
func (o *Outbox) Age(ctx context.Context) (time.Duration, error) {
	t, err := o.store.Oldest(ctx)
	if err != nil {
		return 0, fmt.Errorf("outbox: age: %w", err)
	}
	if t.IsZero() {
		return 0, nil
	}
	return max(time.Since(t), 0), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/examples/fulfillment/chaos"
	"github.com/seambus/seambus/examples/fulfillment/monolith"
	"github.com/seambus/seambus/examples/fulfillment/report"
	"github.com/seambus/seambus/transport"
)

const (
	// maxLag is how far the producer may run ahead of the relay, so that memory stays bounded.
	maxLag = 4000
	// patience is how long nothing may move at the end before the run is given up.
	patience = 30 * time.Second
)

// source is where order changes come from.
type source interface {
	Next() (monolith.Line, error)
	Close() error
}

func (a *app) source() (source, error) {
	if a.options.input == "" {
		return monolith.NewGenerator(a.options.seed, a.options.orders), nil
	}
	return monolith.OpenInput(a.options.input)
}

// run replays the source through both sides and reports. When stop ends it takes nothing in any more and finishes what it has.
func (a *app) run(ctx, stop context.Context, src source, show *progress) (*report.Report, error) {
	sides, err := a.start(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = a.produce(ctx, stop, src, show)
	if settleErr := a.settle(ctx, show); err == nil {
		err = settleErr
	}
	took := time.Since(began)
	show.end()
	if err = errors.Join(err, sides.stop()); err != nil {
		return nil, err
	}
	in := a.service.Inbox().Stats()
	r := &report.Report{
		Delivered: a.clock.delivered.Load(), Duplicates: in.Duplicates, Stale: in.Stale,
		Chaos: map[chaos.Kind]int{}, CommitToApplied: a.clock.latency(),
	}
	if a.faults != nil {
		r.Chaos = a.faults.Counts()
	}
	r.EventsPerSecond = float64(in.Handled) / took.Seconds()
	return r, r.Query(ctx, a.db.DB, a.places.kind, a.places.monolith, a.places.service)
}

// produce is the monolith at work: one transaction for each change.
func (a *app) produce(ctx, stop context.Context, src source, show *progress) error {
	for stop.Err() == nil {
		line, err := src.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.Err == nil:
			line.Err = a.change(ctx, line)
		}
		if err := a.refuse(ctx, line, show); err != nil {
			return fmt.Errorf("%s: %w", line.ID, err)
		}
		show.add()
		if err := a.keepPace(ctx, stop); err != nil {
			return err
		}
	}
	show.sayf("interrupted: finishing what has been recorded")
	return nil
}

// refuse puts a line that cannot be recorded, whoever found that out, among the dead letters. Any other error stops the run.
func (a *app) refuse(ctx context.Context, line monolith.Line, show *progress) error {
	switch {
	case line.Err == nil:
		return nil
	case !errors.Is(line.Err, monolith.ErrLine) && !errors.Is(line.Err, event.ErrInvalid) && !errors.Is(line.Err, transport.ErrTooLarge):
		return line.Err
	}
	show.sayf("refused %s: %v", line.ID, line.Err)
	return a.monolith.Refuse(ctx, line.ID, line.Raw, line.Err)
}

func (a *app) change(ctx context.Context, line monolith.Line) error {
	a.clock.commits(line.Event.ID)
	if err := a.monolith.Change(ctx, line.Event); err != nil {
		return err
	}
	if a.faults != nil && a.faults.Strikes(chaos.ProducerRetry, line.Event.ID) {
		return a.monolith.Change(ctx, line.Event)
	}
	return nil
}

// keepPace holds the producer back while the relay is far behind. Counting is cheap, but counts of this process alone; when in
// doubt the database knows.
func (a *app) keepPace(ctx, stop context.Context) error {
	for stop.Err() == nil {
		s := a.monolith.Outbox().Stats()
		if s.Recorded-s.Published-a.elsewhere < maxLag {
			return nil
		}
		d, err := a.monolith.Outbox().Depth(ctx)
		if err != nil {
			return err
		}
		if waiting := d.Pending + d.Held; waiting < maxLag/2 {
			a.elsewhere = max(s.Recorded-s.Published-waiting, 0)
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until nothing is recorded and not published, and nothing is on its way.
func (a *app) settle(ctx context.Context, show *progress) error {
	moved, last := time.Now(), ""
	for {
		before, err := a.monolith.Outbox().Depth(ctx)
		if err != nil {
			return err
		}
		after, err := a.service.Outbox().Depth(ctx)
		if err != nil {
			return err
		}
		held := a.broker.Held()
		if before.Pending+before.Held+after.Pending+after.Held == 0 && held == 0 {
			return nil
		}
		now := fmt.Sprint(before, after, held)
		if now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > patience {
			show.sayf("nothing has moved for %v: monolith's outbox %+v, service's %+v, on their way %d", patience, before, after, held)
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

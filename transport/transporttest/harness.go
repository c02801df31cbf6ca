// Package transporttest is the conformance suite for transports: what every one of them must do, whatever its broker, shown
// on the transport alone. A transport's own test is a [Harness] and one call of [Run]. Capabilities are declared; a case
// whose capability is not declared is skipped by name, and one that is declared and missing fails by name.
package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/transport"
)

// Feature is a capability that a broker may lack.
type Feature string

// The capabilities that a harness may declare.
const (
	// Bytes: empty, NUL and invalid UTF-8 payloads and odd header values arrive unchanged.
	Bytes Feature = "bytes"
	// Delay: a nack's delay is kept, up to the transport's MaxDelay.
	Delay Feature = "delay"
	// Deliveries: redeliveries are counted.
	Deliveries Feature = "deliveries"
	// Leases: a lease can be lost while its handler runs. Needs Harness.ExpireLease.
	Leases Feature = "leases"
	// Crash: a member can vanish without settling. Needs Harness.Crash.
	Crash Feature = "crash"
	// Restart: the broker can go away and come back. Needs Harness.Restart.
	Restart Feature = "restart"
	// Settled: OnSettled is honoured. Transports that are not durable must declare it.
	Settled Feature = "settled"
	// Limits: messages beyond the transport's Limits are refused. Transports without limits leave it out.
	Limits Feature = "limits"
)

// Harness connects the suite to one transport.
type Harness struct {
	// Open returns a new connection to the broker, which the suite closes. All connections of one case reach the same broker:
	// first is the case's first connection, nil when that is asked for. A transport that is its own broker returns first.
	Open func(ctx context.Context, first transport.Transport) (transport.Transport, error)
	// Topic returns a topic that no other case uses; "t1", "t2", … if it is nil.
	Topic func(ctx context.Context) (string, error)
	// Declares lists the capabilities that the transport has.
	Declares []Feature
	// Unit is the time that the suite takes for a short while: it waits some of them for what must come and one for what must
	// not. 100 ms if zero; virtual where Bubble is set.
	Unit time.Duration
	// Bubble runs every case in a testing/synctest bubble.
	Bubble bool

	// ExpireLease ends the lease of a message in flight.
	ExpireLease func(t transport.Transport, topic, group, id string) error
	// Crash makes the members of a group that t has vanish; their messages must come back within Patience.
	Crash func(t transport.Transport, group string) error
	// Restart takes the broker away and brings it back.
	Restart func(ctx context.Context) error
	// Faults names the cases that a stand-in for the broker, an emulator, breaks by a fault of its own, with the fault, by which
	// they are skipped. The broker itself has none.
	Faults map[string]string
	// Patience is how long to wait for what must come; 300 units if zero.
	Patience time.Duration
}

func (h *Harness) withDefaults() *Harness {
	c := *h
	if c.Unit == 0 {
		c.Unit = 100 * time.Millisecond
	}
	if c.Patience == 0 {
		c.Patience = 300 * c.Unit
	}
	if c.Topic == nil {
		var n atomic.Int64
		c.Topic = func(context.Context) (string, error) { return fmt.Sprintf("t%d", n.Add(1)), nil }
	}
	return &c
}

// validate refuses a harness that declares what it cannot show.
func (h *Harness) validate() error {
	var errs []error
	if h.Open == nil {
		errs = append(errs, errors.New("harness: Open is nil"))
	}
	function := map[Feature]bool{Leases: h.ExpireLease != nil, Crash: h.Crash != nil, Restart: h.Restart != nil}
	for _, f := range h.Declares {
		if ok, needed := function[f]; needed && !ok {
			errs = append(errs, fmt.Errorf("harness: capability %q is declared, but its function is nil", f))
		}
		if !slices.Contains(features(), f) {
			errs = append(errs, fmt.Errorf("harness: capability %q is declared, but the suite knows only %q", f, features()))
		}
	}
	for name := range h.Faults {
		if !slices.ContainsFunc(Cases(), func(c Case) bool { return c.Name == name }) {
			errs = append(errs, fmt.Errorf("harness: a fault is named for %q, but the suite has no such case", name))
		}
	}
	return errors.Join(errs...)
}

func features() []Feature {
	return []Feature{Bytes, Delay, Deliveries, Leases, Crash, Restart, Settled, Limits}
}

func (h *Harness) declares(f Feature) bool { return slices.Contains(h.Declares, f) }

// declared compares what the harness declares with what the transport says of itself.
func declared(e *env) error {
	caps := e.transport.Capabilities()
	limits := caps.Limits.MessageBytes > 0
	var errs []error
	wrong := func(f Feature, is bool, why string) {
		if is {
			errs = append(errs, fmt.Errorf("capability %q %s", f, why))
		}
	}
	wrong(Limits, e.declares(Limits) && !limits, "is declared, but the transport states no limit for message bytes")
	wrong(Limits, !e.declares(Limits) && limits, "is not declared, though the transport states a limit for message bytes")
	wrong(Settled, !e.declares(Settled) && !caps.Durable, "is not declared, though the transport is not durable")
	if caps.Name == "" {
		errs = append(errs, errors.New("the transport's capabilities have no name"))
	}
	return errors.Join(errs...)
}

// Case is one thing that a transport must do.
type Case struct {
	// Name says what is right.
	Name string
	// Needs is the capability without which the case is skipped; empty for what every transport must do.
	Needs Feature
	run   func(*env) error
}

// Run runs every case as a subtest of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	full := h.withDefaults()
	if err := full.validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if c.Needs != "" && !full.declares(c.Needs) {
				t.Skipf("capability %q is not declared", c.Needs)
			}
			if fault := full.Faults[c.Name]; fault != "" {
				t.Skip("the server's fault: " + fault)
			}
			if !full.Bubble {
				t.Parallel()
				full.report(t, c)
				return
			}
			synctest.Test(t, func(t *testing.T) { full.report(t, c) })
		})
	}
}

func (h *Harness) report(t *testing.T, c Case) {
	t.Helper()
	if err := h.check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// check runs one case. A transport that never comes back from a call fails it, and keeps the goroutine.
func (h *Harness) check(ctx context.Context, c Case) error {
	ended := make(chan error, 1)
	go func() { ended <- h.attempt(ctx, c) }()
	most := 5*h.Patience + 500*h.Unit
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("the case %q did not end within %v: a call of the transport hangs", c.Name, most)
	}
}

// attempt runs one case on connections of its own. What a declared capability lacks is named.
func (h *Harness) attempt(ctx context.Context, c Case) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &env{Harness: h, ctx: ctx}
	defer func() { err = errors.Join(err, e.close()) }()
	if e.transport, err = e.open(); err != nil {
		return err
	}
	if e.topic, err = h.Topic(ctx); err != nil {
		return err
	}
	if err := c.run(e); err != nil && c.Needs != "" {
		return fmt.Errorf("capability %q: %w", c.Needs, err)
	} else if err != nil {
		return err
	}
	return nil
}

// groupName is what the cases call their group.
const groupName = "conformance"

package bustest

import (
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

// Option configures a [Kit].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	bus       []bus.Option
	outbox    []outbox.Option
	transport []memory.Option
	noInbox   bool
	patience  time.Duration
}

// The kit's own settings where they differ from production's: outside a bubble the dead are succeeded sooner, nobody waits long
// for a handler that a test has left hanging, and no row is swept that a test may ask about.
const (
	realLease = time.Second
	drain     = time.Second
	retention = 100 * 365 * 24 * time.Hour
)

// How long Settle waits unless told otherwise, in virtual and in real time.
const (
	bubblePatience = 30 * 24 * time.Hour
	realPatience   = 10 * time.Second
)

// WithBus gives options to the kit's bus, for example its retry policy. The kit has given it an outbox, an inbox and a drain
// of one second already.
func WithBus(opts ...bus.Option) Option {
	return option(func(c *config) { c.bus = append(c.bus, opts...) })
}

// WithOutbox gives options to the kit's outbox, whose lease outside a bubble is one second. Its tables must keep their names.
func WithOutbox(opts ...outbox.Option) Option {
	return option(func(c *config) { c.outbox = append(c.outbox, opts...) })
}

// WithTransport gives options to the memory transport, whose lease outside a bubble is one second.
func WithTransport(opts ...memory.Option) Option {
	return option(func(c *config) { c.transport = append(c.transport, opts...) })
}

// WithoutInbox makes the kit's bus remember handled ids in memory and publish dead letters, as a bus without an inbox does.
func WithoutInbox() Option { return option(func(c *config) { c.noInbox = true }) }

// WithPatience sets how long [Kit.Settle] waits before it fails the test. The default is 30 days in a synctest bubble and ten
// seconds outside; zero or less keeps it.
func WithPatience(d time.Duration) Option { return option(func(c *config) { c.patience = d }) }

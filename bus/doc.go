// Package bus is the facade: typed events in, typed handlers out, over any transport.
//
//	b, err := bus.New(t, bus.WithOutbox(box), bus.WithInbox(in))
//	bus.Handle(b, Orders, "fulfillment", func(ctx context.Context, e OrderPlaced) error { ... })
//	err = b.Run(ctx)
//
// The error a handler returns is its only verdict: nil is done, any error is tried again with backoff, [Permanent] goes to
// the dead letters at once and [RetryAfter] chooses the delay. A message that cannot be decoded or validated, or whose type
// the topic does not know, is a contract break: it is never retried.
//
// # The chain
//
// Each subscription runs Watermill's Router over the transport with one fixed chain, outermost first: recover, envelope,
// trace, dead letter, retry, attempt count, the user's own middleware, inbox transaction (or deduplication in memory),
// timeout, recover, the user's inner middleware, decode, handler. A wrong order cannot be configured.
//
// # Shutdown
//
// When Run's context ends, or [Bus.Shutdown] is called, the bus stops taking in, lets handlers finish with live contexts
// until the drain deadline, settles, and closes. It never spends an attempt on a handler that was cut off and never
// dead-letters for it; what is left behind is named in the error.
package bus

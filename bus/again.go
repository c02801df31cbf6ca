package bus

import (
	"context"
	"maps"
	"slices"
)

// Again returns a bus that has not run, with the transport, the options and the subscriptions of b: for whoever keeps a bus
// running after its Run has ended with an error, since a Bus runs once. What the subscriptions remember in memory, attempts
// and handled ids, they forget, as a new process would. It may be called at any time; later changes of either bus do not
// touch the other.
func (b *Bus) Again() *Bus {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := &Bus{
		transport: b.transport,
		publisher: b.transport.Publisher(),
		limits:    b.limits,
		config:    b.config,
		problems:  slices.Clone(b.problems),
		ready:     make(chan struct{}),
		shutdown:  make(chan context.Context, 1),
		done:      make(chan struct{}),
	}
	for _, s := range b.subs {
		same := *s
		same.handlers = maps.Clone(s.handlers)
		same.errs = slices.Clone(s.errs)
		again.subs = append(again.subs, &same)
	}
	return again
}

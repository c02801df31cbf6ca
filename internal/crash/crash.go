// Package crash names the points of the path between a business transaction and its effect where a process may die, and
// lets tests die there. A component that gets an error from [At] must stop as a killed process would: no cleaning up, no
// release of leases, nothing marked.
package crash

import "context"

// Point is a place between two steps of the path, named after the step that was just done.
type Point string

// The points, in the order in which an event passes them.
const (
	Recorded       Point = "recorded"        // row inserted, transaction open
	Committed      Point = "committed"       // business transaction committed, relay not yet woken
	Claimed        Point = "claimed"         // row read by a relay that holds its lease
	Sent           Point = "sent"            // accepted by the transport, row not yet marked
	Marked         Point = "marked"          // row marked as published
	Delivered      Point = "delivered"       // handed to the consumer, handler not yet called
	Handled        Point = "handled"         // handler returned nil, inbox transaction open
	InboxCommitted Point = "inbox-committed" // inbox transaction committed, not yet acknowledged
	Acked          Point = "acked"           // acknowledged to the transport
)

// Stopping is passed by a component that ends because it was told to: a test whose process is dead by then keeps it from
// leaving in good order. Nothing dies there first.
const Stopping Point = "stopping"

// Points returns all points in order.
func Points() []Point {
	return []Point{Recorded, Committed, Claimed, Sent, Marked, Delivered, Handled, InboxCommitted, Acked}
}

// HookFunc is what a test does when a point is reached by whoever ctx belongs to: nothing, or die by an error.
type HookFunc func(ctx context.Context, p Point) error

type key struct{}

// With returns a context in which every [At] calls fn.
func With(ctx context.Context, fn HookFunc) context.Context {
	return context.WithValue(ctx, key{}, fn)
}

// Hook returns what a test put into ctx, or nil: for those who would ask for every message.
func Hook(ctx context.Context) HookFunc {
	fn, _ := ctx.Value(key{}).(HookFunc)
	return fn
}

// At reports that p was reached. It returns nil unless a test asked for a crash there.
func At(ctx context.Context, p Point) error {
	if fn := Hook(ctx); fn != nil {
		return fn(ctx, p)
	}
	return nil
}

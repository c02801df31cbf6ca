package bustest

import "github.com/seambus/seambus/internal/crash"

// Point is a place between two steps of an event's path where a process may die, named after the step just done.
type Point string

// The points, in the order in which an event passes them.
const (
	// Recorded: the row is inserted, the transaction open.
	Recorded = Point(crash.Recorded)
	// Committed: the transaction is committed, the relay not yet woken.
	Committed = Point(crash.Committed)
	// Claimed: the row is read by a relay that holds its lease.
	Claimed = Point(crash.Claimed)
	// Sent: the transport has accepted the event, its row is not yet marked.
	Sent = Point(crash.Sent)
	// Marked: the row is marked as published.
	Marked = Point(crash.Marked)
	// Delivered: the event has reached the consumer, its handler is not yet called.
	Delivered = Point(crash.Delivered)
	// Handled: the handler has returned nil, the inbox's transaction is open.
	Handled = Point(crash.Handled)
	// InboxCommitted: the inbox's transaction is committed, the event not yet acknowledged.
	InboxCommitted = Point(crash.InboxCommitted)
	// Acked: the event is acknowledged to the transport.
	Acked = Point(crash.Acked)
)

// Points returns all points in order.
func Points() []Point {
	var all []Point
	for _, p := range crash.Points() {
		all = append(all, Point(p))
	}
	return all
}

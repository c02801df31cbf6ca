// Package contract is what the two sides have agreed on: the events on each topic. Both sides import it, and nothing else of
// each other.
package contract

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/seambus/seambus/event"
)

// Statuses are the states of an order that the contract knows.
var statuses = []string{"preparing", "ready", "picked_up", "delivered"}

// Delivered is the last status of an order.
const Delivered = "delivered"

// OrderStatusChanged is what the monolith says each time an order's status changes: the whole new status and a version that
// grows, never an instruction.
type OrderStatusChanged struct {
	ID         string `json:"eventId"`
	OrderID    int64  `json:"orderId"`
	Status     string `json:"status"`
	Version    uint64 `json:"version"`
	OccurredAt string `json:"occurredAt"`
}

// EventType is the wire name.
func (OrderStatusChanged) EventType() string { return "order.status_changed" }

// EventID is the monolith's own id.
func (e OrderStatusChanged) EventID() string { return e.ID }

// PartitionKey keeps the changes of one order in order.
func (e OrderStatusChanged) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

// AggregateVersion lets the consumer refuse what is older than what it has.
func (e OrderStatusChanged) AggregateVersion() uint64 { return e.Version }

// Validate is called by the consumer: an unknown status is a contract break.
func (e OrderStatusChanged) Validate() error {
	if !slices.Contains(statuses, e.Status) {
		return fmt.Errorf("status is %.40q, want one of %v", e.Status, statuses)
	}
	return nil
}

// FulfillmentStarted says that the fulfillment service has heard of an order.
type FulfillmentStarted struct {
	OrderID int64  `json:"orderId"`
	Version uint64 `json:"version"`
}

// EventType is the wire name.
func (FulfillmentStarted) EventType() string { return "fulfillment.started" }

// PartitionKey is the order.
func (e FulfillmentStarted) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

// FulfillmentCompleted says that an order has been delivered.
type FulfillmentCompleted struct {
	OrderID int64  `json:"orderId"`
	Version uint64 `json:"version"`
}

// EventType is the wire name.
func (FulfillmentCompleted) EventType() string { return "fulfillment.completed" }

// PartitionKey is the order.
func (e FulfillmentCompleted) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

// The topics. Orders is the monolith's, Fulfillment the service's.
var (
	Orders      = event.NewTopic("orders", OrderStatusChanged{})
	Fulfillment = event.NewTopic("fulfillment", FulfillmentStarted{}, FulfillmentCompleted{})
)

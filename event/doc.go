// Package event defines what travels on the bus: events and the closed topics they belong to, the CloudEvents envelope
// they are carried in, the codecs and decoders between the two, and the errors by which a handler gives its verdict.
//
// An event is a plain Go value with an explicit wire name:
//
//	type OrderPlaced struct {
//		OrderID int64 `json:"orderId"`
//	}
//
//	func (OrderPlaced) EventType() string      { return "order.placed" }
//	func (e OrderPlaced) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }
//
//	var Orders = event.NewTopic("orders", OrderPlaced{}, OrderDelivered{})
//
// The package depends on Watermill's message type alone, so a contract package that imports it stays small.
package event

package event_test

import (
	"fmt"
	"strconv"
)

type placed struct {
	OrderID int64  `json:"orderId"`
	N       uint64 `json:"n,omitempty"`
	Note    string `json:"note,omitempty"`
	ID      string `json:"-"`
	Key     string `json:"-"`
}

func (placed) EventType() string { return "order.placed" }

func (e placed) AggregateVersion() uint64 { return e.N }

func (e placed) EventID() string { return e.ID }

func (placed) SchemaVersion() string { return "2" }

func (e placed) PartitionKey() string {
	if e.Key != "" {
		return e.Key
	}
	return strconv.FormatInt(e.OrderID, 10)
}

func (e placed) Validate() error {
	if e.OrderID < 0 {
		return fmt.Errorf("orderId is %d, want zero or more", e.OrderID)
	}
	return nil
}

type shipped struct{}

func (shipped) EventType() string { return "order.shipped" }

func (shipped) PartitionKey() string { return "" }

type sameName struct{}

func (sameName) EventType() string { return "order.placed" }

func (sameName) PartitionKey() string { return "" }

type nameless struct{}

func (nameless) EventType() string { return "" }

func (nameless) PartitionKey() string { return "" }

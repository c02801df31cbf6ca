// Package service is the fulfillment service: it applies the monolith's order changes to its own table, each once and each
// order's in their order, and says what it did through an outbox of its own.
package service

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/examples/fulfillment/contract"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// takeover is how long a program that was killed keeps its rows from the one that is started in its place.
const takeover = 2 * time.Second

// Group is the consumer group of the service.
const Group = "fulfillment"

const schema = `CREATE TABLE IF NOT EXISTS fulfillment_orders (
	order_id BIGINT NOT NULL PRIMARY KEY,
	status   TEXT   NOT NULL,
	version  BIGINT NOT NULL
)`

// DB is the service's database.
type DB struct {
	*sql.DB
	// Kind is "sqlite", "postgres" or "mysql"; empty is SQLite.
	Kind string
}

// placeholders returns the statement with its three parameters as the database wants them written.
func (db DB) placeholders(statement string) string {
	if db.Kind == "postgres" {
		for _, name := range []string{"$1", "$2", "$3"} {
			statement = strings.Replace(statement, "?", name, 1)
		}
	}
	return statement
}

// Watch is middleware that sees every attempt from outside the transaction. It may be nil.
type Watch message.HandlerMiddleware

// Service handles orders.
type Service struct {
	box            *outbox.Outbox
	in             *inbox.Inbox
	bus            *bus.Bus
	update, insert *sql.Stmt
}

// New prepares the tables and subscribes to the orders.
func New(ctx context.Context, db DB, t transport.Transport, watch Watch) (*Service, error) {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, fmt.Errorf("service: schema: %w", err)
	}
	box, err := outbox.New(db.DB, t, outbox.WithName("fulfillment"), outbox.WithSource("/fulfillment"),
		outbox.WithLeaseTTL(takeover), outbox.WithMigrate())
	if err != nil {
		return nil, err
	}
	in, err := inbox.New(db.DB, inbox.WithMigrate())
	if err != nil {
		return nil, err
	}
	b, err := bus.New(t, bus.WithOutbox(box))
	if err != nil {
		return nil, err
	}
	s := &Service{box: box, in: in, bus: b}
	if s.update, err = db.PrepareContext(ctx, db.placeholders(`UPDATE fulfillment_orders SET status = ?, version = ? WHERE order_id = ?`)); err != nil {
		return nil, fmt.Errorf("service: prepare: %w", err)
	}
	if s.insert, err = db.PrepareContext(ctx, db.placeholders(`INSERT INTO fulfillment_orders (status, version, order_id) VALUES (?, ?, ?)`)); err != nil {
		return nil, fmt.Errorf("service: prepare: %w", err)
	}
	opts := []bus.SubscribeOption{bus.WithInbox(in), bus.WithRetry(middleware.RetryPolicy{InitialDelay: 20 * time.Millisecond})}
	if watch != nil {
		opts = append(opts, bus.WithMiddleware(message.HandlerMiddleware(watch)))
	}
	bus.Handle(b, contract.Orders, Group, s.apply, opts...)
	return s, nil
}

// apply runs in the inbox's transaction: the event's id, the order's row and what the service says about it commit together.
// The version guard has let only newer versions come here, so the change itself needs no condition.
func (s *Service) apply(ctx context.Context, e contract.OrderStatusChanged) error {
	tx := inbox.Tx(ctx)
	res, err := tx.StmtContext(ctx, s.update).ExecContext(ctx, e.Status, e.Version, e.OrderID)
	if err != nil {
		return fmt.Errorf("service: order %d: %w", e.OrderID, err)
	}
	known, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("service: order %d: %w", e.OrderID, err)
	}
	var say []event.Event
	if known == 0 { // any first status is a beginning
		if _, err := tx.StmtContext(ctx, s.insert).ExecContext(ctx, e.Status, e.Version, e.OrderID); err != nil {
			return fmt.Errorf("service: order %d: %w", e.OrderID, err)
		}
		say = append(say, contract.FulfillmentStarted{OrderID: e.OrderID, Version: e.Version})
	}
	if e.Status == contract.Delivered {
		say = append(say, contract.FulfillmentCompleted{OrderID: e.OrderID, Version: e.Version})
	}
	return s.box.Record(ctx, tx, contract.Fulfillment, say...)
}

// Inbox is the service's, for its figures.
func (s *Service) Inbox() *inbox.Inbox { return s.in }

// Outbox is the service's, for its figures.
func (s *Service) Outbox() *outbox.Outbox { return s.box }

// Bus handles the orders and relays what the service says.
func (s *Service) Bus() *bus.Bus { return s.bus }

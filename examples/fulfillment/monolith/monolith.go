// Package monolith is the side that owns the orders. It changes an order and records the event in one transaction; nothing on
// its order path knows the broker.
package monolith

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/examples/fulfillment/contract"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// takeover is how long a program that was killed keeps its rows from the one that is started in its place.
const takeover = 2 * time.Second

// What is said in every database, and what is not.
const schema = `CREATE TABLE IF NOT EXISTS orders (
	order_id    BIGINT      NOT NULL PRIMARY KEY,
	status      TEXT        NOT NULL,
	version     BIGINT      NOT NULL,
	fulfillment VARCHAR(32) NOT NULL DEFAULT ''
)`

var changes = map[string]string{
	"sqlite": `INSERT INTO orders (order_id, status, version) VALUES (?, ?, ?)
ON CONFLICT (order_id) DO UPDATE SET status = excluded.status, version = excluded.version WHERE orders.version < excluded.version`,
	"postgres": `INSERT INTO orders (order_id, status, version) VALUES ($1, $2, $3)
ON CONFLICT (order_id) DO UPDATE SET status = excluded.status, version = excluded.version WHERE orders.version < excluded.version`,
	"mysql": `INSERT INTO orders (order_id, status, version) VALUES (?, ?, ?)
ON DUPLICATE KEY UPDATE status = IF(version < VALUES(version), VALUES(status), status), version = GREATEST(version, VALUES(version))`,
}

var hearings = map[string]string{
	"sqlite":   `UPDATE orders SET fulfillment = ? WHERE order_id = ?`,
	"postgres": `UPDATE orders SET fulfillment = $1 WHERE order_id = $2`,
	"mysql":    `UPDATE orders SET fulfillment = ? WHERE order_id = ?`,
}

// DB is the monolith's database.
type DB struct {
	*sql.DB
	// Kind is "sqlite", "postgres" or "mysql"; empty is SQLite.
	Kind string
}

// Monolith changes orders and hears what became of them.
type Monolith struct {
	db     DB
	box    *outbox.Outbox
	in     *inbox.Inbox
	bus    *bus.Bus
	change *sql.Stmt
}

// New prepares the tables and subscribes to the fulfillment service's events.
func New(ctx context.Context, db DB, t transport.Transport) (*Monolith, error) {
	if db.Kind == "" {
		db.Kind = "sqlite"
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, fmt.Errorf("monolith: schema: %w", err)
	}
	box, err := outbox.New(db.DB, t, outbox.WithName("monolith"), outbox.WithSource("/monolith"),
		outbox.WithLeaseTTL(takeover), outbox.WithMigrate())
	if err != nil {
		return nil, err
	}
	in, err := inbox.New(db.DB, inbox.WithMigrate())
	if err != nil {
		return nil, err
	}
	b, err := bus.New(t, bus.WithInbox(in))
	if err != nil {
		return nil, err
	}
	change, err := db.PrepareContext(ctx, changes[db.Kind])
	if err != nil {
		return nil, fmt.Errorf("monolith: prepare: %w", err)
	}
	m := &Monolith{db: db, box: box, in: in, bus: b, change: change}
	bus.Subscribe(b, contract.Fulfillment, "monolith",
		bus.On(func(ctx context.Context, e contract.FulfillmentStarted) error {
			return m.heard(ctx, e.OrderID, "started")
		}),
		bus.On(func(ctx context.Context, e contract.FulfillmentCompleted) error {
			return m.heard(ctx, e.OrderID, "completed")
		}))
	return m, nil
}

// Change changes an order and records the event: a row, not a network call. A change that is repeated, as a request that timed
// out is, records nothing twice.
func (m *Monolith) Change(ctx context.Context, e contract.OrderStatusChanged) error {
	return m.box.InTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.StmtContext(ctx, m.change).ExecContext(ctx, e.OrderID, e.Status, e.Version); err != nil {
			return fmt.Errorf("monolith: order %d: %w", e.OrderID, err)
		}
		return m.box.Record(ctx, tx, contract.Orders, e)
	})
}

// heard runs in the inbox's transaction.
func (m *Monolith) heard(ctx context.Context, order int64, what string) error {
	_, err := inbox.Tx(ctx).ExecContext(ctx, hearings[m.db.Kind], what, order)
	if err != nil {
		return fmt.Errorf("monolith: order %d: %w", order, err)
	}
	return nil
}

// Refuse keeps what could not even be recorded among the dead letters.
func (m *Monolith) Refuse(ctx context.Context, id string, raw []byte, reason error) error {
	env := &event.Envelope{ID: id, Source: "/monolith", Data: raw}
	return m.in.Put(ctx, &event.DeadLetter{
		Message: env.Message(), Topic: contract.Orders.Name(), Group: "monolith", Handler: "input",
		ID: id, Source: env.Source, Class: event.ClassContract, Reason: reason.Error(),
	})
}

// Outbox is the monolith's, for its relay and its figures.
func (m *Monolith) Outbox() *outbox.Outbox { return m.box }

// Bus handles what the service says.
func (m *Monolith) Bus() *bus.Bus { return m.bus }

package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

type OrderPlaced struct {
	OrderID int `json:"orderId"`
}

func (OrderPlaced) EventType() string      { return "order.placed" }
func (e OrderPlaced) PartitionKey() string { return fmt.Sprint(e.OrderID) }

var Orders = event.NewTopic("orders", OrderPlaced{})

// tempDB opens a database as the package's documentation says.
func tempDB() (*sql.DB, func()) {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		panic(err)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "x.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	return db, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}

func Example() {
	db, cleanup := tempDB()
	defer cleanup()
	broker := memory.New()
	defer broker.Close()
	ctx, cancel := context.WithCancel(context.Background())

	sub, err := broker.Subscriber(transport.SubscriberConfig{Group: "fulfillment"})
	if err != nil {
		panic(err)
	}
	msgs, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		panic(err)
	}
	box, err := outbox.New(db, broker)
	if err != nil {
		panic(err)
	}
	done := make(chan error)
	go func() { done <- box.Run(ctx) }()

	err = box.InTx(ctx, func(tx *sql.Tx) error {
		return box.Record(ctx, tx, Orders, OrderPlaced{OrderID: 7})
	})
	if err != nil {
		panic(err)
	}
	msg := <-msgs
	fmt.Println(string(msg.Payload))
	msg.Ack()
	cancel()
	fmt.Println(<-done)
	// Output:
	// {"orderId":7}
	// <nil>
}

func ExampleNew() {
	db, cleanup := tempDB()
	defer cleanup()
	box, err := outbox.New(db, memory.New(), outbox.WithName("orders"), outbox.WithSource("/shop"))
	fmt.Println(box.Name(), err)
	// Output: orders <nil>
}

func ExampleOutbox_InTx() {
	db, cleanup := tempDB()
	defer cleanup()
	box, err := outbox.New(db, memory.New())
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	err = box.InTx(ctx, func(tx *sql.Tx) error {
		if err := box.Record(ctx, tx, Orders, OrderPlaced{OrderID: 7}); err != nil {
			return err
		}
		return fmt.Errorf("out of stock")
	})
	depth, _ := box.Depth(ctx)
	fmt.Println(err, depth.Pending)
	// Output: out of stock 0
}

func ExampleOutbox_Record() {
	db, cleanup := tempDB()
	defer cleanup()
	box, err := outbox.New(db, memory.New())
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	if err := box.Record(ctx, tx, Orders, OrderPlaced{OrderID: 7}, OrderPlaced{OrderID: 8}); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	box.Committed() // the relay need not look out for the commit
	depth, err := box.Depth(ctx)
	fmt.Println(depth.Pending, err)
	// Output: 2 <nil>
}

func ExampleOutbox_Run() {
	db, cleanup := tempDB()
	defer cleanup()
	broker := memory.New()
	defer broker.Close()
	box, err := outbox.New(db, broker)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- box.Run(ctx) }()
	cancel()
	fmt.Println(<-done)
	// Output: <nil>
}

// An operator needs the database alone: here no relay runs.
func ExampleOperator() {
	db, cleanup := tempDB()
	defer cleanup()
	ctx := context.Background()
	broker := memory.New()
	defer broker.Close()
	box, err := outbox.New(db, broker)
	if err != nil {
		panic(err)
	}
	err = box.InTx(ctx, func(tx *sql.Tx) error { return box.Record(ctx, tx, Orders, OrderPlaced{OrderID: 7}) })
	if err != nil {
		panic(err)
	}

	op, err := outbox.NewOperator(db)
	if err != nil {
		panic(err)
	}
	status, err := op.Status(ctx)
	if err != nil {
		panic(err)
	}
	rows, err := op.Rows(ctx, outbox.Filter{State: outbox.StatePending, Key: "7"})
	if err != nil {
		panic(err)
	}
	_, err = op.Discard(ctx, outbox.Order{Filter: outbox.Filter{Key: "7"}, By: "ann", Why: "ticket 7"})
	fmt.Println(status.Pending, status.Failed, rows[0].Type, err)
	// Output: 1 0 order.placed outbox: discard: no such row in the outbox
}

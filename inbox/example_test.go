package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

// exampleDB returns a new database, and what removes it.
func exampleDB() (*sql.DB, func()) {
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db")+pragmas)
	if err != nil {
		log.Fatal(err)
	}
	return db, func() { _ = errors.Join(db.Close(), os.RemoveAll(dir)) }
}

// One event is delivered three times, and the first attempt fails: it has one effect.
func ExampleInbox_Middleware() {
	db, remove := exampleDB()
	defer remove()
	in, err := inbox.New(db)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE stock (n INTEGER); INSERT INTO stock VALUES (10)`); err != nil {
		log.Fatal(err)
	}
	attempt := 0
	handle := in.Middleware("fulfillment")(func(msg *message.Message) ([]*message.Message, error) {
		attempt++
		_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), `UPDATE stock SET n = n - 1`)
		if attempt == 1 {
			err = errors.New("the printer is out of paper")
		}
		return nil, err
	})
	for range 3 {
		_, err := handle(message.NewMessage("order-17-placed", nil))
		fmt.Println("verdict:", err)
	}
	var stock int
	if err := db.QueryRow(`SELECT n FROM stock`).Scan(&stock); err != nil {
		log.Fatal(err)
	}
	fmt.Println("stock:", stock)
	fmt.Printf("%+v\n", in.Stats())
	// Output:
	// verdict: the printer is out of paper
	// verdict: <nil>
	// verdict: <nil>
	// stock: 9
	// {Handled:1 Duplicates:1 Stale:0 Held:0}
}

func ExampleInbox_Parked() {
	db, remove := exampleDB()
	defer remove()
	in, err := inbox.New(db)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	err = in.Put(ctx, &event.DeadLetter{
		Message: message.NewMessage("order-17-placed", []byte(`{"orderId":"17"}`)),
		Topic:   "orders", Group: "fulfillment", ID: "order-17-placed", Key: "17",
		Class: event.ClassContract, Reason: "orderId is a string", Attempts: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	letters, err := in.Parked(ctx, inbox.Filter{Group: "fulfillment"})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range letters {
		fmt.Println(l.State, l.Topic, l.ID, l.Class, l.Reason, string(l.Message.Payload))
	}
	// Output:
	// dead orders order-17-placed contract orderId is a string {"orderId":"17"}
}

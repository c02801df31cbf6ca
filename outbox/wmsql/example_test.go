package wmsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/outbox/wmsql"
	"github.com/seambus/seambus/transport/memory"
)

func ExampleNew() {
	dir, err := os.MkdirTemp("", "wmsql")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "x.db")+"?_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	box, err := outbox.New(db, memory.New())
	if err != nil {
		panic(err)
	}

	schema, err := wmsql.New(db)
	if err != nil {
		panic(err)
	}
	tx, err := db.Begin()
	if err != nil {
		panic(err)
	}
	pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: schema}, nil)
	if err != nil {
		panic(err)
	}
	if err := pub.Publish("orders", message.NewMessage("order-7", []byte(`{"orderId":7}`))); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	box.Committed()
	depth, err := box.Depth(context.Background())
	fmt.Println(depth.Pending, err)
	// Output: 1 <nil>
}

package pgxoutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/outbox/pgxoutbox"
	"github.com/seambus/seambus/transport/memory"
)

// pgxTx stands for a pgx.Tx, so that the example runs without a server. A program has
//
//	err = pgxoutbox.InTx(ctx, box, pool, func(tx pgx.Tx) error {
//		return box.Record(ctx, pgxoutbox.Tx(tx), orders, placed{"7"})
//	})
type pgxTx struct{}

func (pgxTx) Exec(_ context.Context, query string, _ ...any) (pgconn.CommandTag, error) {
	fmt.Println(strings.Join(strings.Fields(query)[:3], " "))
	return pgconn.NewCommandTag("INSERT 0 2"), nil
}

func ExampleTx() {
	dir, err := os.MkdirTemp("", "pgxoutbox")
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
	err = box.Record(context.Background(), pgxoutbox.Tx(pgxTx{}), orders, placed{"7"}, placed{"8"})
	fmt.Println(box.Stats().Recorded, err)
	// Output:
	// INSERT INTO seambus_outbox
	// 2 <nil>
}

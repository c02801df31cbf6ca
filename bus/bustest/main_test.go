package bustest_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type placed struct {
	OrderID int64  `json:"orderId"`
	N       uint64 `json:"n"`
	ID      string `json:"-"`
}

func (placed) EventType() string          { return "order.placed" }
func (e placed) PartitionKey() string     { return strconv.FormatInt(e.OrderID, 10) }
func (e placed) AggregateVersion() uint64 { return e.N }
func (e placed) EventID() string          { return e.ID }

type shipped struct {
	OrderID int64 `json:"orderId"`
}

func (shipped) EventType() string      { return "order.shipped" }
func (e shipped) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

var orders = event.NewTopic("orders", placed{}, shipped{})

// effects is a table of the test's own.
func effects(t testing.TB, k *bustest.Kit) (insert func(context.Context, placed) error, list func() string) {
	t.Helper()
	if _, err := k.DB().Exec(`CREATE TABLE effects (order_id INTEGER, n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	insert = func(ctx context.Context, e placed) error {
		_, err := inbox.Tx(ctx).ExecContext(ctx, `INSERT INTO effects VALUES (?, ?)`, e.OrderID, e.N)
		return err
	}
	return insert, func() string { return query(t, k.DB(), `SELECT order_id || '.' || n FROM effects ORDER BY rowid`) }
}

// query returns a column's values, separated by spaces.
func query(t testing.TB, db *sql.DB, text string) (got string) {
	t.Helper()
	rows, err := db.Query(text)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		if got += " "; got == " " {
			got = ""
		}
		got += s
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

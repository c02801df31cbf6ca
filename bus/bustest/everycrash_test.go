package bustest_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/outbox"
)

// The whole path: an outbox, a handler with an inbox that records in turn, and a second group.
func TestEveryCrashLosesNothing(t *testing.T) {
	t.Parallel()
	bustest.EveryCrash(t, func(t *testing.T, k *bustest.Kit) {
		insert, list := effects(t, k)
		bus.Handle(k.Bus(), orders, "fulfillment", func(ctx context.Context, e placed) error {
			if err := insert(ctx, e); err != nil {
				return err
			}
			return k.Outbox().Record(ctx, inbox.Tx(ctx), orders, shipped{OrderID: e.OrderID})
		}, bus.Ignore[shipped]())
		bus.Handle(k.Bus(), orders, "billing", func(context.Context, shipped) error { return nil }, bus.Ignore[placed]())
		k.Start()
		for n := range uint64(4) {
			for order := range int64(3) {
				k.Record(orders, placed{OrderID: order, N: n + 1, ID: fmt.Sprintf("%d-%d", order, n)})
			}
		}
		k.Settle()
		if got := query(t, k.DB(), `SELECT group_concat(n, '') FROM (SELECT * FROM effects ORDER BY rowid) GROUP BY order_id`); got != "1234 1234 1234" {
			t.Errorf("effects %s", list())
		}
		k.Handled().Group("billing").Type("order.shipped").Want(12)
	})
}

// There is no order between two outboxes, nor between an outbox and what is published without one.
func TestEveryCrashComparesTheOrderWithinOneOriginOnly(t *testing.T) {
	t.Parallel()
	bustest.EveryCrash(t, func(t *testing.T, k *bustest.Kit) {
		other, err := outbox.New(k.NewDB(), k.Transport())
		if err != nil {
			t.Fatal(err)
		}
		bus.Handle(k.Bus(), orders, "fulfillment", done, bus.Ignore[shipped]())
		k.Start()
		k.Run(other.Run)
		k.Publish(orders, placed{OrderID: 1, N: 1, ID: "a"})
		k.Settle()
		k.Do(func(ctx context.Context) error {
			return other.InTx(ctx, func(tx *sql.Tx) error {
				return other.Record(ctx, tx, orders, placed{OrderID: 1, N: 2, ID: "b"})
			})
		})
		k.Settle()
		k.Record(orders, placed{OrderID: 1, N: 3, ID: "c"})
		k.Settle()
		k.Publish(orders, placed{OrderID: 1, N: 4, ID: "d"})
	})
}

package bustest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/inbox"
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

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/examples/fulfillment/contract"
	"github.com/seambus/seambus/examples/fulfillment/monolith"
	"github.com/seambus/seambus/examples/fulfillment/service"
)

// Both sides die once at every point of the path from the monolith's transaction to the service's, whichever of them is
// there first: go test -v -run CrashPoints ./examples/fulfillment lists the points and what came of each.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	bustest.EveryCrash(t, func(t *testing.T, k *bustest.Kit) {
		monolithDB, serviceDB := monolith.DB{DB: k.NewDB()}, service.DB{DB: k.NewDB()}
		var m atomic.Pointer[monolith.Monolith] // the one that lives
		k.Run(func(ctx context.Context) error {
			fresh, err := monolith.New(ctx, monolithDB, k.Transport())
			if err != nil {
				return err
			}
			m.Store(fresh)
			return both(ctx, fresh.Bus().Run, fresh.Outbox().Run)
		})
		k.Run(func(ctx context.Context) error {
			s, err := service.New(ctx, serviceDB, k.Transport(), nil)
			if err != nil {
				return err
			}
			return s.Bus().Run(ctx)
		})
		synctest.Wait() // both have subscribed
		for version, status := range []string{"preparing", "ready", "picked_up", contract.Delivered} {
			for order := range int64(3) {
				k.Do(func(ctx context.Context) error {
					return m.Load().Change(ctx, contract.OrderStatusChanged{
						ID: fmt.Sprintf("%d-%d", order, version), OrderID: order, Status: status, Version: uint64(version + 1),
					})
				})
			}
		}
		k.Settle()
		for what, query := range map[string]string{
			"orders that the service has delivered":      `SELECT count(*) FROM fulfillment_orders WHERE status = 'delivered' AND version = 4`,
			"events that the service recorded in turn":   `SELECT count(*) / 2 FROM seambus_outbox`,
			"applied changes, each in the inbox's table": `SELECT count(*) / 4 FROM seambus_inbox`,
		} {
			var n int
			if err := serviceDB.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != 3 {
				t.Errorf("%s: for %d orders, %v; want 3", what, n, err)
			}
		}
		var heard int
		err := monolithDB.QueryRowContext(t.Context(), `SELECT count(*) FROM orders WHERE fulfillment = 'completed'`).Scan(&heard)
		if err != nil || heard != 3 {
			t.Errorf("the monolith has heard of %d completed orders, %v; want 3", heard, err)
		}
	})
}

// both runs two parts of a process until both have ended. The end of one ends the other.
func both(ctx context.Context, one, other func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- one(ctx)
	}()
	err := other(ctx)
	cancel()
	return errors.Join(err, <-done)
}

package bustest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
)

// exampleTB stands in for the *testing.T that a test has and an example has not.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (e *exampleTB) Cleanup(fn func())               { e.cleanups = append(e.cleanups, fn) }
func (*exampleTB) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (e *exampleTB) Fatalf(format string, args ...any) {
	e.Errorf(format, args...)
	os.Exit(1)
}

func (e *exampleTB) end() {
	for _, fn := range slices.Backward(e.cleanups) {
		fn()
	}
}

func ExampleNew() {
	t := new(exampleTB) // in a test: its *testing.T
	defer t.end()
	k := bustest.New(t)
	bus.Handle(k.Bus(), Orders, "billing", func(_ context.Context, e OrderPlaced) error {
		fmt.Println("charging order", e.OrderID)
		return nil
	})
	k.Start()
	k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
	k.Settle()
	k.Handled().Type("order.placed").Key("7").Want(1)
	k.Handled().Key("8").Want(0)
	// Output: charging order 7
}

func ExampleKit_FailAttempt() {
	t := new(exampleTB)
	defer t.end()
	k := bustest.New(t)
	bus.Handle(k.Bus(), Orders, "billing", func(context.Context, OrderPlaced) error { return nil })
	k.Start()
	k.FailAttempt(1, bus.RetryAfter(errors.New("the database is away"), time.Millisecond))
	k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
	k.Settle()
	for _, e := range k.Retried().All() {
		fmt.Printf("%s %s, attempt %d: %v\n", e.Type, e.Key, e.Attempt, e.Err)
	}
	for _, e := range k.Handled().All() {
		fmt.Printf("%s %s, attempt %d\n", e.Type, e.Key, e.Attempt)
	}
	// Output:
	// order.placed 7, attempt 1: the database is away
	// order.placed 7, attempt 2
}

func ExampleEvents_Want() {
	t := new(exampleTB)
	defer t.end()
	k := bustest.New(t)
	bus.Handle(k.Bus(), orders, "billing", func(context.Context, placed) error { return bus.Permanent(errors.New("declined")) },
		bus.Ignore[shipped]())
	k.Start()
	k.Publish(orders, placed{OrderID: 7, N: 1, ID: "e-1"})
	k.Settle()
	k.DeadLettered().Key("7").Want(0)
	// Output:
	// dead-lettered with key 7: 1, want 0
	//   dead-lettered in all:
	//     orders order.placed key=7 group=billing id=e-1 attempt=1 error="declined"
}

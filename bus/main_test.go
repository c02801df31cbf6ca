package bus_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport/memory"
)

// The benchmark's peer, Watermill's deduplicator, starts a cleaner that nothing can stop. A test may have started this binary as
// a service to be killed.
func TestMain(m *testing.M) {
	runVictim()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(
		"github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}

type placed struct {
	OrderID int64  `json:"orderId"`
	N       uint64 `json:"n"`
	ID      string `json:"-"`
}

func (placed) EventType() string          { return "order.placed" }
func (e placed) PartitionKey() string     { return strconv.FormatInt(e.OrderID, 10) }
func (e placed) AggregateVersion() uint64 { return e.N }
func (e placed) EventID() string          { return e.ID }

func (e placed) Validate() error {
	if e.OrderID < 0 {
		return fmt.Errorf("orderId is %d, want zero or more", e.OrderID)
	}
	return nil
}

type delivered struct {
	OrderID int64 `json:"orderId"`
}

func (delivered) EventType() string      { return "order.delivered" }
func (e delivered) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

func orders() *event.Topic { return event.NewTopic("orders", placed{}, delivered{}) }

// running is a bus whose Run is under way.
type running struct {
	*bus.Bus
	cancel context.CancelFunc
	done   chan error
}

// start runs b and returns once it is ready, or fails the test.
func start(t *testing.T, b *bus.Bus) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Bus: b, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-r.done:
		cancel()
		t.Fatalf("Run ended early: %v", err)
	}
	return r
}

// stop ends Run by its context and returns its error.
func (r *running) stop() error {
	r.cancel()
	return <-r.done
}

func newBus(t *testing.T, tr *memory.Transport, opts ...bus.Option) *bus.Bus {
	t.Helper()
	b, err := bus.New(tr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newMemory(t *testing.T, opts ...memory.Option) *memory.Transport {
	t.Helper()
	tr := memory.New(opts...)
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Errorf("close transport: %v", err)
		}
	})
	return tr
}

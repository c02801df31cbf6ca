package bustest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
	"github.com/seambus/seambus/transport/transporttest"
)

// What the kit hangs into the wire must not change what the wire does.
func TestWatchedTransportKeepsTheContract(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, transporttest.Harness{
		Bubble: true,
		Unit:   time.Second,
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Leases, transporttest.Crash,
			transporttest.Settled, transporttest.Limits,
		},
		Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
			if first != nil {
				return first, nil
			}
			return bustest.Wire(memory.New(memory.WithLease(10*time.Second), memory.WithLimits(transport.Limits{MessageBytes: 1 << 20}))), nil
		},
		ExpireLease: func(t transport.Transport, topic, group, id string) error {
			if !bustest.Unwire(t).ExpireLease(topic, group, id) {
				return errors.New("no such delivery")
			}
			return nil
		},
		Crash: func(t transport.Transport, group string) error {
			bustest.Unwire(t).Crash(group)
			return nil
		},
	})
}

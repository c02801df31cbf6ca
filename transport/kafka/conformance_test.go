package kafka_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
	"github.com/seambus/seambus/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(newCluster(t)))
}

func harness(c *cluster) transporttest.Harness {
	var gates sync.Map // by transport
	return transporttest.Harness{
		Unit: 100 * time.Millisecond,
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Leases, transporttest.Crash,
			transporttest.Limits,
		},
		Topic: func(ctx context.Context) (string, error) { return c.topic(ctx, 4) },
		Open: func(ctx context.Context, _ transport.Transport) (transport.Transport, error) {
			gate := new(kafka.Gate)
			tr, err := kafka.New(ctx, c.brokers, quick(kafka.WithGate(gate))...)
			gates.Store(tr, gate)
			return settling{tr, c}, err
		},
		ExpireLease: func(t transport.Transport, _, group, _ string) error {
			return t.(settling).Expel(context.Background(), group)
		},
		Crash: func(t transport.Transport, _ string) error {
			gate, _ := gates.Load(t.(settling).Transport)
			gate.(*kafka.Gate).Shut()
			return nil
		},
	}
}

package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
	"github.com/seambus/seambus/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(memory.WithLimits(transport.Limits{MessageBytes: 1 << 20})))
}

func TestConformanceStrictSQS(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(memory.WithStrict(memory.SQS)))
}

func TestConformanceStrictKafka(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(memory.WithStrict(memory.Kafka)))
}

func harness(opts ...memory.Option) transporttest.Harness {
	return transporttest.Harness{
		Bubble: true,
		Unit:   time.Second,
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Leases, transporttest.Crash,
			transporttest.Settled, transporttest.Limits,
		},
		Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
			if first != nil {
				return first, nil // it is the broker as well
			}
			return memory.New(append([]memory.Option{memory.WithLease(10 * time.Second)}, opts...)...), nil
		},
		ExpireLease: func(t transport.Transport, topic, group, id string) error {
			if !t.(*memory.Transport).ExpireLease(topic, group, id) {
				return errors.New("no such delivery")
			}
			return nil
		},
		Crash: func(t transport.Transport, group string) error {
			t.(*memory.Transport).Crash(group)
			return nil
		},
	}
}

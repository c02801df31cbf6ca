package sqs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
	"github.com/seambus/seambus/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(func(b *fakeaws.Broker) (transport.Transport, error) {
		return newStraight(b, sqs.WithCreate(), sqs.WithLease(10*time.Second))
	}))
}

func TestConformanceBehindSNS(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness(func(b *fakeaws.Broker) (transport.Transport, error) {
		return sqs.New(b, sqs.WithFanout(fakeaws.SNS{Broker: b}), sqs.WithCreate(), sqs.WithLease(10*time.Second))
	}))
}

func harness(open func(*fakeaws.Broker) (transport.Transport, error)) transporttest.Harness {
	return transporttest.Harness{
		Bubble: true,
		Unit:   time.Second,
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Leases, transporttest.Crash, transporttest.Limits,
		},
		Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
			if first == nil {
				return open(fakeaws.New())
			}
			return open(broker(first))
		},
		ExpireLease: func(t transport.Transport, topic, group, id string) error {
			if !broker(t).Expire(topic+"_"+group, id) {
				return errors.New("no such delivery")
			}
			return nil
		},
		Crash: func(t transport.Transport, group string) error {
			sqs.Crash(base(t), group)
			return nil
		},
	}
}

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

// Behind SNS, since the suite has topics of several groups. What is sent straight to a queue differs in one call only.
func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, harness())
}

func harness() transporttest.Harness {
	return transporttest.Harness{
		Bubble: true,
		Unit:   time.Second,
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Leases, transporttest.Crash, transporttest.Limits,
		},
		Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
			b := fakeaws.New()
			if first != nil {
				b = broker(first)
			}
			return sqs.New(b, sqs.WithFanout(fakeaws.SNS{Broker: b}), sqs.WithCreate(), sqs.WithLease(10*time.Second))
		},
		ExpireLease: func(t transport.Transport, topic, group, id string) error {
			if !broker(t).Expire(topic+"_"+group, id) {
				return errors.New("no such delivery")
			}
			return nil
		},
		Crash: func(t transport.Transport, group string) error {
			sqs.Crash(t.(*sqs.Transport), group)
			return nil
		},
	}
}

func broker(t transport.Transport) *fakeaws.Broker {
	return sqs.ClientOf(t.(*sqs.Transport)).(*fakeaws.Broker)
}

package sqs_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic = "orders"
	group = "fulfillment"
	queue = "orders_fulfillment.fifo"
)

// keyed returns a message called id on key.
func keyed(key, id string) *message.Message {
	env := &event.Envelope{ID: id, Source: "test", Type: "order.placed", PartitionKey: key, Data: []byte(id)}
	return env.Message()
}

// open returns a transport on b whose topics go straight to the group's queue.
func open(t *testing.T, b sqs.Client, opts ...sqs.Option) *sqs.Transport {
	t.Helper()
	tr, err := sqs.New(b, append([]sqs.Option{sqs.WithSoleGroup(group), sqs.WithCreate()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func join(t *testing.T, tr *sqs.Transport, concurrency int) (transport.Subscriber, <-chan *message.Message) {
	t.Helper()
	return joinContext(t.Context(), t, tr, concurrency)
}

func joinContext(ctx context.Context, t *testing.T, tr *sqs.Transport, concurrency int) (transport.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: concurrency})
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := sub.Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return sub, msgs
}

func publish(t *testing.T, tr *sqs.Transport, msgs ...*message.Message) {
	t.Helper()
	if err := tr.Publisher().Publish(topic, msgs...); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next message, or nil if none comes within d.
func receive(msgs <-chan *message.Message, d time.Duration) *message.Message {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case m := <-msgs:
		return m
	case <-timer.C:
		return nil
	}
}

// expect fails the test unless the next message is called id and comes within a minute, virtual where time is.
func expect(t *testing.T, msgs <-chan *message.Message, id string) *message.Message {
	t.Helper()
	m := receive(msgs, time.Minute)
	if m == nil {
		t.Fatalf("nothing came, want %s", id)
	}
	if m.UUID != id {
		t.Fatalf("got %s, want %s", m.UUID, id)
	}
	return m
}

func silent(t *testing.T, msgs <-chan *message.Message, d time.Duration) {
	t.Helper()
	if m := receive(msgs, d); m != nil {
		t.Fatalf("got %s, want nothing", m.UUID)
	}
}

// refusesWhole answers a call with one bad entry by refusing all of it, as SQS does for some faults.
type refusesWhole struct {
	*fakeaws.Broker
	bad string
}

func (r refusesWhole) SendMessageBatch(ctx context.Context, in *awssqs.SendMessageBatchInput, opts ...func(*awssqs.Options)) (*awssqs.SendMessageBatchOutput, error) {
	for _, e := range in.Entries {
		if *e.MessageBody == r.bad {
			return nil, fakeaws.Error("InvalidMessageContents", "not these")
		}
	}
	return r.Broker.SendMessageBatch(ctx, in, opts...)
}

package memory_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modes are the behaviours that everything must hold on.
func modes() map[string][]memory.Option {
	return map[string][]memory.Option{
		"default":      nil,
		"strict SQS":   {memory.WithStrict(memory.SQS)},
		"strict Kafka": {memory.WithStrict(memory.Kafka)},
	}
}

// keyed returns a message called id on key.
func keyed(key, id string) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	if key != "" {
		msg.Metadata[event.MetaPartitionKey] = key
	}
	return msg
}

func broker(t *testing.T, opts ...memory.Option) *memory.Transport {
	t.Helper()
	b := memory.New(opts...)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func publish(t *testing.T, b *memory.Transport, topic string, msgs ...*message.Message) {
	t.Helper()
	if err := b.Publisher().Publish(topic, msgs...); err != nil {
		t.Fatal(err)
	}
}

func join(t *testing.T, b *memory.Transport, topic, group string, concurrency int) (transport.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := b.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: concurrency})
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return sub, msgs
}

// receive returns the next message, or nil if none comes within a virtual second.
func receive(msgs <-chan *message.Message) *message.Message {
	select {
	case m := <-msgs:
		return m
	case <-time.After(time.Second):
		return nil
	}
}

// expect fails the test unless the next message is called id.
func expect(t *testing.T, msgs <-chan *message.Message, id string) *message.Message {
	t.Helper()
	m := receive(msgs)
	if m == nil {
		t.Fatalf("nothing came, want %s", id)
	}
	if m.UUID != id {
		t.Fatalf("got %s, want %s", m.UUID, id)
	}
	return m
}

func deliveries(m *message.Message) int {
	d, ok := transport.FromContext(m.Context())
	if !ok {
		return -1
	}
	return d.Deliveries
}

func closeAll(t *testing.T, subs ...transport.Subscriber) {
	t.Helper()
	for _, s := range subs {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

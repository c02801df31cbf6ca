package memory_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// Watermill's universal suite. Its messages have no key, so order is claimed with a publisher that gives all of them one.
func TestWatermillSuite(t *testing.T) {
	for mode, opts := range modes() {
		t.Run(mode, func(t *testing.T) {
			b := broker(t, opts...)
			tests.TestPubSub(t, tests.Features{
				ConsumerGroups: true,
				Persistent:     true,
			}, pubSub(b, ""), groupPubSub(b, ""))
		})
	}
}

func TestWatermillSuiteInOrder(t *testing.T) {
	for mode, opts := range modes() {
		t.Run(mode, func(t *testing.T) {
			b := broker(t, opts...)
			tests.TestPubSub(t, tests.Features{
				ConsumerGroups:  true,
				Persistent:      true,
				GuaranteedOrder: true,
			}, pubSub(b, "key"), groupPubSub(b, "key"))
		})
	}
}

func pubSub(b *memory.Transport, key string) tests.PubSubConstructor {
	return func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return groupPubSub(b, key)(t, "group")
	}
}

func groupPubSub(b *memory.Transport, key string) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		sub, err := b.Subscriber(transport.SubscriberConfig{Group: group})
		if err != nil {
			t.Fatal(err)
		}
		var pub message.Publisher = keyPublisher{b.Publisher(), key}
		return pub, sub
	}
}

// keyPublisher gives every message one key and takes it away from the copy that the suite compares.
type keyPublisher struct {
	message.Publisher
	key string
}

func (p keyPublisher) Publish(topic string, msgs ...*message.Message) error {
	copies := make([]*message.Message, len(msgs))
	for i, m := range msgs {
		copies[i] = m.CopyWithContext()
		if p.key != "" {
			copies[i].Metadata[event.MetaPartitionKey] = p.key
		}
	}
	return p.Publisher.Publish(topic, copies...)
}

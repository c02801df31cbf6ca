package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

// Watermill's universal suite. Its messages have no key, so order is claimed with a publisher that gives all of them one. It
// wants topics to come into being, and a connection for each subscriber. It runs in its short form: the long one makes
// a connection for each of fifty subscribers of one topic.
func TestWatermillSuite(t *testing.T) {
	c := newCluster(t)
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups: true,
		Persistent:     true,
		ForceShort:     true,
	}, pubSub(c, ""), groupPubSub(c, ""))
}

func TestWatermillSuiteInOrder(t *testing.T) {
	c := newCluster(t)
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups:  true,
		Persistent:      true,
		GuaranteedOrder: true,
		ForceShort:      true,
	}, pubSub(c, "key"), groupPubSub(c, "key"))
}

func pubSub(c *cluster, key string) tests.PubSubConstructor {
	return func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return groupPubSub(c, key)(t, "group")
	}
}

func groupPubSub(c *cluster, key string) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		tr := c.open(t, kafka.WithTopicCreation(kafka.TopicConfig{Partitions: 4}))
		sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group})
		if err != nil {
			t.Fatal(err)
		}
		return keyPublisher{tr.Publisher(), key}, sub
	}
}

// keyPublisher gives every message one key.
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

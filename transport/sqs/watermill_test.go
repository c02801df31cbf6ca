package sqs_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

// A plain watermill-aws service on FIFO queues reads what this transport sends, and the other way round.
func TestInteropWithWatermillAWS(t *testing.T) {
	onEmulators(t, func(t *testing.T, name string, cfg aws.Config) {
		topic := fresh()
		client := awssqs.NewFromConfig(cfg)
		ours, err := sqs.New(client, append(emulatorOptions(name), sqs.WithSoleGroup(group))...)
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		theirQueue := topic + "_" + group + ".fifo"

		t.Run("ours to theirs", func(t *testing.T) {
			one := keyed("a", "a1")
			one.Metadata = message.Metadata{"ce_partitionkey": "a", "colour": "blue"}
			if err := ours.Publisher().Publish(topic, one); err != nil {
				t.Fatal(err)
			}
			sub, err := wmsqs.NewSubscriber(wmsqs.SubscriberConfig{AWSConfig: cfg, DoNotCreateQueueIfNotExists: true}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			msgs, err := sub.Subscribe(ctx, theirQueue)
			if err != nil {
				t.Fatal(err)
			}
			got := receive(msgs, 30*time.Second)
			if got == nil || got.UUID != "a1" || string(got.Payload) != "a1" || !maps.Equal(got.Metadata, one.Metadata) {
				t.Errorf("got %+v", got)
			}
			got.Ack()
			time.Sleep(200 * time.Millisecond) // watermill-aws forgets the delete if it is closed during it
			cancel()
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
		})

		t.Run("theirs to ours", func(t *testing.T) {
			pub, err := wmsqs.NewPublisher(wmsqs.PublisherConfig{
				AWSConfig: cfg, DoNotCreateQueueIfNotExists: true,
				GenerateSendMessageInput: func(_ context.Context, url wmsqs.QueueURL, m *sqstypes.Message) (*awssqs.SendMessageInput, error) {
					return &awssqs.SendMessageInput{
						QueueUrl: aws.String(string(url)), MessageBody: m.Body, MessageAttributes: m.MessageAttributes,
						MessageGroupId: aws.String("order-7"), MessageDeduplicationId: m.MessageAttributes[wmsqs.UUIDAttribute].StringValue,
					}, nil
				},
			}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			sent := message.NewMessage("theirs-1", []byte("payload"))
			sent.Metadata["colour"] = "green"
			if err := pub.Publish(theirQueue, sent); err != nil {
				t.Fatal(err)
			}
			sub, err := ours.Subscriber(transport.SubscriberConfig{Group: group})
			if err != nil {
				t.Fatal(err)
			}
			msgs, err := sub.Subscribe(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			got := receive(msgs, 30*time.Second)
			if got == nil || got.UUID != "theirs-1" || string(got.Payload) != "payload" || got.Metadata["colour"] != "green" || transport.Key(got) != "order-7" {
				t.Fatalf("got %+v", got)
			}
			got.Ack()
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// The body and the ids of a producer that knows neither Watermill nor CloudEvents: group id is key, deduplication id is id.
func TestAForeignProducersIDsAreKeyAndID(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	tr := open(t, b)
	b.MustCreate(queue, nil)
	body := `{"eventId":"php-9","orderId":42,"status":"placed","version":1}`
	foreign(t, b, "42", "php-9", body)
	foreign(t, b, "43", sqs.Hash("equal bodies"), "equal bodies")
	sub, msgs := join(t, tr, 1)
	defer sub.Close()
	got := receive(msgs, 10*time.Second)
	if got == nil || got.UUID != "php-9" || transport.Key(got) != "42" || string(got.Payload) != body ||
		got.Metadata[sqs.MetaGroupID] != "42" || got.Metadata[sqs.MetaDedupID] != "php-9" {
		t.Fatalf("got %+v", got)
	}
	env, err := event.FromMessage(got)
	if err != nil || env.ID != "php-9" || env.PartitionKey != "42" {
		t.Errorf("envelope %+v, %v", env, err)
	}
	got.Ack()
	if got = receive(msgs, 10*time.Second); got == nil || got.UUID == sqs.Hash("equal bodies") {
		t.Fatalf("got %+v: an id made of the body is no event's id", got)
	}
	got.Ack()
}

func foreign(t *testing.T, client sqs.Client, group, dedup, body string) {
	t.Helper()
	url, err := client.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
	if err != nil {
		t.Fatal(err)
	}
	out, err := client.SendMessageBatch(t.Context(), &awssqs.SendMessageBatchInput{QueueUrl: url.QueueUrl, Entries: []sqstypes.SendMessageBatchRequestEntry{
		{Id: aws.String("0"), MessageBody: &body, MessageGroupId: &group, MessageDeduplicationId: &dedup},
	}})
	if err != nil || len(out.Failed) > 0 {
		t.Fatal(err, out.Failed)
	}
}

// Watermill's universal suite in its short form, as watermill-aws runs it, on the fake. Its messages have no key, so order is claimed with a publisher that gives all of
// them one.
func TestWatermillSuite(t *testing.T) {
	b := fakeaws.New()
	tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true}, pubSub(b, ""), groupPubSub(b, ""))
}

func TestWatermillSuiteInOrder(t *testing.T) {
	b := fakeaws.New()
	tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, GuaranteedOrder: true, ForceShort: true}, pubSub(b, "key"), groupPubSub(b, "key"))
}

func pubSub(b *fakeaws.Broker, key string) tests.PubSubConstructor {
	return func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return groupPubSub(b, key)(t, "group")
	}
}

func groupPubSub(b *fakeaws.Broker, key string) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		tr := fanned(t, b, sqs.WithLinger(time.Millisecond))
		sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group[:min(len(group), 8)]}) // a UUID makes too long a queue name
		if err != nil {
			t.Fatal(err)
		}
		return keyPublisher{tr.Publisher(), key}, sub
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

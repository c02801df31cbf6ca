package sqs_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

func fanned(t *testing.T, b *fakeaws.Broker, opts ...sqs.Option) *sqs.Transport {
	t.Helper()
	return newTransport(t, b, append([]sqs.Option{sqs.WithFanout(fakeaws.SNS{Broker: b}), sqs.WithCreate()}, opts...)...)
}

func joinAs(t *testing.T, tr *sqs.Transport, topic, group string) <-chan *message.Message {
	t.Helper()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: 8})
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

func TestOnePublishBatchReachesEveryGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := fanned(t, b)
		one, two := joinAs(t, tr, topic, "one"), joinAs(t, tr, topic, "two")
		publish(t, tr, keyed("a", "a1"), keyed("b", "b1"))
		for _, msgs := range []<-chan *message.Message{one, two} {
			var got []string
			for range 2 {
				m := receive(msgs, time.Minute)
				got = append(got, m.UUID)
				m.Ack()
			}
			if slices.Sort(got); !slices.Equal(got, []string{"a1", "b1"}) {
				t.Errorf("got %v", got)
			}
		}
		if n := b.Calls()["PublishBatch"]; n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

// The queue of a group may be fed by others, and its policy may say things that are not ours to remove.
func TestPoliciesAreMergedNeverOverwritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		theirs := `{"Version":"2012-10-17","Id":"theirs","Statement":[{"Sid":"audit","Effect":"Deny","Principal":"*","Action":"sqs:Purge","Resource":"*"}]}`
		b.MustCreate(queue, map[string]string{"Policy": theirs})
		tr := fanned(t, b)
		msgs := joinAs(t, tr, topic, group)
		publish(t, tr, keyed("a", "a1"))
		expect(t, msgs, "a1").Ack()
		merged := b.Attributes(queue)["Policy"]
		var p struct {
			ID        string `json:"Id"`
			Statement []struct{ Sid, Effect, Resource string }
		}
		if err := json.Unmarshal([]byte(merged), &p); err != nil || p.ID != "theirs" || len(p.Statement) != 2 || p.Statement[0].Sid != "audit" || p.Statement[1].Effect != "Allow" {
			t.Errorf("policy %s, %v", merged, err)
		}
		joinAs(t, fanned(t, b), topic, group)
		if again := b.Attributes(queue)["Policy"]; again != merged {
			t.Errorf("a second member changed it to %s", again)
		}
	})
}

func TestAPolicyThatIsNotUnderstoodIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	b.MustCreate(queue, map[string]string{"Policy": "not JSON"})
	wantError(t, subscribe(t, fanned(t, b), group), "policy of queue", "must not be overwritten")
	if got := b.Attributes(queue)["Policy"]; got != "not JSON" {
		t.Errorf("policy %q", got)
	}
}

func TestASubscriptionIsFilteredByTheTypesOfItsGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := fanned(t, b, sqs.WithQueue(topic, group, sqs.Queue{Types: []string{"order.placed"}}))
		msgs, all := joinAs(t, tr, topic, group), joinAs(t, tr, topic, "all")
		other := keyed("a", "a1")
		other.Metadata[event.MetaType] = "order.delivered"
		for i := range 30 { // the type stays an attribute however many headers there are
			other.Metadata[strings.Repeat("h", i+1)] = "x"
		}
		publish(t, tr, other, keyed("a", "a2"))
		expect(t, msgs, "a2").Ack()
		expect(t, all, "a1").Ack()
		expect(t, all, "a2").Ack()
		silent(t, msgs, time.Minute)
	})
}

func TestASubscriptionWithoutRawDeliveryIsRefusedOrMended(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	b.MustCreate(queue, nil)
	topics := fakeaws.SNS{Broker: b}
	made, err := topics.CreateTopic(t.Context(), &awssns.CreateTopicInput{Name: aws.String("orders.fifo"), Attributes: map[string]string{"FifoTopic": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topics.Subscribe(t.Context(), &awssns.SubscribeInput{
		TopicArn: made.TopicArn, Protocol: aws.String("sqs"), Endpoint: aws.String(b.Attributes(queue)["QueueArn"]), Attributes: map[string]string{},
	}); err != nil {
		t.Fatal(err)
	}
	wantError(t, subscribe(t, fanned(t, b), group), "RawMessageDelivery", "WithAlter")
	if err := subscribe(t, fanned(t, b, sqs.WithAlter()), group); err != nil {
		t.Error(err)
	}
}

func TestNothingOfSNSIsCreatedUnasked(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	b.MustCreate(queue, nil)
	tr := newTransport(t, b, sqs.WithFanout(fakeaws.SNS{Broker: b}))
	wantError(t, subscribe(t, tr, group), `SNS topic "orders.fifo" does not exist`, "WithCreate")
	wantError(t, tr.Publisher().Publish(topic, keyed("a", "a1")), `SNS topic "orders.fifo" does not exist`)
}

func TestSNSsOwnLimitIsTheTransports(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	if n := fanned(t, b).Capabilities().Limits.MessageBytes; n > sqs.FanoutMessageBytes {
		t.Errorf("limit %d", n)
	}
}

// Topics are looked up page by page.
func TestATopicOnALaterPageIsFound(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	for _, name := range []string{"a.fifo", "b.fifo", "c.fifo", "orders.fifo"} {
		if _, err := (fakeaws.SNS{Broker: b}).CreateTopic(t.Context(), &awssns.CreateTopicInput{Name: &name, Attributes: map[string]string{"FifoTopic": "true"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := newTransport(t, b, sqs.WithFanout(fakeaws.SNS{Broker: b})).Publisher().Publish(topic, keyed("a", "a1")); err != nil {
		t.Error(err)
	}
}

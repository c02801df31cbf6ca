package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

const benchKeys = 1000

// BenchmarkConsume takes b.N messages of 500 bytes, which are there already, from 4 partitions through a bare Watermill
// router: with this transport, with watermill-kafka, and with the client below this transport and nothing around it, which
// keeps no promise. The clock runs from the first message handled to the last. Use a fixed count, as in -benchtime 20000x.
func BenchmarkConsume(b *testing.B) {
	for _, work := range []time.Duration{0, 2 * time.Millisecond} {
		for name, subscriber := range map[string]func(*testing.B, *cluster) (message.Subscriber, func()){
			"seambus": seambusSubscriber, "watermill-kafka": plainSubscriber, "client": bareSubscriber,
		} {
			if name == "client" && work > 0 {
				continue
			}
			b.Run(fmt.Sprintf("handler=%v/%s", work, name), func(b *testing.B) { benchConsume(b, work, subscriber) })
		}
	}
}

func benchMessages(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(watermill.NewUUID(), make([]byte, 500))
		msgs[i].Metadata[event.MetaPartitionKey] = fmt.Sprint(i % benchKeys)
	}
	return msgs
}

func benchConsume(b *testing.B, work time.Duration, subscriber func(*testing.B, *cluster) (message.Subscriber, func())) {
	b.Helper()
	c := newCluster(b)
	topic := c.mustTopic(b, 4)
	publish(b, c.open(b), topic, benchMessages(b.N)...)
	sub, closeSub := subscriber(b, c)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	var handled sync.WaitGroup
	handled.Add(b.N)
	var first sync.Once
	router.AddConsumerHandler("bench", topic, sub, func(*message.Message) error {
		first.Do(func() {
			b.ReportAllocs()
			b.ResetTimer()
		})
		time.Sleep(work)
		handled.Done()
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	handled.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	closeSub()
	if err := router.Close(); err != nil {
		b.Fatal(err)
	}
	<-ended
}

func seambusSubscriber(b *testing.B, c *cluster) (message.Subscriber, func()) {
	sub, err := c.open(b).Subscriber(transport.SubscriberConfig{Group: fmt.Sprint("bench-", topics.Add(1))})
	if err != nil {
		b.Fatal(err)
	}
	return sub, func() { sub.Close() }
}

func plainSubscriber(b *testing.B, c *cluster) (message.Subscriber, func()) {
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: c.brokers, Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: plainConfig(),
		ConsumerGroup: fmt.Sprint("bench-", topics.Add(1)),
	}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	return sub, func() { sub.Close() }
}

// bare is the client in the shape of a subscriber: no order, no promise, nothing but messages.
type bare struct {
	client *kgo.Client
	done   chan struct{}
}

func bareSubscriber(b *testing.B, c *cluster) (message.Subscriber, func()) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumerGroup(fmt.Sprint("bench-", topics.Add(1))),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		b.Fatal(err)
	}
	s := &bare{client: client, done: make(chan struct{})}
	return s, func() { s.Close() }
}

func (s *bare) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	s.client.AddConsumeTopics(topic)
	out := make(chan *message.Message, 64)
	go func() {
		defer close(s.done)
		defer close(out)
		for {
			fetches := s.client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(rec *kgo.Record) {
				msg := message.NewMessage("", rec.Value)
				for _, h := range rec.Headers {
					if h.Key == wmkafka.UUIDHeaderKey {
						msg.UUID = string(h.Value)
						continue
					}
					msg.Metadata[h.Key] = string(h.Value)
				}
				out <- msg
			})
		}
	}()
	return out, nil
}

func (s *bare) Close() error {
	s.client.Close()
	<-s.done
	return nil
}

// BenchmarkPublish publishes b.N messages of 500 bytes on 1,000 keys in one call. Use a fixed count, as in -benchtime 20000x.
func BenchmarkPublish(b *testing.B) {
	b.Run("seambus", func(b *testing.B) {
		c := newCluster(b)
		benchPublish(b, c.open(b).Publisher(), c.mustTopic(b, 4))
	})
	b.Run("watermill-kafka", func(b *testing.B) {
		c := newCluster(b)
		pub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers: c.brokers, OverwriteSaramaConfig: plainConfig(),
			Marshaler: wmkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
				return m.Metadata[event.MetaPartitionKey], nil
			}),
		}, watermill.NopLogger{})
		if err != nil {
			b.Fatal(err)
		}
		defer pub.Close()
		benchPublish(b, pub, c.mustTopic(b, 4))
	})
}

func benchPublish(b *testing.B, pub message.Publisher, topic string) {
	b.Helper()
	if err := pub.Publish(topic, benchMessages(1)...); err != nil { // connections and metadata
		b.Fatal(err)
	}
	msgs := benchMessages(b.N)
	b.ReportAllocs()
	b.ResetTimer()
	if err := pub.Publish(topic, msgs...); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

package kafka_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

// Publish to Kafka and take it back. The cluster is one in this process; in earnest there are addresses instead, and options
// such as WithTLS and WithSCRAM512.
func ExampleNew() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	defer cluster.Close()
	ctx := context.Background()

	broker, err := kafka.New(ctx, cluster.ListenAddrs(),
		kafka.WithTopicCreation(kafka.TopicConfig{Partitions: 4, Replication: 1}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	sub, err := broker.Subscriber(transport.SubscriberConfig{Group: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, status := range []string{"placed", "paid"} {
		msg := message.NewMessage("41-"+status, []byte(status))
		msg.Metadata[event.MetaPartitionKey] = "41"
		if err := broker.Publisher().Publish("orders", msg); err != nil {
			fmt.Println(err)
		}
	}
	for range 2 {
		msg := <-messages
		d, _ := transport.FromContext(msg.Context())
		fmt.Println(d.Key, string(msg.Payload))
		msg.Ack()
	}
	// Output:
	// 41 placed
	// 41 paid
}

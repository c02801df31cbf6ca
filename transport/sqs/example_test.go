package sqs_test

import (
	"context"
	"fmt"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

// One group handles each topic, so that its messages go straight to that group's queue. A program passes
// sqs.NewFromConfig(cfg) of the AWS SDK as the client; here it is a broker in the process.
func ExampleNew() {
	ctx := context.Background()
	client := fakeaws.New()
	t, err := sqs.New(client, sqs.WithSoleGroup("fulfillment"), sqs.WithCreate())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	sub, err := t.Subscriber(transport.SubscriberConfig{Group: "fulfillment"})
	if err != nil {
		fmt.Println(err)
		return
	}
	msgs, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := t.Publisher().Publish("orders", keyed("42", "e-1"), keyed("42", "e-2")); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		m := <-msgs
		fmt.Println(m.UUID, transport.Key(m))
		m.Ack()
	}
	fmt.Println(client.Queues())
	// Output:
	// e-1 42
	// e-2 42
	// [orders_fulfillment.fifo]
}

// Several groups handle a topic: an SNS FIFO topic is put before a queue for each.
func ExampleWithFanout() {
	client := fakeaws.New()
	t, err := sqs.New(client, sqs.WithFanout(fakeaws.SNS{Broker: client}), sqs.WithCreate())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	for _, group := range []string{"billing", "fulfillment"} {
		sub, err := t.Subscriber(transport.SubscriberConfig{Group: group})
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := sub.(*sqs.Subscriber).SubscribeInitialize("orders"); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := t.Publisher().Publish("orders", keyed("42", "e-1")); err != nil {
		fmt.Println(err)
		return
	}
	for _, queue := range client.Queues() {
		fmt.Println(queue, client.Left(queue))
	}
	// Output:
	// orders_billing.fifo [e-1]
	// orders_fulfillment.fifo [e-1]
}

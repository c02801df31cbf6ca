package event_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
)

func ExampleNewTopic() {
	topic := event.NewTopic("orders", placed{}, shipped{})
	fmt.Println(topic.Name(), topic.Types())
	// Output: orders [order.placed order.shipped]
}

func ExampleTopic_Encode() {
	topic := event.NewTopic("orders", placed{})
	env, err := topic.Encode(context.Background(), placed{OrderID: 41, N: 3, ID: "e-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(env.ID, env.Type, env.PartitionKey, env.Version, string(env.Data))
	e, err := topic.Decode(env)
	fmt.Printf("%T %v\n", e, err)
	// Output:
	// e-1 order.placed 41 3 {"orderId":41,"n":3}
	// event_test.placed <nil>
}

// A decoder for a producer that does not speak CloudEvents: the whole message is the body.
func ExampleDecoder() {
	var decode event.Decoder = func(msg *message.Message) (*event.Envelope, error) {
		var body struct {
			ID      string `json:"eventId"`
			OrderID int64  `json:"orderId"`
			Version uint64 `json:"version"`
		}
		if err := json.Unmarshal(msg.Payload, &body); err != nil {
			return nil, err
		}
		return &event.Envelope{
			ID: body.ID, Source: "/monolith", Type: "order.status_changed", PartitionKey: strconv.FormatInt(body.OrderID, 10),
			Version: body.Version, HasVersion: true, Data: msg.Payload,
		}, nil
	}
	msg := message.NewMessage("sqs-message-id", []byte(`{"eventId":"e-1","orderId":41,"status":"ready","version":2}`))
	event.Attach(msg, decode)
	env, err := event.Of(msg)
	fmt.Println(env.ID, env.PartitionKey, env.Version, err)
	// Output: e-1 41 2 <nil>
}

func ExamplePermanent() {
	err := event.Permanent(errors.New("no such order"))
	fmt.Println(err, errors.Is(err, event.ErrPermanent))
	// Output: no such order true
}

func ExampleRetryAfter() {
	err := event.RetryAfter(errors.New("rate limited"), time.Minute)
	d, _ := event.Delay(err)
	fmt.Println(err, d)
	// Output: rate limited 1m0s
}

func ExampleContract() {
	err := event.Contract(errors.New("orderId is missing"))
	fmt.Println(err, errors.Is(err, event.ErrContract), errors.Is(err, event.ErrPermanent), event.Class(err))
	// Output: orderId is missing true true contract
}

func ExampleTopic_Decode() {
	topic := event.NewTopic("orders", placed{}, shipped{})
	e, err := topic.Decode(&event.Envelope{ID: "e-1", Type: "order.placed", Data: []byte(`{"orderId":41}`)})
	fmt.Println(e.(placed).OrderID, err)
	_, err = topic.Decode(&event.Envelope{ID: "e-2", Type: "order.lost"})
	fmt.Println(err)
	// Output:
	// 41 <nil>
	// event: decode "order.lost": topic "orders" has [order.placed order.shipped]: unknown event type
}

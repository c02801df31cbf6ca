package bus_test

import (
	"context"
	"fmt"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport/memory"
)

type shipped struct {
	Order string `json:"order"`
	City  string `json:"city"`
}

func (shipped) EventType() string      { return "parcel.shipped" }
func (e shipped) PartitionKey() string { return e.Order }

type arrived struct {
	Order string `json:"order"`
}

func (arrived) EventType() string      { return "parcel.arrived" }
func (e arrived) PartitionKey() string { return e.Order }

// Publish an event and handle it, on the transport that unit tests use.
func Example() {
	parcels := event.NewTopic("parcels", shipped{}, arrived{})
	broker := memory.New()
	defer broker.Close()
	b, err := bus.New(broker)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	bus.Subscribe(b, parcels, "tracking",
		bus.On(func(_ context.Context, e shipped) error {
			fmt.Println("shipped to", e.City)
			return nil
		}),
		bus.On(func(_ context.Context, e arrived) error {
			fmt.Println("arrived:", e.Order)
			cancel() // the last event of this example
			return nil
		}))
	go func() {
		<-b.Ready()
		if err := b.Publish(ctx, parcels, shipped{"41", "Porto"}, arrived{"41"}); err != nil {
			fmt.Println(err)
		}
	}()
	fmt.Println("run:", b.Run(ctx))
	// Output:
	// shipped to Porto
	// arrived: 41
	// run: <nil>
}

// One type of a topic is handled, the other is ignored on purpose: forgetting it would be an error from Run.
func ExampleHandle() {
	parcels := event.NewTopic("parcels", shipped{}, arrived{})
	broker := memory.New()
	defer broker.Close()
	b, err := bus.New(broker)
	if err != nil {
		fmt.Println(err)
		return
	}
	bus.Handle(b, parcels, "billing", func(context.Context, shipped) error { return nil })
	fmt.Println(b.Run(context.Background()))
	// Output:
	// bus: configuration: subscription parcels/billing: "parcel.arrived" is neither handled nor ignored: add bus.On or bus.Ignore for it
}

package drill_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/internal/drill"
	"github.com/seambus/seambus/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broken is a transport that says it has accepted what it has not, or turns batches around.
type broken struct {
	transport.Transport
	publish func(next message.Publisher, topic string, msgs []*message.Message) error
}

func (b broken) Publisher() message.Publisher { return publisher{b.Transport.Publisher(), b} }

type publisher struct {
	message.Publisher
	b broken
}

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	return p.b.publish(p.Publisher, topic, msgs)
}

func TestADrillOverABrokenPathFails(t *testing.T) {
	t.Parallel()
	lossy := func(next message.Publisher, topic string, msgs []*message.Message) error {
		kept := slices.DeleteFunc(slices.Clone(msgs), func(m *message.Message) bool { return m.UUID == "order-7" })
		if len(kept) == 0 {
			return nil
		}
		return next.Publish(topic, kept...)
	}
	var mu sync.Mutex
	var late []*message.Message
	lagging := func(next message.Publisher, topic string, msgs []*message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			if m.UUID == "order-1" { // comes after the next of its key
				late = append(late, m.Copy())
				continue
			}
			if err := next.Publish(topic, m); err != nil {
				return err
			}
			if m.UUID == "order-41" && len(late) > 0 {
				if err := next.Publish(topic, late...); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		publish func(message.Publisher, string, []*message.Message) error
		want    string
	}{
		"loses": {lossy, "events were lost"}, "reorders": {lagging, "events took effect out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := dialecttest.SQLite(t).Open(t)
			r, err := drill.Run(t.Context(), db, drill.Config{
				Name: drill.Outage, Orders: 100, For: time.Second, Scale: 10,
				Broker: func(next transport.Transport) transport.Transport { return broken{next, c.publish} },
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(r.Broken, c.want) {
				t.Errorf("broken: %v, want %q among them\n%s", r.Broken, c.want, r)
			}
		})
	}
}

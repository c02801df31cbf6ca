package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

type placed struct {
	Order string `json:"order"`
}

func (placed) EventType() string      { return "order.placed" }
func (e placed) PartitionKey() string { return e.Order }

// running is a bus that runs until the test ends.
func running(t *testing.T, tr transport.Transport, topic *event.Topic, group string, handle func(context.Context, placed) error) *bus.Bus {
	t.Helper()
	b, err := bus.New(tr, bus.WithRetry(middleware.RetryPolicy{MaxAttempts: 3, InitialDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	bus.Handle(b, topic, group, handle)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

// names makes a topic with its dead letters' and returns it under a name that no other test uses.
func (c *cluster) names(t *testing.T, group string) (topic *event.Topic, dead string) {
	t.Helper()
	name := fmt.Sprintf("orders-%d", time.Now().UnixNano()%1e12)
	dead = name + "_" + group + "_dead"
	for _, n := range []string{name, dead} {
		if resp, err := c.admin.CreateTopic(t.Context(), 1, 1, nil, n); err != nil || resp.Err != nil {
			t.Fatal(err, resp.Err)
		}
	}
	return event.NewTopic(name, placed{}), dead
}

// C19: a record that cannot be decoded goes to the dead letters with its bytes and its key; what stands before and after it is
// handled, and the group does not notice.
func TestGarbageIsDeadLetteredWithoutARebalance(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic, dead := c.names(t, "billing")
	tr := c.open(t, kafka.WithRequiredTopics(dead))
	handled := make(chan string, 10)
	b := running(t, tr, topic, "billing", func(_ context.Context, e placed) error {
		handled <- e.Order
		return nil
	})
	receive := func() string {
		select {
		case s := <-handled:
			return s
		case <-time.After(patience):
			t.Fatal("nothing was handled")
		}
		return ""
	}
	if err := b.Publish(t.Context(), topic, placed{"good-1"}); err != nil {
		t.Fatal(err)
	}
	if got := receive(); got != "good-1" {
		t.Errorf("handled %s", got)
	}
	generation := tr.Generation("billing")
	garbage := "\x00\xff{not json"
	c.produce(t,
		&kgo.Record{Topic: topic.Name(), Key: []byte("41"), Value: []byte(garbage), Headers: []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("g-1")},
			{Key: "ce_type", Value: []byte("order.placed")}, {Key: "content-type", Value: []byte("application/json")},
		}},
		&kgo.Record{Topic: topic.Name(), Value: []byte(garbage)}, // nothing at all to go by
		&kgo.Record{Topic: topic.Name(), Key: []byte("42")})      // a tombstone
	if err := b.Publish(t.Context(), topic, placed{"good-2"}); err != nil {
		t.Fatal(err)
	}
	if got := receive(); got != "good-2" {
		t.Errorf("handled %s", got)
	}
	keys := make(map[string]string)
	for _, rec := range c.records(t, dead, 3) {
		keys[string(rec.Key)] = string(rec.Value)
	}
	if len(keys) != 3 || keys["41"] != garbage || keys[""] != garbage || keys["42"] != "" {
		t.Errorf("dead letters by key are %q", keys)
	}
	if now := tr.Generation("billing"); now != generation {
		t.Errorf("the group's generation went from %d to %d", generation, now)
	}
	eventually(t, "all is committed", func() bool { return c.committed(t, "billing", topic.Name(), 0) == 5 })
}

// C29: dead letters and what is redriven from them keep key, id, trace and time.
func TestDeadLettersAndRedriveKeepWhatAMessageIs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic, dead := c.names(t, "billing")
	tr := c.open(t)
	var mu sync.Mutex
	healed, handled := false, make(chan string, 10)
	running(t, tr, topic, "billing", func(ctx context.Context, e placed) error {
		mu.Lock()
		defer mu.Unlock()
		if !healed {
			return bus.Permanent(errors.New("the card is refused"))
		}
		env, _ := event.FromContext(ctx)
		handled <- env.ID + " " + env.PartitionKey + " " + env.Time.Format(time.RFC3339Nano)
		return nil
	})
	env := &event.Envelope{
		ID: "e-1", Source: "shop", Type: "order.placed", PartitionKey: "41", ContentType: "application/json",
		Time: time.Date(2026, 5, 1, 12, 0, 0, 7, time.UTC), Data: []byte(`{"order":"41"}`),
		Metadata: map[string]string{event.MetaTraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
	publish(t, tr, topic.Name(), env.Message())
	_, letters := join(t, tr, dead, "operator", 1)
	letter := next(t, letters)
	rec := c.records(t, dead, 1)[0]
	if letter.UUID != "e-1" || string(rec.Key) != "41" || string(rec.Value) != string(env.Data) ||
		!strings.Contains(letter.Metadata[event.MetaTraceParent], "0af7651916cd43dd8448eb211c80319c") {
		t.Errorf("the letter is %v, its record's key %q", letter, rec.Key)
	}
	mu.Lock()
	healed = true
	mu.Unlock()
	again := message.NewMessage(letter.UUID, letter.Payload)
	again.Metadata = letter.Metadata
	publish(t, tr, topic.Name(), again)
	letter.Ack()
	select {
	case got := <-handled:
		if want := "e-1 41 2026-05-01T12:00:00.000000007Z"; got != want {
			t.Errorf("redriven as %s, want %s", got, want)
		}
	case <-time.After(patience):
		t.Fatal("the redriven event did not come")
	}
	if recs := c.records(t, topic.Name(), 2); string(recs[1].Key) != "41" {
		t.Errorf("redriven with key %q", recs[1].Key)
	}
}

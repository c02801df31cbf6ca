package kafka_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// A plain watermill-kafka service reads what is published here, and is read here.
func TestPlainWatermillServiceUnderstandsAndIsUnderstood(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 4)
	tr := c.open(t)
	marshaler := wmkafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		return msg.Metadata[event.MetaPartitionKey], nil
	})
	plainPub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
		Brokers: c.brokers, Marshaler: marshaler, OverwriteSaramaConfig: plainConfig(),
	}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	defer plainPub.Close()
	plainSub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: c.brokers, Unmarshaler: marshaler, ConsumerGroup: "plain", OverwriteSaramaConfig: plainConfig(),
	}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	defer plainSub.Close()
	sent := make(map[string]*message.Message)
	for i := range 20 {
		env := &event.Envelope{
			ID: fmt.Sprintf("id-%d", i), Source: "interop", Type: "interop.tested", PartitionKey: fmt.Sprint(i % 5),
			ContentType: "application/json", Version: uint64(i), HasVersion: true, Time: time.Now(), Data: []byte(fmt.Sprint(i)),
		}
		sent[env.ID] = env.Message()
	}
	publish(t, tr, topic, slices.Collect(maps.Values(sent))...)
	plain, err := plainSub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for range sent {
		msg := next(t, plain)
		if !msg.Equals(sent[msg.UUID]) {
			t.Errorf("a plain service reads %v, want %v", msg, sent[msg.UUID])
		}
		if key, _ := wmkafka.MessageKeyFromCtx(msg.Context()); string(key) != transport.Key(msg) {
			t.Errorf("record key is %q, want %q", key, transport.Key(msg))
		}
		msg.Ack()
	}
	_, ours := join(t, tr, topic, "ours", 64)
	if err := plainPub.Publish(topic, slices.Collect(maps.Values(sent))...); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for range 2 * len(sent) {
		msg := next(t, ours)
		if !msg.Equals(sent[msg.UUID]) {
			t.Errorf("read %v, want %v", msg, sent[msg.UUID])
		}
		seen[msg.UUID]++
		msg.Ack()
	}
	for id := range sent {
		if seen[id] != 2 {
			t.Errorf("%s came %d times, want once from each service", id, seen[id])
		}
	}
}

// plainConfig is what a careful watermill-kafka service sets.
func plainConfig() *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Retry.Max = 10
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	return cfg
}

// Keys lie where the Java client puts them: partition.Of is held against its golden values.
func TestKeysArePlacedAsTheJavaClientPlacesThem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 7)
	tr := c.open(t)
	var msgs []*message.Message
	for i := range 500 {
		msgs = append(msgs, keyed(fmt.Sprintf("key-%d-żółć", i), fmt.Sprintf("m%d", i)))
	}
	publish(t, tr, topic, msgs...)
	for _, rec := range c.records(t, topic, len(msgs)) {
		if want := partition.Of(string(rec.Key), 7); int(rec.Partition) != want {
			t.Errorf("key %q is on partition %d, want %d", rec.Key, rec.Partition, want)
		}
	}
}

// Foreign records have defined shapes, and none of them stops a partition.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	header := func(kv ...string) (hs []kgo.RecordHeader) {
		for i := 0; i < len(kv); i += 2 {
			hs = append(hs, kgo.RecordHeader{Key: kv[i], Value: []byte(kv[i+1])})
		}
		return hs
	}
	at := func(offset int) string { return fmt.Sprintf("%s:0:%d", topic, offset) }
	_, msgs := c.reader(t, topic)
	for _, test := range []struct {
		name    string
		rec     kgo.Record
		id, key string // of the message and of its delivery
		meta    map[string]string
		payload []byte
	}{
		{"no header and no key", kgo.Record{Value: []byte("x")}, at(0), "", nil, []byte("x")},
		{"a key only", kgo.Record{Key: []byte("k"), Value: []byte("x")}, at(1), "k", map[string]string{event.MetaPartitionKey: "k"}, []byte("x")},
		{"a key of bytes", kgo.Record{Key: []byte{0, 0xff}, Value: []byte("x")}, at(2), "\x00\xff", nil, []byte("x")},
		{"a tombstone", kgo.Record{Key: []byte("k"), Headers: header("a", "b")}, at(3), "k", map[string]string{"a": "b", event.MetaPartitionKey: "k"}, nil},
		{"an empty value", kgo.Record{Key: []byte("k"), Value: []byte{}}, at(4), "k", map[string]string{event.MetaPartitionKey: "k"}, []byte{}},
		{"a repeated header", kgo.Record{Headers: header("a", "1", "a", "2"), Value: []byte("x")}, at(5), "", map[string]string{"a": "2"}, []byte("x")},
		{"CloudEvents of another library", kgo.Record{Headers: header("ce_id", "e-1"), Value: []byte("x")}, "e-1", "", map[string]string{"ce_id": "e-1"}, []byte("x")},
		{"a key in a header only", kgo.Record{Headers: header("ce_id", "e-2", event.MetaPartitionKey, "h"), Value: []byte("x")}, "e-2", "h",
			map[string]string{"ce_id": "e-2", event.MetaPartitionKey: "h"}, []byte("x")},
		{"a header of invalid UTF-8", kgo.Record{Headers: header("a", "\xff\x00"), Value: []byte("\xff")}, at(8), "", map[string]string{"a": "\xff\x00"}, []byte("\xff")},
	} {
		rec := test.rec
		rec.Topic = topic
		c.produce(t, &rec)
		msg := next(t, msgs)
		d, _ := transport.FromContext(msg.Context())
		if msg.UUID != test.id || d.Key != test.key || !maps.Equal(msg.Metadata, message.Metadata(test.meta)) ||
			!bytes.Equal(msg.Payload, test.payload) || (msg.Payload == nil) != (test.payload == nil) {
			t.Errorf("%s: id %q, key %q, metadata %v, payload %#v", test.name, msg.UUID, d.Key, msg.Metadata, msg.Payload)
		}
		msg.Ack()
	}
}

// Publishing nothing is not deleting.
func TestNilPayloadIsNoTombstone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	msg := keyed("k", "id")
	msg.Payload = nil
	publish(t, c.open(t), topic, msg)
	if rec := c.records(t, topic, 1)[0]; rec.Value == nil || len(rec.Value) != 0 {
		t.Errorf("value is %#v, want one that is empty and not nil", rec.Value)
	}
}

func TestLargeHeadersTravel(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	tr := c.open(t)
	msg := keyed("k", "id")
	msg.Metadata["large"] = strings.Repeat("h", 300<<10)
	publish(t, tr, topic, msg)
	_, msgs := join(t, tr, topic, "g", 1)
	got := expect(t, msgs, "id")
	if got.Metadata["large"] != msg.Metadata["large"] {
		t.Errorf("the header came with %d bytes", len(got.Metadata["large"]))
	}
	got.Ack()
}

func TestReservedHeaderIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	msg := keyed("k", "id")
	msg.Metadata["_watermill_message_uuid"] = "other"
	err := c.open(t).Publisher().Publish(c.mustTopic(t, 1), msg)
	if !transport.Permanent(err) || !strings.Contains(err.Error(), "_watermill_message_uuid") {
		t.Errorf("got %v, want a permanent error that names the header", err)
	}
}

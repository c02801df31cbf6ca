package kafka

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/event"
)

// Any record is a message, with an id that an inbox can keep.
func FuzzDecode(f *testing.F) {
	f.Add("orders", []byte("k"), []byte("v"), "h", []byte("x"))
	f.Add(strings.Repeat("t", 249), []byte(nil), []byte(nil), uuidHeader, []byte(""))
	f.Fuzz(func(t *testing.T, topic string, key, value []byte, header string, content []byte) {
		rec := &kgo.Record{Topic: topic, Key: key, Value: value, Offset: 1 << 62, Partition: 1 << 30,
			Headers: []kgo.RecordHeader{{Key: header, Value: content}}}
		msg := decode(rec)
		if msg.UUID == "" {
			t.Error("no id")
		}
		if header != uuidHeader && header != event.MetaID && len(topic) <= 249 && len(msg.UUID) > event.MaxIDBytes {
			t.Errorf("the id has %d bytes", len(msg.UUID))
		}
		if string(msg.Payload) != string(value) || (msg.Payload == nil) != (value == nil) {
			t.Errorf("payload %q, want %q", msg.Payload, value)
		}
		if len(value) > 0 {
			msg.Payload[0]++
			if string(decode(rec).Payload) != string(value) {
				t.Error("a handler's change reached the record")
			}
		}
	})
}

// What is written is what is read.
func FuzzEncode(f *testing.F) {
	f.Add("id", "key", "header", "value", []byte("payload"))
	f.Fuzz(func(t *testing.T, id, key, header, value string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata[header] = value
		if key != "" {
			msg.Metadata[event.MetaPartitionKey] = key
		}
		rec, err := encode("orders", msg)
		if header == uuidHeader {
			if err == nil {
				t.Error("the reserved header was taken")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		got := decode(rec)
		if id != "" && got.UUID != id || string(got.Payload) != string(payload) || got.Metadata[header] != msg.Metadata[header] {
			t.Errorf("wrote %v, read %v", msg, got)
		}
		if len(rec.Value) == 0 && rec.Value == nil {
			t.Error("a tombstone")
		}
	})
}

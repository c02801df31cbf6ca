package kafka

import (
	"fmt"
	"hash/fnv"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// uuidHeader is where watermill-kafka keeps a message's UUID.
const uuidHeader = "_watermill_message_uuid"

// encode makes the record of msg. It shares no memory with msg: the broker may take it after Publish has given up on it.
func encode(topic string, msg *message.Message) (*kgo.Record, error) {
	if _, taken := msg.Metadata[uuidHeader]; taken {
		return nil, fmt.Errorf("%w: metadata %q is reserved for the message's UUID", transport.ErrRefused, uuidHeader)
	}
	key := transport.Key(msg)
	size := len(msg.UUID) + len(key) + len(msg.Payload)
	for _, v := range msg.Metadata {
		size += len(v)
	}
	buf := make([]byte, 0, size) // never outgrown, so that what was cut from it stays
	cut := func(s string) []byte {
		start := len(buf)
		buf = append(buf, s...)
		return buf[start:len(buf):len(buf)]
	}
	rec := &kgo.Record{Topic: topic, Headers: make([]kgo.RecordHeader, 1, 1+len(msg.Metadata))}
	rec.Headers[0] = kgo.RecordHeader{Key: uuidHeader, Value: cut(msg.UUID)}
	for k, v := range msg.Metadata {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: k, Value: cut(v)})
	}
	if key != "" {
		rec.Key = cut(key)
	}
	start := len(buf)
	buf = append(buf, msg.Payload...)
	rec.Value = buf[start:len(buf):len(buf)] // empty and not nil, which would be a tombstone
	return rec, nil
}

// recordBytes bounds what rec takes in a batch of its own.
func recordBytes(rec *kgo.Record) int {
	const batchHeader, perRecord, perHeader = 61, 26, 10
	n := batchHeader + perRecord + len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += perHeader + len(h.Key) + len(h.Value)
	}
	return n
}

// decode makes a message of rec: any record can be one. It copies what a handler could change, since rec may be delivered
// again.
func decode(rec *kgo.Record) *message.Message {
	var payload message.Payload
	if rec.Value != nil {
		payload = append(make(message.Payload, 0, len(rec.Value)), rec.Value...)
	}
	msg := message.NewMessage("", payload)
	for _, h := range rec.Headers {
		if h.Key == uuidHeader {
			msg.UUID = string(h.Value)
			continue
		}
		msg.Metadata[h.Key] = string(h.Value)
	}
	if msg.UUID == "" {
		msg.UUID = msg.Metadata[event.MetaID]
	}
	if msg.UUID == "" {
		msg.UUID = position(rec)
	}
	if len(rec.Key) > 0 && isText(rec.Key) && msg.Metadata[event.MetaPartitionKey] == "" {
		msg.Metadata[event.MetaPartitionKey] = string(rec.Key)
	}
	return msg
}

// position names a record that has no id. It is the same at every delivery, and short enough for an id.
func position(rec *kgo.Record) string {
	topic := rec.Topic
	if len(topic) > 200 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(topic))
		topic = fmt.Sprintf("%s~%x", topic[:180], h.Sum64())
	}
	return fmt.Sprintf("%s:%d:%d", topic, rec.Partition, rec.Offset)
}

// orderKey is what rec keeps order with: its own key, or that of a producer which named one in a header only.
func orderKey(rec *kgo.Record) []byte {
	if len(rec.Key) > 0 {
		return rec.Key
	}
	for _, h := range rec.Headers {
		if h.Key == event.MetaPartitionKey {
			return h.Value
		}
	}
	return nil
}

// isText reports whether b can be an envelope's partition key.
func isText(b []byte) bool {
	if len(b) > event.MaxKeyBytes || !utf8.Valid(b) {
		return false
	}
	for _, c := range b {
		if c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}

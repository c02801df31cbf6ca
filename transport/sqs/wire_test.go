package sqs_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
)

// C27, C28: whatever the headers and bytes, what is sent has at most ten attributes, none of them empty, and is text where SQS
// wants text; and it comes back as it was.
func TestWhatSQSCannotCarryIsPackedAndComesBack(t *testing.T) {
	t.Parallel()
	for _, headers := range []int{0, 5, 9, 10, 30, 200} {
		for _, payload := range []string{"", "\x00\xff", "bad \xc3\x28", "\uFFFE", "\uFFFD", "x", "two\r\nlines", "zażółć 🎉"} {
			msg := keyed("a", "m1")
			msg.Payload = []byte(payload)
			for h := range headers {
				msg.Metadata[fmt.Sprintf("h%03d", h)] = []string{"plain", "", "two\nlines", "\x00", "zażółć"}[h%5]
			}
			msg.Metadata["AWS.reserved"], msg.Metadata["ends."], msg.Metadata["with space"], msg.Metadata[""] = "1", "2", "3", "4"
			roundTrip(t, msg)
		}
	}
}

func roundTrip(t *testing.T, msg *message.Message) {
	t.Helper()
	body, attrs := sqs.Pack(msg)
	if body == "" || len(attrs) > 10 {
		t.Errorf("body %q, %d attributes", body, len(attrs))
	}
	for name, value := range attrs {
		if value == "" {
			t.Errorf("attribute %q is empty", name)
		}
	}
	got := sqs.Repack(msg)
	if got.UUID != msg.UUID || !bytes.Equal(got.Payload, msg.Payload) || !maps.Equal(got.Metadata, msg.Metadata) {
		t.Errorf("%q %q %q came back as %q %q %q", msg.UUID, msg.Payload, msg.Metadata, got.UUID, got.Payload, got.Metadata)
	}
}

func FuzzPacking(f *testing.F) {
	f.Add("m1", []byte("payload"), "name", "value")
	f.Add("", []byte{}, "", "")
	f.Add("\xff", []byte{0}, sqs.AttrUUID, "x")
	f.Add("m", []byte("-"), sqs.AttrHeaders, "x")
	f.Add("m", []byte("-"), sqs.AttrPayload, "empty")
	f.Fuzz(func(t *testing.T, id string, payload []byte, name, value string) {
		msg := message.NewMessage(id, payload)
		msg.Metadata[name] = value
		roundTrip(t, msg)
	})
}

func FuzzUnpacking(f *testing.F) {
	f.Add([]byte{1, 'a', 1, 'b'})
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		msg := sqs.UnpackHeaders(b)
		if _, err := event.FromMessage(msg); err == nil && msg.UUID == "" {
			t.Errorf("%x made an envelope without an id", b)
		}
	})
}

// A header that is not what it claims is a contract break with the body as it came, not a loop.
func TestWhatCannotBeUnpackedIsAContractBreak(t *testing.T) {
	t.Parallel()
	msg := sqs.UnpackHeaders([]byte{9, 'a'})
	if _, err := event.FromMessage(msg); err == nil || string(msg.Payload) != "body" {
		t.Errorf("error %v, payload %q", err, msg.Payload)
	}
}

// What the limits allow fits, whatever it is made of.
func TestTheReserveCoversWhatPackingAdds(t *testing.T) {
	t.Parallel()
	limits := transport.Limits{MessageBytes: 50_000, Headers: 256}
	for _, value := range []string{"", "v", "\x00"} {
		msg := message.NewMessage(strings.Repeat("i", event.MaxIDBytes), nil)
		for h := range limits.Headers {
			msg.Metadata[fmt.Sprintf("header-%03d", h)] = value
		}
		used := 0
		for k, v := range msg.Metadata {
			used += len(k) + len(v)
		}
		msg.Payload = bytes.Repeat([]byte{0}, limits.MessageBytes-used)
		if err := limits.Check(msg); err != nil {
			t.Fatal(err)
		}
		if got := sqs.PackedSize(msg); got > limits.MessageBytes+sqs.PackingReserve {
			t.Errorf("value %q: %d bytes, %d more than the reserve", value, got, got-limits.MessageBytes-sqs.PackingReserve)
		}
	}
}

// Golden: group and deduplication ids are on the wire, and a change of them in one release reorders or repeats.
func TestGroupAndDeduplicationIDs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ key, id, generation, group, dedup string }{
		{"42", "e-1", "", "42", "e-1"},
		{"", "e-1", "0", "e-1", "e-1"},
		{"42", "e-1", "1", "42", ""},
		{"zażółć", "e-1", "", "", "e-1"},
		{"with space", strings.Repeat("x", 129), "", "", ""},
	} {
		group, dedup := sqs.IDs(tc.key, tc.id, tc.generation)
		if tc.group != "" && group != tc.group || tc.group == "" && len(group) != 64 {
			t.Errorf("key %q: group %q", tc.key, group)
		}
		if tc.generation == "1" {
			if dedup == tc.id || len(dedup) != 64 {
				t.Errorf("generation 1: deduplication id %q", dedup)
			}
			continue
		}
		if tc.dedup != "" && dedup != tc.dedup || tc.dedup == "" && len(dedup) != 64 {
			t.Errorf("id %q: deduplication id %q", tc.id, dedup)
		}
	}
}

package event_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The wire form is a promise to services that run other releases and other languages.
func TestWireFormIsGolden(t *testing.T) {
	t.Parallel()
	env := &event.Envelope{
		ID: "0190a0a0-0000-7000-8000-000000000001", Source: "/monolith", Type: "order.placed", Subject: "41",
		Time: time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC), ContentType: "application/json", SchemaVersion: "2",
		PartitionKey: "41", CorrelationID: "c-1", CausationID: "c-0", Version: 7, HasVersion: true,
		Metadata: map[string]string{event.MetaTraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		Data:     []byte(`{"orderId":41}`),
	}
	msg := env.Message()
	var b strings.Builder
	fmt.Fprintf(&b, "uuid: %s\npayload: %s\n", msg.UUID, msg.Payload)
	for _, k := range slices.Sorted(maps.Keys(msg.Metadata)) {
		fmt.Fprintf(&b, "%s: %s\n", k, msg.Metadata[k])
	}
	const file = "testdata/envelope.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the wire form is\n%swant\n%s", b.String(), want)
	}
}

func TestPlainWatermillMessagesHaveAnEnvelope(t *testing.T) {
	t.Parallel()
	env, err := event.FromMessage(message.NewMessage("u-1", []byte("x")))
	if err != nil || env.ID != "u-1" || env.Type != "" {
		t.Errorf("FromMessage = %+v, %v", env, err)
	}
}

func TestMalformedAttributesAreContractBreaks(t *testing.T) {
	t.Parallel()
	for key, value := range map[string]string{
		event.MetaSpecVersion: "0.3", event.MetaTime: "yesterday", event.MetaSequence: "-1", event.MetaID: strings.Repeat("x", 256),
	} {
		msg := message.NewMessage("u-1", nil)
		msg.Metadata[key] = value
		if _, err := event.FromMessage(msg); !errors.Is(err, event.ErrContract) {
			t.Errorf("%s = %.20q gave %v", key, value, err)
		}
	}
	if _, err := event.FromMessage(message.NewMessage("", nil)); !errors.Is(err, event.ErrContract) {
		t.Errorf("a message without an id gave %v", err)
	}
}

func TestAttachKeepsTheDecodersResult(t *testing.T) {
	t.Parallel()
	broken := errors.New("no JSON")
	for name, tc := range map[string]struct {
		decode event.Decoder
		ok     bool
	}{
		"envelope":    {func(*message.Message) (*event.Envelope, error) { return &event.Envelope{ID: "x"}, nil }, true},
		"error":       {func(*message.Message) (*event.Envelope, error) { return nil, broken }, false},
		"no envelope": {func(*message.Message) (*event.Envelope, error) { return nil, nil }, false},
		"no id":       {func(*message.Message) (*event.Envelope, error) { return &event.Envelope{Type: "t"}, nil }, false},
		"bad id":      {func(*message.Message) (*event.Envelope, error) { return &event.Envelope{ID: "a\xff"}, nil }, false},
	} {
		msg := message.NewMessage("u-1", nil)
		event.Attach(msg, tc.decode)
		env, err := event.Of(msg)
		if tc.ok != (err == nil) || tc.ok != (env != nil) || !tc.ok && !errors.Is(err, event.ErrContract) {
			t.Errorf("%s: Of = %+v, %v", name, env, err)
		}
		if _, ok := event.FromContext(msg.Context()); ok != tc.ok {
			t.Errorf("%s: FromContext = %t", name, ok)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add("id", "source", "type", "key", "header", "value", []byte("data"), uint64(7))
	f.Add("\x00", "ä", "", "", "ce_time", "x", []byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, id, source, typ, key, header, value string, data []byte, version uint64) {
		env := &event.Envelope{
			ID: id, Source: source, Type: typ, PartitionKey: key, Data: data, Version: version, HasVersion: true,
			Metadata: map[string]string{header: value},
		}
		got, err := event.FromMessage(env.Message())
		if err != nil {
			return // refused, without a panic
		}
		if got.ID != id || got.Source != source || got.Type != typ || got.PartitionKey != key ||
			string(got.Data) != string(data) || got.Version != version {
			t.Errorf("%+v came back as %+v", env, got)
		}
		again, err := event.FromMessage(got.Message())
		if err != nil || again.ID != got.ID || again.PartitionKey != got.PartitionKey {
			t.Errorf("%+v came back as %+v, %v", got, again, err)
		}
	})
}

func TestTextThatNoColumnTakesIsAContractBreak(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		event.MetaID, event.MetaType, event.MetaSource, event.MetaSubject, event.MetaPartitionKey,
		event.MetaSchemaVersion, event.MetaCorrelationID, event.MetaCausationID,
	} {
		for _, value := range []string{"a\x00", "a\xff", "a\nb", "a\x7f"} {
			msg := message.NewMessage("u-1", nil)
			msg.Metadata[key] = value
			_, err := event.FromMessage(msg)
			if !errors.Is(err, event.ErrContract) || !errors.Is(err, event.ErrInvalid) {
				t.Errorf("%s = %q gave %v", key, value, err)
			}
		}
	}
	if _, err := event.FromMessage(message.NewMessage("u\xff", nil)); !errors.Is(err, event.ErrContract) {
		t.Errorf("a UUID of invalid UTF-8 gave %v", err)
	}
}

func TestFieldsOfAnEnvelopeOverrideItsMetadata(t *testing.T) {
	t.Parallel()
	full := &event.Envelope{
		ID: "e-1", Source: "/a", Type: "t", Subject: "s", Time: time.Unix(1, 0), ContentType: "text/plain", SchemaVersion: "1",
		PartitionKey: "k", CorrelationID: "c", CausationID: "d", HasVersion: true, Metadata: map[string]string{"mine": "kept"},
	}
	read, err := event.FromMessage(full.Message())
	if err != nil {
		t.Fatal(err)
	}
	bare := (&event.Envelope{ID: "e-2", Metadata: read.Metadata}).Message()
	want := message.Metadata{"mine": "kept", event.MetaID: "e-2", event.MetaSpecVersion: "1.0"}
	if !maps.Equal(bare.Metadata, want) {
		t.Errorf("metadata is %v, want %v", bare.Metadata, want)
	}
	if read.Metadata[event.MetaSource] != "/a" {
		t.Error("Message changed the metadata it was given")
	}
}

func TestPayloadsSurviveUnchanged(t *testing.T) {
	t.Parallel()
	for _, data := range [][]byte{nil, {}, {0}, []byte("\xff\x00\n"), make([]byte, 1<<20)} {
		env, err := event.FromMessage((&event.Envelope{ID: "e-1", Data: data}).Message())
		if err != nil || string(env.Data) != string(data) {
			t.Errorf("%d bytes came back as %d, %v", len(data), len(env.Data), err)
		}
	}
}

func TestTimeThatHasNoTextInUTCIsAContractBreak(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u-1", nil)
	msg.Metadata[event.MetaTime] = "9999-12-31T23:59:59-01:00"
	if _, err := event.FromMessage(msg); !errors.Is(err, event.ErrContract) {
		t.Errorf("the year 10000 gave %v", err)
	}
}

func TestEarlierDeathLeavesNoTraceInALetter(t *testing.T) {
	t.Parallel()
	first := &event.DeadLetter{
		Message: message.NewMessage("u-1", []byte("x")), Topic: "orders", Group: "a", Handler: "h", Key: "41",
		Class: event.ClassPermanent, Reason: "gone", Attempts: 3, FirstAttempt: time.Unix(1, 0), Time: time.Unix(2, 0),
	}
	once := first.Annotated()
	if once.Metadata[event.MetaDeadHandler] != "h" || once.Metadata[event.MetaPartitionKey] != "41" {
		t.Errorf("metadata is %v", once.Metadata)
	}
	if len(first.Message.Metadata) != 0 {
		t.Errorf("the original was changed: %v", first.Message.Metadata)
	}
	again := (&event.DeadLetter{Message: once, Topic: "orders", Group: "b", Attempts: 1, Time: time.Unix(3, 0)}).Annotated()
	for _, key := range []string{event.MetaDeadHandler, event.MetaDeadFirst, event.MetaDeadReason, event.MetaDeadClass} {
		if v, ok := again.Metadata[key]; ok {
			t.Errorf("%s is still %q", key, v)
		}
	}
	if again.Metadata[event.MetaDeadGroup] != "b" || again.Metadata[event.MetaPartitionKey] != "41" {
		t.Errorf("metadata is %v", again.Metadata)
	}
}

// Whatever arrives is read or refused as a contract break, and what was read says the same when it is sent on.
func FuzzFromMessage(f *testing.F) {
	f.Add("u-1", event.MetaTime, "2026-11-30T12:00:00Z", event.MetaSequence, "7", []byte("data"))
	f.Add("", event.MetaID, "\xff", event.MetaSpecVersion, "0.3", []byte(nil))
	f.Add("u-1", event.MetaTime, "9999-12-31T23:59:59-01:00", event.MetaSequence, "00000000000000000000000000007", []byte{0})
	f.Fuzz(func(t *testing.T, uuid, k1, v1, k2, v2 string, data []byte) {
		msg := message.NewMessage(uuid, data)
		msg.Metadata[k1], msg.Metadata[k2] = v1, v2
		env, err := event.FromMessage(msg)
		if err != nil {
			if !errors.Is(err, event.ErrContract) {
				t.Errorf("%v is no contract break", err)
			}
			return
		}
		again, err := event.FromMessage(env.Message())
		if err != nil {
			t.Fatalf("%+v cannot be sent on: %v", env, err)
		}
		a, b := *env, *again
		a.Metadata, b.Metadata, a.Data, b.Data = nil, nil, nil, nil
		if fmt.Sprintf("%+v", a) != fmt.Sprintf("%+v", b) || string(env.Data) != string(again.Data) {
			t.Errorf("%+v came back as %+v", env, again)
		}
	})
}

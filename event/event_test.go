package event_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/seambus/seambus/event"
)

type placed struct {
	OrderID int64  `json:"orderId"`
	N       uint64 `json:"n,omitempty"`
	Note    string `json:"note,omitempty"`
	ID      string `json:"-"`
	Key     string `json:"-"`
}

func (placed) EventType() string          { return "order.placed" }
func (e placed) AggregateVersion() uint64 { return e.N }
func (e placed) EventID() string          { return e.ID }
func (placed) SchemaVersion() string      { return "2" }

func (e placed) PartitionKey() string {
	if e.Key != "" {
		return e.Key
	}
	return strconv.FormatInt(e.OrderID, 10)
}

func (e placed) Validate() error {
	if e.OrderID < 0 {
		return fmt.Errorf("orderId is %d, want zero or more", e.OrderID)
	}
	return nil
}

type shipped struct{}

func (shipped) EventType() string    { return "order.shipped" }
func (shipped) PartitionKey() string { return "" }

type sameName struct{}

func (sameName) EventType() string    { return "order.placed" }
func (sameName) PartitionKey() string { return "" }

type nameless struct{}

func (nameless) EventType() string    { return "" }
func (nameless) PartitionKey() string { return "" }

func TestTryTopicReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	_, err := event.TryTopic("Orders!", placed{}, placed{}, sameName{}, nameless{}, nil, &shipped{})
	if !errors.Is(err, event.ErrName) {
		t.Errorf("error is %v, want ErrName", err)
	}
	for _, want := range []string{
		`"Orders!"`, "placed is taken", "event_test.sameName is taken", "nameless has 0 bytes", "type 5 is nil", "shipped is a pointer",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if _, err := event.TryTopic("orders"); err == nil || !strings.Contains(err.Error(), "no event types") {
		t.Errorf("a topic without types: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("NewTopic did not panic")
		}
	}()
	event.NewTopic("Orders!")
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"orders": true, "a": true, "0-9": true, strings.Repeat("a", 30): true,
		"": false, "-a": false, "Orders": false, "a_b": false, "a.b": false, "ä": false, "a\n": false, strings.Repeat("a", 31): false,
	} {
		if err := event.CheckName("topic", name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func TestEncodeRefusesWhatCannotTravel(t *testing.T) {
	t.Parallel()
	topic := event.NewTopic("orders", placed{}, shipped{})
	for name, tc := range map[string]struct {
		event event.Event
		is    error
		says  string
	}{
		"nil":             {nil, event.ErrUnknownType, "nil event"},
		"nil pointer":     {(*placed)(nil), event.ErrUnknownType, "nil"},
		"foreign type":    {nameless{}, event.ErrUnknownType, "nameless"},
		"long id":         {placed{ID: strings.Repeat("x", 256)}, event.ErrInvalid, "id has 256 bytes"},
		"control in id":   {placed{ID: "a\x00"}, event.ErrInvalid, "control"},
		"bad UTF-8 in id": {placed{ID: "a\xff"}, event.ErrInvalid, "UTF-8"},
		"long key":        {placed{Key: strings.Repeat("k", 256)}, event.ErrInvalid, "partition key has 256 bytes"},
		"newline in key":  {placed{Key: "a\nb"}, event.ErrInvalid, "partition key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := topic.Encode(t.Context(), tc.event)
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Encode = %v, want %v that says %q", err, tc.is, tc.says)
			}
		})
	}
	if _, err := topic.Encode(t.Context(), &placed{OrderID: 1}); err != nil {
		t.Errorf("a pointer to a listed type: %v", err)
	}
}

func TestEncodeGivesNewIDsAndKeepsSuppliedOnes(t *testing.T) {
	t.Parallel()
	topic := event.NewTopic("orders", placed{})
	env, err := topic.Encode(t.Context(), placed{})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := uuid.Parse(env.ID); err != nil || id.Version() != 7 {
		t.Errorf("id %q is no UUIDv7", env.ID)
	}
	if env, err = topic.Encode(t.Context(), placed{ID: "request 4711/ä"}); err != nil || env.ID != "request 4711/ä" {
		t.Errorf("id %q, %v", env.ID, err)
	}
}

func TestCausationAndCorrelationPassFromTheHandledEvent(t *testing.T) {
	t.Parallel()
	topic := event.NewTopic("orders", placed{})
	first, err := topic.Encode(t.Context(), placed{ID: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if first.CorrelationID != "first" || first.CausationID != "" {
		t.Errorf("the first event: correlation %q, causation %q", first.CorrelationID, first.CausationID)
	}
	second := encodeWhileHandling(t, topic, first, "second")
	third := encodeWhileHandling(t, topic, second, "third")
	if third.CorrelationID != "first" || third.CausationID != "second" {
		t.Errorf("the third event: correlation %q, causation %q", third.CorrelationID, third.CausationID)
	}
}

func encodeWhileHandling(t *testing.T, topic *event.Topic, handled *event.Envelope, id string) *event.Envelope {
	t.Helper()
	msg := handled.Message()
	event.Attach(msg, nil)
	env, err := topic.Encode(msg.Context(), placed{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestDecodeErrorsAreContractBreaks(t *testing.T) {
	t.Parallel()
	topic := event.NewTopic("orders", placed{})
	for name, tc := range map[string]struct {
		env  event.Envelope
		says string
	}{
		"unknown type":         {event.Envelope{Type: "order.lost"}, `"order.lost"`},
		"no type":              {event.Envelope{}, "unknown event type"},
		"unknown content type": {event.Envelope{Type: "order.placed", ContentType: "application/xml"}, "application/xml"},
		"bad content type":     {event.Envelope{Type: "order.placed", ContentType: ";"}, "content-type"},
		"garbage":              {event.Envelope{Type: "order.placed", Data: []byte("\x00")}, "invalid character"},
		"empty":                {event.Envelope{Type: "order.placed"}, "empty payload"},
		"fails validation":     {event.Envelope{Type: "order.placed", Data: []byte(`{"orderId":-1}`)}, "orderId is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := topic.Decode(&tc.env)
			if !errors.Is(err, event.ErrContract) || !errors.Is(err, event.ErrPermanent) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Decode = %v, want a contract break that says %q", err, tc.says)
			}
		})
	}
	e, err := topic.Decode(&event.Envelope{
		Type: "order.placed", ContentType: "application/json; charset=utf-8", Data: []byte(`{"orderId":7,"new":true}`),
	})
	if err != nil || e != (placed{OrderID: 7}) {
		t.Errorf("Decode = %+v, %v; want unknown fields and parameters ignored", e, err)
	}
}

type upper struct{ event.JSON }

func (upper) ContentType() string { return "application/upper" }

func (upper) Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return []byte(strings.ToUpper(string(b))), err
}

func TestWithCodecWritesTheNewAndReadsBoth(t *testing.T) {
	t.Parallel()
	old := event.NewTopic("orders", placed{})
	changed := old.WithCodec(upper{})
	was, err := old.Encode(t.Context(), placed{OrderID: 1})
	if err != nil {
		t.Fatal(err)
	}
	is, err := changed.Encode(t.Context(), placed{OrderID: 1})
	if err != nil || is.ContentType != "application/upper" || was.ContentType != "application/json" {
		t.Fatalf("content types %q and %q, %v", was.ContentType, is.ContentType, err)
	}
	for _, env := range []*event.Envelope{was, is} {
		if e, err := changed.Decode(env); err != nil || e.(placed).OrderID != 1 {
			t.Errorf("Decode of %s = %+v, %v", env.ContentType, e, err)
		}
	}
}

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
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
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

func TestVerdictsKeepTheirErrorAndSurviveWrapping(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, tc := range map[string]struct {
		err   error
		class string
		delay time.Duration
	}{
		"plain":             {cause, event.ClassTransient, 0},
		"permanent":         {event.Permanent(cause), event.ClassPermanent, 0},
		"contract":          {event.Contract(cause), event.ClassContract, 0},
		"retry after":       {event.RetryAfter(cause, time.Minute), event.ClassTransient, time.Minute},
		"delay in verdict":  {event.Permanent(fmt.Errorf("w: %w", event.RetryAfter(cause, time.Minute))), event.ClassPermanent, time.Minute},
		"verdict in delay":  {event.RetryAfter(fmt.Errorf("w: %w", event.Permanent(cause)), time.Minute), event.ClassPermanent, time.Minute},
		"negative is zero":  {event.RetryAfter(cause, -time.Minute), event.ClassTransient, 0},
		"timeout":           {fmt.Errorf("%w: %w", cause, context.DeadlineExceeded), event.ClassTimeout, 0},
		"contract stays so": {event.Permanent(event.Contract(cause)), event.ClassContract, 0},
	} {
		wrapped := fmt.Errorf("outer: %w", tc.err)
		d, _ := event.Delay(wrapped)
		if !errors.Is(wrapped, cause) || event.Class(wrapped) != tc.class || d != tc.delay {
			t.Errorf("%s: class %s, delay %v", name, event.Class(wrapped), d)
		}
		if tc.err.Error() == "" {
			t.Errorf("%s: no text", name)
		}
	}
	if event.Permanent(nil) != nil || event.Contract(nil) != nil || event.RetryAfter(nil, 1) != nil {
		t.Error("a verdict on nil is not nil")
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
		if got.ID != id || got.Source != source && header != event.MetaSource || string(got.Data) != string(data) || got.Version != version {
			t.Errorf("%+v came back as %+v", env, got)
		}
		again, err := event.FromMessage(got.Message())
		if err != nil || again.ID != got.ID || again.PartitionKey != got.PartitionKey {
			t.Errorf("%+v came back as %+v, %v", got, again, err)
		}
	})
}

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

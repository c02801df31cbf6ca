package event_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/seambus/seambus/event"
)

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
		"null":                 {event.Envelope{Type: "order.placed", Data: []byte(" null\n")}, "payload is null"},
		"more than one value":  {event.Envelope{Type: "order.placed", Data: []byte("{}{}")}, "after top-level value"},
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

type pointered struct{ shipped }

func (*pointered) EventID() string { return "lost" }

type unprintable struct{ shipped }

func (unprintable) EventType() string { return "order\x00" }

func TestTryTopicRefusesWhatWouldFailLaterOrBeIgnored(t *testing.T) {
	t.Parallel()
	for want, example := range map[string]event.Event{
		"EventID of event_test.pointered has a pointer receiver": pointered{},
		"has control characters":                                 unprintable{},
	} {
		if _, err := event.TryTopic("orders", example); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TryTopic(%T) = %v, want an error that says %q", example, err, want)
		}
	}
}

//nolint:recvcheck // the mixture is what the test is about
type strict struct {
	N int `json:"n"`
}

func (strict) EventType() string    { return "strict" }
func (strict) PartitionKey() string { return "" }

func (e *strict) Validate() error {
	if e.N == 0 {
		return errors.New("n is 0, want more")
	}
	return nil
}

func TestDecodeValidatesThroughAPointerReceiverToo(t *testing.T) {
	t.Parallel()
	topic := event.NewTopic("orders", strict{})
	_, err := topic.Decode(&event.Envelope{Type: "strict", Data: []byte(`{"n":0}`)})
	if !errors.Is(err, event.ErrContract) || !strings.Contains(err.Error(), "n is 0") {
		t.Errorf("Decode = %v, want a contract break", err)
	}
	if e, err := topic.Decode(&event.Envelope{Type: "strict", Data: []byte(`{"n":1}`)}); err != nil || e != (strict{N: 1}) {
		t.Errorf("Decode = %+v, %v", e, err)
	}
}

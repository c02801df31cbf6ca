package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

func TestLimitsNameEverythingThatIsTooMuch(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("m-1", make([]byte, 90))
	msg.Metadata[event.MetaPartitionKey] = "0123456789"
	if err := (transport.Limits{}).Check(msg); err != nil {
		t.Errorf("no limits: %v", err)
	}
	exact := transport.Limits{MessageBytes: 90 + len(event.MetaPartitionKey) + 10, Headers: 1, KeyBytes: 10}
	if err := exact.Check(msg); err != nil {
		t.Errorf("exactly the limits: %v", err)
	}
	err := transport.Limits{MessageBytes: 1, Headers: 1, KeyBytes: 9}.Check(msg)
	if !errors.Is(err, transport.ErrTooLarge) || !transport.Permanent(err) {
		t.Errorf("%v is not ErrTooLarge", err)
	}
	for _, want := range []string{`"m-1"`, "message bytes is 115, the limit is 1", "partition key bytes is 10, the limit is 9"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestLimitsCountAMessageAsItsBrokerDoes(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("m-1", make([]byte, 90))
	msg.Metadata["name"] = "value"
	if got := (transport.Limits{}).Bytes(msg); got != 99 {
		t.Errorf("payload, name and value are %d bytes, want 99", got)
	}
	doubled := transport.Limits{MessageBytes: 100, Size: func(m *message.Message) int { return 2 * len(m.Payload) }}
	if le, ok := errors.AsType[*transport.LimitError](doubled.Check(msg)); !ok || le.Got != 180 || doubled.Bytes(msg) != 180 {
		t.Errorf("got %v, want what Size says", le)
	}
	counted := false
	unlimited := transport.Limits{Size: func(*message.Message) int { counted = true; return 0 }}
	if err := unlimited.Check(msg); err != nil || counted {
		t.Errorf("%v; counted without a limit: %t", err, counted)
	}
	if out, err := json.Marshal(doubled); err != nil || !strings.Contains(string(out), `"MessageBytes":100`) {
		t.Errorf("limits as JSON: %s, %v", out, err)
	}
}

func TestDeliveryTravelsInTheContext(t *testing.T) {
	t.Parallel()
	if _, ok := transport.FromContext(t.Context()); ok {
		t.Error("a delivery out of nowhere")
	}
	d := &transport.Delivery{Topic: "orders"}
	got, ok := transport.FromContext(transport.WithDelivery(t.Context(), d))
	if !ok || got != d {
		t.Errorf("FromContext = %v, %t", got, ok)
	}
	got.SetDelay(time.Minute)
	if d.Delay() != time.Minute {
		t.Errorf("delay %v", d.Delay())
	}
	if got.SetDelay(-time.Minute); d.Delay() != 0 {
		t.Errorf("a negative delay is %v", d.Delay())
	}
}

func TestSettledIsFoundInTheContext(t *testing.T) {
	t.Parallel()
	if transport.Settled(t.Context()) != nil {
		t.Error("a function out of nowhere")
	}
	n := 0
	transport.Settled(transport.OnSettled(t.Context(), func() { n++ }))()
	if n != 1 {
		t.Errorf("called %d times", n)
	}
}

func TestFailedNamesMessagesByTheirPlace(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	if f := transport.Failed(nil, 3); len(f) != 0 {
		t.Errorf("no error: %v", f)
	}
	if f := transport.Failed(boom, 2); len(f) != 2 || !errors.Is(f[0], boom) || !errors.Is(f[1], boom) {
		t.Errorf("an error that says nothing may have sent nothing: %v", f)
	}
	pe := &transport.PublishError{Topic: "orders", Failures: []transport.Failure{{Index: 1, ID: "b", Err: boom}}}
	f := transport.Failed(fmt.Errorf("wrapped: %w", pe), 3)
	if len(f) != 1 || !errors.Is(f[1], boom) {
		t.Errorf("one failure: %v", f)
	}
	if !errors.Is(pe, boom) || !strings.Contains(pe.Error(), `"orders"`) || !strings.Contains(pe.Error(), "b: boom") {
		t.Errorf("text %q", pe)
	}
}

// Whatever a publisher leaves unsaid counts as not sent: sending twice can be mended, taking a lost message for sent cannot.
func TestFailedTakesNothingUnsaidForSent(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	one := func(i int, err error) *transport.PublishError {
		return &transport.PublishError{Topic: "orders", Failures: []transport.Failure{{Index: i, ID: "x", Err: err}}}
	}
	for name, err := range map[string]error{
		"names nobody":       &transport.PublishError{Topic: "orders"},
		"index too high":     one(2, boom),
		"index negative":     one(-1, boom),
		"joined with others": errors.Join(one(0, boom), errors.New("connection reset")),
		"two joined":         errors.Join(one(0, boom), one(1, boom)),
	} {
		if f := transport.Failed(err, 2); len(f) != 2 || f[0] == nil || f[1] == nil {
			t.Errorf("%s: %v, want both messages", name, f)
		}
	}
	if f := transport.Failed(one(1, nil), 2); len(f) != 1 || f[1] == nil {
		t.Errorf("a failure without an error: %v", f)
	}
}

func TestLongPublishErrorsAreCut(t *testing.T) {
	t.Parallel()
	pe := &transport.PublishError{Topic: "orders"}
	for i := range 1000 {
		pe.Failures = append(pe.Failures, transport.Failure{Index: i, ID: fmt.Sprint(i), Err: context.Canceled})
	}
	if len(pe.Error()) > 300 || !strings.Contains(pe.Error(), "1000 failed") {
		t.Errorf("text %q", pe)
	}
}

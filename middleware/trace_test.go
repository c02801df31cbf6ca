package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
)

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceContinuesTheMessagesTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	msg := newMessage("e-1")
	msg.Metadata[event.MetaTraceParent] = traceParent
	deliver(t.Context(), msg, 1)
	outer := msg.Context()
	h := chain(func(m *message.Message) ([]*message.Message, error) {
		if id := trace.SpanContextFromContext(m.Context()).TraceID().String(); id != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("the handler is in trace %s", id)
		}
		return nil, event.Permanent(errors.New("no\x00such order"))
	}, middleware.Trace(provider))
	if _, err := h(msg); err == nil {
		t.Error("the error was swallowed")
	}
	if msg.Context() != outer {
		t.Error("the context was not restored")
	}
	ended := spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans, want 1", len(ended))
	}
	s := ended[0]
	attrs := make(map[string]string)
	for _, a := range s.Attributes() {
		attrs[string(a.Key)] = a.Value.Emit()
	}
	if s.Name() != "process orders" || s.SpanKind() != trace.SpanKindConsumer || s.Status().Code != codes.Error ||
		s.Status().Description != "no such order" || s.Parent().SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("span %s %v %v parent %s", s.Name(), s.SpanKind(), s.Status(), s.Parent().SpanID())
	}
	if attrs["messaging.consumer.group.name"] != "fulfillment" || attrs["messaging.message.id"] != "e-1" ||
		attrs["error.type"] != event.ClassPermanent || attrs["cloudevents.event_type"] != "order.placed" {
		t.Errorf("attributes %v", attrs)
	}
}

func TestTraceWithoutTraceContextBeginsOne(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"", "garbage"} {
		msg := newMessage("e-1")
		if header != "" {
			msg.Metadata[event.MetaTraceParent] = header
		}
		if _, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, nil },
			middleware.Trace(noop.NewTracerProvider()))(msg); err != nil {
			t.Error(err)
		}
	}
}

func ExampleTrace() {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	route(func(*message.Message) ([]*message.Message, error) { return nil, nil }, middleware.Trace(provider))
	_ = provider.Shutdown(context.Background())
	for _, s := range spans.Ended() {
		fmt.Println(s.Name())
	}
	// Output: process orders
}

// sampler remembers what it was told when it had to decide.
type sampler struct {
	sdktrace.Sampler
	seen map[string]string
}

func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	for _, a := range p.Attributes {
		s.seen[string(a.Key)] = a.Value.Emit()
	}
	return s.Sampler.ShouldSample(p)
}

func TestTraceTellsTheSamplerAndSurvivesAPanic(t *testing.T) {
	t.Parallel()
	spans, s := tracetest.NewSpanRecorder(), sampler{sdktrace.AlwaysSample(), make(map[string]string)}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(s))
	msg := newMessage("e-1")
	deliver(t.Context(), msg, 1).Partition = 7
	h := chain(func(*message.Message) ([]*message.Message, error) { panic("boom") }, middleware.Recover(), middleware.Trace(provider))
	if _, err := h(msg); err == nil {
		t.Error("the panic was swallowed")
	}
	if s.seen["messaging.destination.name"] != "orders" || s.seen["messaging.destination.partition.id"] != "7" ||
		s.seen["messaging.operation.name"] != "process" {
		t.Errorf("the sampler saw %v", s.seen)
	}
	if ended := spans.Ended(); len(ended) != 1 || ended[0].Status().Code != codes.Error {
		t.Errorf("spans %v, want one that failed", ended)
	}
}

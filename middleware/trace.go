package middleware

import (
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/internal/tracing"
	"github.com/seambus/seambus/transport"
)

// Trace starts a consumer span for each delivery, as the child of the span that the message's W3C trace context names, and
// gives it to the handler in the message's context, which is restored afterwards. Attributes follow OpenTelemetry's
// messaging conventions and are there when a sampler decides; payloads never reach the span. A span that a panic passes says
// so. Nil means a provider that does nothing, and with that one it costs little.
func Trace(provider trace.TracerProvider) message.HandlerMiddleware {
	if provider == nil {
		provider = noop.NewTracerProvider()
	}
	_, silent := provider.(noop.TracerProvider)
	tracer := provider.Tracer(tracing.Scope)
	names := new(spanNames)
	kind := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)} // shared, only read
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			outer, options := msg.Context(), kind
			if !silent {
				options = append(options[:1:1], trace.WithAttributes(spanAttributes(msg)...))
			}
			ctx, span := tracer.Start(tracing.Extract(outer, msg.Metadata), names.of(topicOf(outer)), options...)
			err := errPanicked
			defer func() {
				if span.IsRecording() {
					describe(span, Attempt(msg.Context()), err)
				}
				span.End()
				msg.SetContext(outer)
			}()
			msg.SetContext(ctx)
			var out []*message.Message
			out, err = next(msg)
			return out, err
		}
	}
}

// spanNames remembers the last span name it made: around one subscription there is only one.
type spanNames struct{ last atomic.Pointer[spanName] }

type spanName struct{ topic, name string }

func (s *spanNames) of(topic string) string {
	if last := s.last.Load(); last != nil && last.topic == topic {
		return last.name
	}
	name := "process " + topic
	s.last.Store(&spanName{topic, name})
	return name
}

var errPanicked = errors.New("panic")

// describe says how the delivery ended.
func describe(span trace.Span, attempt int, err error) {
	if attempt > 0 {
		span.SetAttributes(attribute.Int("attempt", attempt))
	}
	switch {
	case err == nil:
	case errors.Is(err, errPanicked):
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(attribute.String("error.type", event.ClassPanic))
	default:
		span.SetStatus(codes.Error, errtext.Clean(err))
		span.SetAttributes(attribute.String("error.type", event.Class(err)))
	}
}

func spanAttributes(msg *message.Message) []attribute.KeyValue {
	ctx := msg.Context()
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "seambus"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.destination.name", topicOf(ctx)),
		attribute.String("messaging.consumer.group.name", groupOf(ctx)),
		attribute.String("messaging.message.id", msg.UUID),
	}
	if d, ok := transport.FromContext(ctx); ok && d.Partition >= 0 {
		attrs = append(attrs, attribute.String("messaging.destination.partition.id", strconv.Itoa(int(d.Partition))))
	}
	if env, err := event.Of(msg); err == nil {
		attrs = append(attrs, attribute.String("cloudevents.event_type", env.Type))
	}
	return attrs
}

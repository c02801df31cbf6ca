package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/internal/tracing"
)

// Trace starts a consumer span for each delivery, as the child of the span that the message's W3C trace context names, and
// gives it to the handler in the message's context, which is restored afterwards. Attributes follow OpenTelemetry's
// messaging conventions; payloads never reach the span. It is safe with a no-op provider, at little cost.
func Trace(provider trace.TracerProvider) message.HandlerMiddleware {
	tracer := provider.Tracer(tracing.Scope)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			outer := msg.Context()
			ctx, span := tracer.Start(tracing.Extract(outer, msg.Metadata), "process "+topicOf(outer),
				trace.WithSpanKind(trace.SpanKindConsumer))
			defer func() {
				span.End()
				msg.SetContext(outer)
			}()
			msg.SetContext(ctx)
			if span.IsRecording() {
				span.SetAttributes(spanAttributes(msg)...)
			}
			out, err := next(msg)
			if err != nil && span.IsRecording() {
				span.SetStatus(codes.Error, errtext.Clean(err))
				span.SetAttributes(attribute.String("error.type", event.Class(err)))
			}
			return out, err
		}
	}
}

func spanAttributes(msg *message.Message) []attribute.KeyValue {
	ctx := msg.Context()
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "seambus"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", topicOf(ctx)),
		attribute.String("messaging.consumer.group.name", groupOf(ctx)),
		attribute.String("messaging.message.id", msg.UUID),
	}
	if env, err := event.Of(msg); err == nil {
		attrs = append(attrs, attribute.String("cloudevents.event_type", env.Type))
	}
	return attrs
}

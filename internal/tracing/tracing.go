// Package tracing carries the W3C trace context through message metadata.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/seambus/seambus/event"
)

// Scope is the instrumentation scope of every span this module starts.
const Scope = "github.com/seambus/seambus"

// Inject writes ctx's trace context into md. Without a valid span it writes nothing.
func Inject(ctx context.Context, md map[string]string) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(md))
	}
}

// Extract returns ctx with the remote span that md names, or ctx itself if md names none.
func Extract(ctx context.Context, md map[string]string) context.Context {
	if md[event.MetaTraceParent] == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(md))
}

// ID returns the id of ctx's trace, or nothing.
func ID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

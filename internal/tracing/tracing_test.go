package tracing_test

import (
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/seambus/seambus/internal/tracing"
)

func TestTraceContextTravelsInMetadata(t *testing.T) {
	t.Parallel()
	md := make(map[string]string)
	if tracing.Inject(t.Context(), md); len(md) != 0 {
		t.Errorf("without a span: %v", md)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := tracing.Extract(t.Context(), map[string]string{"traceparent": parent})
	if !trace.SpanContextFromContext(ctx).IsRemote() {
		t.Error("the remote span was not found")
	}
	if tracing.Inject(ctx, md); md["traceparent"] != parent {
		t.Errorf("injected %v", md)
	}
	if got := tracing.Extract(t.Context(), map[string]string{"traceparent": "garbage"}); trace.SpanContextFromContext(got).IsValid() {
		t.Error("garbage made a span")
	}
}

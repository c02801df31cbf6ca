package middleware_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// BenchmarkMiddleware is what each link costs alone, and all of them together, around a handler that does nothing.
func BenchmarkMiddleware(b *testing.B) {
	dead := new(letters)
	links := []struct {
		name string
		link message.HandlerMiddleware
	}{
		{"recover", middleware.Recover()},
		{"trace", middleware.Trace(noop.NewTracerProvider())},
		{"deadletter", middleware.DeadLetter(dead)},
		{"retry", mustRetry(middleware.RetryPolicy{})},
		{"attempts", middleware.Attempts(middleware.NewMemoryAttempts())},
		{"dedup", middleware.Dedup(middleware.NewMemoryDedup(time.Minute, 500))},
		{"timeout", middleware.Timeout(time.Minute)},
	}
	nothing := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	all := make([]message.HandlerMiddleware, len(links))
	for i, l := range links {
		all[i] = l.link
		b.Run(l.name, func(b *testing.B) { run(b, chain(nothing, l.link)) })
	}
	b.Run("all", func(b *testing.B) { run(b, chain(nothing, all...)) })
}

func run(b *testing.B, h message.HandlerFunc) {
	b.Helper()
	msgs := make([]*message.Message, 1000) // used over and over: each has left every store by then
	deliveries := make([]*transport.Delivery, len(msgs))
	for i := range msgs {
		msgs[i] = newMessage(strconv.Itoa(i))
		deliveries[i] = deliver(b.Context(), msgs[i], 1)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n := i % len(msgs)
		msgs[n].SetContext(transport.WithDelivery(b.Context(), deliveries[n]))
		if _, err := h(msgs[n]); err != nil {
			b.Fatal(err)
		}
	}
}

package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/middleware"
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
		{"dedup", middleware.Dedup(middleware.NewMemoryDedup(time.Minute, 1000))},
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
	msgs := make([]*message.Message, b.N)
	for i := range msgs {
		msgs[i] = newMessage(string(rune('a'+i%26)) + time.Duration(i).String())
		deliver(b.Context(), msgs[i], 1)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, m := range msgs {
		if _, err := h(m); err != nil {
			b.Fatal(err)
		}
	}
}

package bus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport/memory"
)

// benchEvent encodes to about 500 bytes.
type benchEvent struct {
	Key     string `json:"key"`
	Seq     int    `json:"seq"`
	Padding string `json:"padding"`
}

func (benchEvent) EventType() string      { return "bench.event" }
func (e benchEvent) PartitionKey() string { return e.Key }

const (
	benchKeys   = 1000
	benchWindow = 1024 // messages in flight at most
)

func benchMessages(b *testing.B, topic *event.Topic) []*message.Message {
	b.Helper()
	msgs := make([]*message.Message, b.N)
	padding := strings.Repeat("x", 450)
	for i := range msgs {
		env, err := topic.Encode(context.Background(), benchEvent{Key: fmt.Sprint(i % benchKeys), Seq: i / benchKeys, Padding: padding})
		if err != nil {
			b.Fatal(err)
		}
		msgs[i] = env.Message()
	}
	return msgs
}

// window bounds what is in flight and knows when all is done.
type window struct {
	slots chan struct{}
	done  sync.WaitGroup
}

func newWindow(n int) *window {
	w := &window{slots: make(chan struct{}, benchWindow)}
	w.done.Add(n)
	return w
}

func (w *window) handled() { <-w.slots; w.done.Done() }

// feed publishes msgs one at a time and waits until all are handled, reporting rate and CPU.
func (w *window) feed(b *testing.B, pub message.Publisher, topic string, msgs []*message.Message) {
	b.Helper()
	before := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for _, m := range msgs {
		w.slots <- struct{}{}
		if err := pub.Publish(topic, m); err != nil {
			b.Fatal(err)
		}
	}
	w.done.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/event")
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkChain compares the bus, whole chain on, with raw Watermill carrying equivalent middleware: recoverer, a span
// with the extracted trace context, poison queue, retry, deduplicator, timeout, JSON decoding. The bus keeps order per key;
// Watermill does not.
func BenchmarkChain(b *testing.B) {
	topic := event.NewTopic("bench", benchEvent{})
	b.Run("seambus", func(b *testing.B) {
		tr := memory.New()
		defer tr.Close()
		sb, err := bus.New(tr)
		if err != nil {
			b.Fatal(err)
		}
		w, last := newWindow(b.N), make([]int, benchKeys)
		bus.Handle(sb, topic, "bench", func(_ context.Context, e benchEvent) error {
			if key, err := strconv.Atoi(e.Key); err != nil || e.Seq < last[key] {
				b.Errorf("key %s: %d out of order: %v", e.Key, e.Seq, err)
			} else {
				last[key] = e.Seq
			}
			w.handled()
			return nil
		})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- sb.Run(ctx) }()
		<-sb.Ready()
		w.feed(b, tr.Publisher(), topic.Name(), benchMessages(b, topic))
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
	b.Run("watermill", func(b *testing.B) {
		ps := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1024}, watermill.NopLogger{})
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			b.Fatal(err)
		}
		poison, err := wmiddleware.PoisonQueue(ps, "poison")
		if err != nil {
			b.Fatal(err)
		}
		dedup := &wmiddleware.Deduplicator{
			KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil }, Timeout: time.Minute,
		}
		router.AddMiddleware(wmiddleware.Recoverer, span, poison,
			wmiddleware.Retry{MaxRetries: 9, InitialInterval: 500 * time.Millisecond, Multiplier: 2}.Middleware,
			dedup.Middleware, wmiddleware.Timeout(30*time.Second))
		w := newWindow(b.N)
		router.AddNoPublisherHandler("bench", topic.Name(), ps, func(m *message.Message) error {
			defer w.handled()
			var e benchEvent
			return json.Unmarshal(m.Payload, &e)
		})
		go router.Run(b.Context())
		<-router.Running()
		w.feed(b, ps, topic.Name(), benchMessages(b, topic))
		if err := router.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

func span(next message.HandlerFunc) message.HandlerFunc {
	tracer := noop.NewTracerProvider().Tracer("bench")
	return func(m *message.Message) ([]*message.Message, error) {
		ctx := propagation.TraceContext{}.Extract(m.Context(), propagation.MapCarrier(m.Metadata))
		ctx, s := tracer.Start(ctx, "process", trace.WithSpanKind(trace.SpanKindConsumer))
		defer s.End()
		m.SetContext(ctx)
		return next(m)
	}
}

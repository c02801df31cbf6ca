package memory_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

const (
	benchKeys   = 1000
	benchWindow = 1024 // in flight at most
)

// BenchmarkRouter compares this transport with Watermill's GoChannel below the same bare router: 500-byte payloads over 1,000
// keys, one publisher, a handler that does nothing. This one keeps order per key and shares among the members of a group, so
// that several router handlers may divide its messages; GoChannel would give every one of them each message. One router handler
// is a serial pipeline that keeps little more than one processor busy.
func BenchmarkRouter(b *testing.B) {
	for _, handlers := range []int{1, 4} {
		b.Run(fmt.Sprintf("memory/handlers=%d", handlers), func(b *testing.B) { benchMemory(b, handlers) })
	}
	b.Run("gochannel", func(b *testing.B) {
		g := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1024}, watermill.NopLogger{})
		benchRouter(b, g, g, 1, func(*message.Message) {})
	})
}

func benchMemory(b *testing.B, handlers int) {
	b.Helper()
	t := memory.New()
	defer t.Close()
	sub, err := t.Subscriber(transport.SubscriberConfig{Group: "bench", Concurrency: transport.DefaultConcurrency / handlers})
	if err != nil {
		b.Fatal(err)
	}
	last := make([]int, benchKeys)
	benchRouter(b, t.Publisher(), sub, handlers, func(m *message.Message) {
		key, _ := strconv.Atoi(m.Metadata[event.MetaPartitionKey])
		n, _ := strconv.Atoi(m.UUID)
		if n < last[key] {
			b.Errorf("key %d: %d after %d", key, n, last[key])
		}
		last[key] = n
	})
}

func benchRouter(b *testing.B, pub message.Publisher, sub message.Subscriber, handlers int, check func(*message.Message)) {
	b.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	window := make(chan struct{}, benchWindow)
	var handled sync.WaitGroup
	handled.Add(b.N)
	for i := range handlers {
		router.AddNoPublisherHandler(fmt.Sprint("bench-", i), "bench", sub, func(m *message.Message) error {
			check(m)
			<-window
			handled.Done()
			return nil
		})
	}
	go router.Run(context.Background())
	<-router.Running()
	msgs := make([]*message.Message, b.N)
	for i := range msgs {
		msgs[i] = message.NewMessage(strconv.Itoa(i), make([]byte, 500))
		msgs[i].Metadata[event.MetaPartitionKey] = fmt.Sprint(i % benchKeys)
	}
	before := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for _, m := range msgs {
		window <- struct{}{}
		if err := pub.Publish("bench", m); err != nil {
			b.Fatal(err)
		}
	}
	handled.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/event")
	if err := router.Close(); err != nil {
		b.Fatal(err)
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

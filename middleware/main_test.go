package middleware_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// newMessage is an envelope on its way.
func newMessage(id string) *message.Message {
	env := &event.Envelope{ID: id, Source: "orders", Type: "order.placed", PartitionKey: "41", Data: []byte(`{}`)}
	return env.Message()
}

// deliver gives msg a delivery, as a transport of this project does.
func deliver(ctx context.Context, msg *message.Message, n int) *transport.Delivery {
	d := &transport.Delivery{Topic: "orders", Group: "fulfillment", Key: "41", Partition: -1, Deliveries: n}
	msg.SetContext(transport.WithDelivery(ctx, d))
	return d
}

// chain puts links around h, first outermost.
func chain(h message.HandlerFunc, links ...message.HandlerMiddleware) message.HandlerFunc {
	for i := len(links) - 1; i >= 0; i-- {
		h = links[i](h)
	}
	return h
}

// failing fails its first n calls.
func failing(n int, calls *int) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		*calls++
		if *calls <= n {
			return nil, errBoom
		}
		return nil, nil
	}
}

func mustRetry(p middleware.RetryPolicy) message.HandlerMiddleware {
	m, err := middleware.Retry(p)
	if err != nil {
		panic(err)
	}
	return m
}

// letters collects dead letters.
type letters struct {
	mu  sync.Mutex
	all []*event.DeadLetter
	err error
}

func (l *letters) Put(ctx context.Context, d *event.DeadLetter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.err, ctx.Err()); err != nil {
		return err
	}
	l.all = append(l.all, d)
	return nil
}

// route runs one message through a plain Watermill router with the links around h, and returns once the router has settled
// a delivery with an ack.
func route(h message.HandlerFunc, links ...message.HandlerMiddleware) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	src := &source{out: make(chan *message.Message)}
	router.AddMiddleware(links...)
	router.AddNoPublisherHandler("print", "orders", src, func(m *message.Message) error {
		_, err := h(m)
		return err
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	for {
		msg := newMessage("e-1")
		src.out <- msg
		select {
		case <-msg.Acked():
			_ = src.Close() // first: a router that is closed while its context ends may forget to
			_ = router.Close()
			return
		case <-msg.Nacked(): // deliver it again
		}
	}
}

// source is the smallest subscriber.
type source struct {
	out  chan *message.Message
	once sync.Once
}

func (s *source) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.out, nil
}

func (s *source) Close() error {
	s.once.Do(func() { close(s.out) })
	return nil
}

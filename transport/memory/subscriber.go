package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/transport"
)

// Subscriber is one member of a group.
type Subscriber struct {
	transport *Transport
	cfg       transport.SubscriberConfig

	mu     sync.Mutex
	subs   []*subscription
	closed bool
}

var _ transport.Subscriber = (*Subscriber)(nil)

// Subscribe starts taking in. The channel is closed by Close, by the end of ctx, and by the transport's Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	tp, err := s.transport.topic(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		err = transport.ErrClosed
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("memory: subscribe %q as %q: %w", topic, s.cfg.Group, err)
	}
	sub := newSubscription(ctx, s.transport, tp, s.cfg)
	s.subs = append(s.subs, sub)
	return sub.out, nil
}

// Drain leaves what is in flight alone until ctx ends; see [transport.Subscriber].
func (s *Subscriber) Drain(ctx context.Context) error {
	subs := s.all(false)
	for _, sub := range subs {
		sub.stopTaking()
		sub.source.release()
		sub.takeBack()
	}
	var errs []error
	for _, sub := range subs {
		errs = append(errs, sub.drain(ctx))
	}
	return errors.Join(errs...)
}

// Close hands back what is in flight, cancels its contexts with [transport.ErrShutdown] and closes the channels.
func (s *Subscriber) Close() error {
	for _, sub := range s.all(true) {
		sub.close()
	}
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	delete(s.transport.members, s)
	return nil
}

func (s *Subscriber) all(closing bool) []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || closing
	return append([]*subscription(nil), s.subs...)
}

// subscription is one Subscribe: a worker for each message that may be in flight.
type subscription struct {
	transport *Transport
	topic     string
	group     *group
	source    source
	out       chan *message.Message
	values    context.Context // Subscribe's, without its cancellation
	hook      crash.HookFunc

	taking     context.Context
	stopTaking context.CancelFunc
	unwatch    func() bool
	workers    []worker
	running    sync.WaitGroup
	stopped    chan struct{} // closed when all workers have ended
	closing    sync.Once
}

func newSubscription(ctx context.Context, t *Transport, tp *topic, cfg transport.SubscriberConfig) *subscription {
	sub := &subscription{
		transport: t, topic: tp.name, group: tp.group(cfg.Group),
		out:     make(chan *message.Message, cfg.Concurrency),
		values:  context.WithoutCancel(ctx),
		hook:    crash.Hook(ctx),
		workers: make([]worker, cfg.Concurrency),
		stopped: make(chan struct{}),
	}
	sub.taking, sub.stopTaking = context.WithCancel(sub.values)
	for i := range sub.workers {
		sub.workers[i].ended = make(chan struct{}, 1)
	}
	sub.source = sub.group.queue.open(sub)
	for i := range sub.workers {
		sub.running.Go(func() { sub.workers[i].run(sub) })
	}
	go func() {
		sub.running.Wait()
		close(sub.stopped)
	}()
	sub.unwatch = context.AfterFunc(ctx, sub.end)
	return sub
}

func (sub *subscription) drain(ctx context.Context) error {
	defer sub.source.leave() // whatever ends the drain, the workers have ended by then
	select {
	case <-sub.stopped:
		return nil
	default:
	}
	select {
	case <-sub.stopped:
		return nil
	case <-ctx.Done():
	}
	left := sub.cut(transport.ErrShutdown)
	<-sub.stopped
	if left == 0 {
		return nil
	}
	return fmt.Errorf("memory: drain %q as %q: %d left in flight: %w", sub.topic, sub.group.name, left, ctx.Err())
}

func (sub *subscription) close() {
	sub.unwatch()
	sub.end()
}

func (sub *subscription) end() {
	sub.stopTaking()
	sub.cut(transport.ErrShutdown)
	<-sub.stopped
	sub.closing.Do(func() {
		sub.takeBack()
		sub.source.leave()
		close(sub.out)
	})
}

// takeBack withdraws what lies in the channel and nobody has received.
func (sub *subscription) takeBack() {
	for {
		select {
		case msg, open := <-sub.out:
			if !open {
				return
			}
			if d, ok := msg.Context().(*delivery); ok {
				d.worker.takeBack(d)
			}
		default:
			return
		}
	}
}

// cut ends every delivery in flight and returns how many there were.
func (sub *subscription) cut(cause error) int {
	n := 0
	for i := range sub.workers {
		if sub.workers[i].cut(cause) {
			n++
		}
	}
	return n
}

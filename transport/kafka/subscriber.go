package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

// commitTimeout bounds a commit that somebody waits for.
const commitTimeout = 5 * time.Second

// Subscriber takes messages for one group. Subscribers of one group of a [Transport] are one member of it together.
type Subscriber struct {
	transport *Transport
	cfg       transport.SubscriberConfig

	mu     sync.Mutex
	subs   []*subscription
	closed bool
}

var _ transport.Subscriber = (*Subscriber)(nil)

// Subscribe starts taking in. It fails if the topic is missing and may not be created, or if this principal may not read the
// topic or be in the group. The channel is closed by Close, by the end of ctx, and by the transport's Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := s.subscribe(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("kafka: subscribe %q as %q: %w", topic, s.cfg.Group, err)
	}
	return sub.out, nil
}

func (s *Subscriber) subscribe(ctx context.Context, topic string) (*subscription, error) {
	if s.isClosed() {
		return nil, transport.ErrClosed
	}
	err := errors.Join(s.transport.checkTopic(ctx, topic, rightRead), s.transport.checkGroup(ctx, s.cfg.Group))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	stream, err := s.transport.join(s.cfg.Group, topic)
	if err != nil {
		return nil, err
	}
	sub := newSubscription(ctx, stream, s.cfg.Concurrency)
	s.subs = append(s.subs, sub)
	return sub, nil
}

func (s *Subscriber) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Drain leaves what is in flight alone until ctx ends, then commits what is finished; see [transport.Subscriber].
func (s *Subscriber) Drain(ctx context.Context) error {
	subs := s.all(false)
	for _, sub := range subs {
		sub.stopTaking()
		sub.takeBack()
	}
	errs := make([]error, len(subs))
	var wg sync.WaitGroup
	for i, sub := range subs {
		wg.Go(func() { errs[i] = sub.drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close hands back what is in flight, cancels its contexts with [transport.ErrShutdown], commits what is finished, and closes
// the channels. The group's last subscriber leaves the group.
func (s *Subscriber) Close() error {
	for _, sub := range s.all(true) {
		sub.close()
	}
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	delete(s.transport.subscribers, s)
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
	stream *stream
	out    chan *message.Message
	values context.Context // Subscribe's, without its cancellation

	taking     context.Context
	stopTaking context.CancelFunc
	unwatch    func() bool
	workers    []worker
	running    sync.WaitGroup
	stopped    chan struct{} // closed when all workers have ended
	closing    sync.Once
}

func newSubscription(ctx context.Context, st *stream, concurrency int) *subscription {
	sub := &subscription{
		stream: st, out: make(chan *message.Message, concurrency),
		values: context.WithoutCancel(ctx), workers: make([]worker, concurrency), stopped: make(chan struct{}),
	}
	taking, stop := context.WithCancel(sub.values)
	sub.taking = taking
	st.workers.Add(int64(concurrency))
	sub.stopTaking = sync.OnceFunc(func() {
		stop()
		st.workers.Add(-int64(concurrency))
	})
	for i := range sub.workers {
		sub.workers[i].ended = make(chan struct{}, 1)
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
	left := 0
	select {
	case <-sub.stopped:
	default:
		select {
		case <-sub.stopped:
		case <-ctx.Done():
			left = sub.cut(transport.ErrShutdown)
			<-sub.stopped
		}
	}
	err := sub.stream.member.commitNow()
	if left > 0 {
		err = errors.Join(fmt.Errorf("%d left in flight: %w", left, ctx.Err()), err)
	}
	if err != nil {
		return fmt.Errorf("kafka: drain %q as %q: %w", sub.stream.topic, sub.stream.member.group, err)
	}
	return nil
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
		sub.stream.member.leave(sub.stream)
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

package sqs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/transport"
)

// subscription is one Subscribe: receivers that fill lanes, workers that empty them, a heartbeat for what is held, and
// batches of deletes and of changes of visibility.
type subscription struct {
	client Client
	cfg    *config
	queue  *queue
	topic  string
	group  string
	limit  int // of messages in flight
	out    chan *message.Message
	values context.Context // Subscribe's, without its cancellation
	hook   crash.HookFunc
	log    *slog.Logger

	deletes    *batcher
	visibility *batcher

	taking     context.Context
	stopTaking context.CancelFunc
	unwatch    func() bool
	beating    chan struct{} // closed to stop the heartbeat
	running    sync.WaitGroup
	ended      chan struct{} // closed when all of it has ended

	mu       sync.Mutex
	work     sync.Cond // something is ready, or no more will be
	room     sync.Cond // a receiver may go on
	lanes    map[string]*lane
	ready    []*lane
	held     map[string]*held // by the broker's id; not those that are gone
	done     finished
	polling  int // receivers that wait for the broker
	pollers  int // how many may
	reserved int // messages that they may bring
	stopping bool
	ending   bool
	crashed  bool
	idle     chan struct{} // closed when stopping and nothing is held
}

func newSubscription(ctx context.Context, t *Transport, q *queue, topic string, cfg transport.SubscriberConfig) *subscription {
	s := &subscription{
		client: t.client, cfg: &t.cfg, queue: q, topic: topic, group: cfg.Group, limit: cfg.Concurrency,
		out: make(chan *message.Message), values: context.WithoutCancel(ctx), hook: crash.Hook(ctx),
		log:     t.cfg.log.With("topic", topic, "group", cfg.Group, "queue", q.name),
		beating: make(chan struct{}), lanes: make(map[string]*lane), held: make(map[string]*held), pollers: 1, idle: make(chan struct{}),
		ended: make(chan struct{}),
	}
	s.work.L, s.room.L = &s.mu, &s.mu
	s.deletes, s.visibility = newBatcher(s.deleting()), newBatcher(s.changing())
	s.taking, s.stopTaking = context.WithCancel(s.values)
	for range t.cfg.receivers {
		s.running.Go(s.receive)
	}
	for range s.limit {
		s.running.Go(s.serve)
	}
	s.running.Go(s.beat)
	s.unwatch = context.AfterFunc(ctx, s.end)
	return s
}

// stop ends the taking in and hands back what no handler has.
func (s *subscription) stop() {
	s.mu.Lock()
	var back []*held
	if !s.stopping {
		s.stopping = true
		s.stopTaking()
		for _, ln := range s.lanes {
			back = append(back, ln.queue...)
			ln.queue = nil
		}
		s.ready = nil
		s.work.Broadcast()
		s.room.Broadcast()
		s.checkIdle()
	}
	items := s.returning(back, 0)
	s.mu.Unlock()
	s.visibility.add(items...)
}

// checkIdle tells those who wait for everything to be settled. The lock is held.
func (s *subscription) checkIdle() {
	if !s.stopping || len(s.held) > 0 || s.polling > 0 {
		return
	}
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

func (s *subscription) drain(ctx context.Context) error {
	select {
	case <-s.idle:
		return nil
	default:
	}
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	left := s.cut()
	s.settle()
	if left == 0 {
		return nil
	}
	return fmt.Errorf("sqs: drain %q as %q: %d left in flight: %w", s.topic, s.group, left, ctx.Err())
}

// cut ends every delivery in flight, hands it back and returns how many there were.
func (s *subscription) cut() int {
	s.mu.Lock()
	var cut []*held
	for _, h := range s.held {
		if h.state == inFlight && !h.hasVerdict() {
			cut = append(cut, h)
		}
	}
	items := s.returning(cut, 0)
	for _, h := range cut {
		h.End(transport.ErrShutdown)
		close(h.over)
	}
	s.mu.Unlock()
	s.visibility.add(items...)
	return len(cut)
}

// settle waits until the broker knows of everything, or a few calls had time to tell it.
func (s *subscription) settle() {
	timer := time.NewTimer(2 * s.cfg.timeout)
	defer timer.Stop()
	select {
	case <-s.idle:
	case <-timer.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log.Warn("not settled with the broker; it will deliver again when their leases are over", "messages", len(s.held))
	}
}

func (s *subscription) close() {
	s.unwatch()
	s.end()
}

// end ends all of it, once, and returns when that is done.
func (s *subscription) end() {
	s.mu.Lock()
	again := s.ending
	s.ending = true
	s.mu.Unlock()
	if again {
		<-s.ended
		return
	}
	s.stop()
	s.cut()
	s.settle()
	close(s.beating)
	s.deletes.close()
	s.visibility.close()
	s.running.Wait()
	close(s.out)
	close(s.ended)
}

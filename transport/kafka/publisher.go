package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/transport"
)

const (
	// waveSize is how many messages of a call are under way at once. What fails in one wave keeps the rest of its key out of
	// the next.
	waveSize = 5_000
	// maxBuffered is how many messages of all calls are under way at once; others wait for room, or for their contexts.
	maxBuffered = 10_000
)

type publisher struct {
	transport *Transport
	closed    atomic.Bool
}

// Publish hands all messages to the producer, which sends them in batches, and waits for every acknowledgement. When the
// producer fails one it fails all that wait for the same partition with it, so nothing overtakes a failed message there.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.closed.Load() || p.transport.isClosed() {
		return fmt.Errorf("kafka: publish %q: %w", topic, transport.ErrClosed)
	}
	c := &call{transport: p.transport, topic: topic}
	var failures []transport.Failure
	var failed map[string]bool
	for start := 0; start < len(msgs); start += waveSize {
		w := newWave(c, msgs[start:min(start+waveSize, len(msgs))], failed)
		w.publish()
		failures, failed = w.report(failures, start)
	}
	if failures != nil {
		return &transport.PublishError{Topic: topic, Failures: failures}
	}
	return nil
}

func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// call is one Publish.
type call struct {
	transport *Transport
	topic     string
	info      *topicInfo
	err       error // why there is no info
}

// known looks the topic up once a call, unless it was the message's own context that ended the look-up.
func (c *call) known(ctx context.Context) (*topicInfo, error) {
	if c.info != nil || c.err != nil {
		return c.info, c.err
	}
	info, err := c.transport.topic(ctx, c.topic)
	if ctx.Err() == nil {
		c.info, c.err = info, err
	}
	return info, err
}

// wave is a part of a call: messages that are under way at once.
type wave struct {
	call *call
	msgs []*message.Message
	done chan struct{} // closed when all are settled

	mu       sync.Mutex
	verdicts []verdict
	left     int
	failed   map[string]bool // keys
}

// verdict is what became of a message. Only the first one counts.
type verdict struct {
	settled bool
	err     error
}

func newWave(c *call, msgs []*message.Message, failed map[string]bool) *wave {
	return &wave{
		call: c, msgs: msgs, done: make(chan struct{}), failed: failed,
		verdicts: make([]verdict, len(msgs)), left: len(msgs),
	}
}

// publish sends the wave and waits until every message is settled: by the broker, or by the end of its context.
func (w *wave) publish() {
	var watched map[<-chan struct{}]func() bool
	for i, msg := range w.msgs {
		ctx := msg.Context()
		if done := ctx.Done(); done != nil && watched[done] == nil {
			if watched == nil {
				watched = make(map[<-chan struct{}]func() bool)
			}
			watched[done] = context.AfterFunc(ctx, func() { w.abandon(done, ctx.Err) })
		}
		if err := w.send(i, msg); err != nil {
			w.settle(i, err)
		}
	}
	<-w.done
	for _, stop := range watched {
		stop()
	}
}

// send hands one message to the producer, or returns why not.
func (w *wave) send(i int, msg *message.Message) error {
	if w.hasFailed(transport.Key(msg)) {
		return transport.ErrSkipped
	}
	ctx, t := msg.Context(), w.call.transport
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.limits().Check(msg); err != nil {
		return err
	}
	info, err := w.call.known(ctx)
	if err != nil {
		return err
	}
	rec, err := encode(w.call.topic, msg)
	if err != nil {
		return err
	}
	if n := recordBytes(rec); n > info.maxBytes {
		limit := fmt.Sprintf("record bytes of topic %q", w.call.topic)
		return &transport.LimitError{ID: msg.UUID, Limit: limit, Max: info.maxBytes, Got: n}
	}
	select {
	case t.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	// The producer must not see this context end: it would fail what others wait for in the same partition.
	t.client.Produce(context.WithoutCancel(ctx), rec, func(_ *kgo.Record, err error) {
		<-t.room
		w.settle(i, classify(err))
	})
	return nil
}

func (w *wave) hasFailed(key string) bool {
	if key == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed[key]
}

func (w *wave) settle(i int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settleLocked(i, err)
}

func (w *wave) settleLocked(i int, err error) {
	v := &w.verdicts[i]
	if v.settled {
		return
	}
	*v = verdict{settled: true, err: err}
	if key := transport.Key(w.msgs[i]); err != nil && key != "" {
		if w.failed == nil {
			w.failed = make(map[string]bool)
		}
		w.failed[key] = true
	}
	if w.left--; w.left == 0 {
		close(w.done)
	}
}

// abandon gives up on what is still under way with a context that has ended. It may yet arrive, in its place.
func (w *wave) abandon(done <-chan struct{}, cause func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, msg := range w.msgs {
		if !w.verdicts[i].settled && msg.Context().Done() == done {
			w.settleLocked(i, cause())
		}
	}
}

// report adds the wave's failures, whose first message is the call's number base, and returns the keys that failed so far.
func (w *wave) report(failures []transport.Failure, base int) ([]transport.Failure, map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, v := range w.verdicts {
		if v.err != nil {
			failures = append(failures, transport.Failure{Index: base + i, ID: w.msgs[i].UUID, Err: v.err})
		}
	}
	return failures, w.failed
}

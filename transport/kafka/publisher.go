package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/transport"
)

const (
	// waveSize is how many messages of a call are under way at once. What fails in one wave keeps the rest of its key out of
	// the next.
	waveSize = 5_000
	// maxExclusive is how many calls with several messages are under way at once.
	maxExclusive = 8
)

type publisher struct {
	transport *Transport
	closed    atomic.Bool
}

// Publish sends the messages in batches, one for each partition where they fit, and waits for every acknowledgement.
//
// A call with several messages has a producer to itself meanwhile: it is given all of them before it sends the first, and
// when it fails one it fails all that wait for the same partition. So nothing later of a failed key can be sent. Calls with
// one message have no such worry and share a producer, whose batches hold those of many calls.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.closed.Load() || p.transport.isClosed() {
		return fmt.Errorf("kafka: publish %q: %w", topic, transport.ErrClosed)
	}
	c := &call{transport: p.transport, topic: topic, shared: len(msgs) == 1}
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
	shared    bool // its only message goes by the shared producer
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

// producers are the clients that publish.
type producers struct {
	shared *kgo.Client
	slots  chan struct{}   // a token for each exclusive producer in use
	idle   chan *exclusive // exclusive producers that are not in use
}

// newProducer returns a client that publishes. One that is placing sends only while it is flushed.
func (t *Transport) newProducer(placing *placing) (*kgo.Client, error) {
	opts := append(t.cfg.common(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // murmur2, as partition.Of has it
		kgo.RecordDeliveryTimeout(t.cfg.deliveryTimeout),
		// Without it a record whose acknowledgement got lost stays with the client until a broker comes back, and would
		// then overtake what has been sent again meanwhile. The price is a possible duplicate.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProducerBatchMaxBytesFn(t.batchMax),
		kgo.MaxBufferedRecords(1<<20), // the calls bound it
		kgo.BrokerMaxWriteBytes(int32(max(100<<20, t.cfg.maxBytes+2*batchRoom))),
	)
	if placing != nil {
		opts = append(opts, kgo.ManualFlushing(), kgo.WithHooks(placing))
	} else {
		opts = append(opts, kgo.ProducerLinger(0)) // what comes while a batch is under way makes the next one
	}
	return kgo.NewClient(opts...)
}

// exclusive returns a producer that nobody else uses until it is given back, or nil if done is closed before one is free.
func (t *Transport) exclusive(done <-chan struct{}) (*exclusive, error) {
	select {
	case t.producers.slots <- struct{}{}:
	case <-done:
		return nil, nil
	}
	select {
	case client := <-t.producers.idle:
		return client, nil
	default:
	}
	p := new(placing)
	client, err := t.newProducer(p)
	if err != nil {
		<-t.producers.slots
		return nil, err
	}
	return &exclusive{client, p}, nil
}

func (t *Transport) giveBack(client *exclusive) {
	t.producers.idle <- client // there is a place for each slot
	<-t.producers.slots
}

// closeProducers makes whatever is under way fail, and waits for it.
func (t *Transport) closeProducers() {
	t.producers.shared.Close()
	for range maxExclusive { // once all slots are taken, nobody uses a producer or makes one
		t.producers.slots <- struct{}{}
	}
	for {
		select {
		case client := <-t.producers.idle:
			client.Close()
		default:
			return
		}
	}
}

// backstop is how long after the delivery timeout, which the client enforces itself where it can, a call gives up.
const backstop = 2 * time.Second

// cutShort reports whether err is of a context that was not the message's own: its neighbour's, which the client failed the
// whole partition for.
func cutShort(err error, own context.Context) bool {
	return (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) && own.Err() == nil
}

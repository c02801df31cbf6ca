package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

// Transport is a connection to SQS, and to SNS where topics fan out. It is safe for concurrent use. It has goroutines only
// while something is published or subscribed.
type Transport struct {
	client Client
	cfg    config

	resolving chan struct{} // a token: one at a time asks the broker what there is

	mu      sync.Mutex
	queues  map[topicGroup]*queue
	owners  map[string]topicGroup // by queue URL
	arns    map[string]string     // of SNS topics
	senders map[string]*batcher   // by topic
	members map[*Subscriber]struct{}
	closed  bool
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that calls client. It makes no call itself: queues are looked up, checked and, where configured,
// created when a topic is first published to or subscribed. All problems of the options are reported at once.
func New(client Client, opts ...Option) (*Transport, error) {
	cfg := defaults()
	for _, o := range opts {
		o.apply(&cfg)
	}
	err := cfg.complete()
	if client == nil {
		err = errors.Join(errors.New("client is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("sqs: new: %w", err)
	}
	return &Transport{
		client: client, cfg: cfg, resolving: make(chan struct{}, 1),
		queues: make(map[topicGroup]*queue), owners: make(map[string]topicGroup), arns: make(map[string]string),
		senders: make(map[string]*batcher), members: make(map[*Subscriber]struct{}),
	}, nil
}

// Capabilities says that accepted messages are kept for up to 14 days. A delay of 11 hours is kept if the handler took less
// than one: SQS counts twelve from the receipt of a message, and a longer delay is cut to what is left of them.
func (t *Transport) Capabilities() transport.Capabilities {
	return transport.Capabilities{
		Name: "sqs", Durable: true, MaxDelay: maxVisibility - time.Hour, LongestRedelivery: maxRetention, Limits: t.cfg.limits(),
	}
}

// Publisher returns a publisher; all of them share batches. Closing one closes nothing else.
func (t *Transport) Publisher() message.Publisher { return &publisher{transport: t} }

// Subscriber returns a new member of a group.
func (t *Transport) Subscriber(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	var errs []error
	if cfg.Group == "" {
		errs = append(errs, errors.New("group is empty"))
	}
	if cfg.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("concurrency is %d, want zero for the default or more", cfg.Concurrency))
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = transport.DefaultConcurrency
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		errs = append(errs, transport.ErrClosed)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("sqs: subscriber: %w", err)
	}
	s := &Subscriber{transport: t, cfg: cfg}
	t.members[s] = struct{}{}
	return s, nil
}

// Close closes every subscriber, refuses what is not sent yet and waits for what is being sent.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	members := make([]*Subscriber, 0, len(t.members))
	for s := range t.members {
		members = append(members, s)
	}
	senders := make([]*batcher, 0, len(t.senders))
	for _, b := range t.senders {
		senders = append(senders, b)
	}
	t.mu.Unlock()
	errs := make([]error, len(members))
	for i, s := range members {
		errs[i] = s.Close()
	}
	for _, b := range senders {
		b.close()
	}
	return errors.Join(errs...)
}

// sender returns the batcher of a topic, made on its first use.
func (t *Transport) sender(ctx context.Context, topic string) (*batcher, error) {
	if b, err := t.knownSender(topic); b != nil || err != nil {
		return b, err
	}
	unlock, err := t.resolve(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if b, err := t.knownSender(topic); b != nil || err != nil {
		return b, err
	}
	b, err := t.newSender(ctx, topic)
	if err != nil {
		return nil, ended(ctx, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	t.senders[topic] = b
	return b, nil
}

func (t *Transport) knownSender(topic string) (*batcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	return t.senders[topic], nil
}

func (t *Transport) newSender(ctx context.Context, topic string) (*batcher, error) {
	if t.cfg.fansOut(topic) {
		arn, err := t.topicARN(ctx, topic)
		if err != nil {
			return nil, err
		}
		return newSender(&t.cfg, FanoutMessageBytes, sendToTopic(t.cfg.topics, arn)), nil
	}
	group, err := t.cfg.groupOf(topic)
	if err != nil {
		return nil, err
	}
	q, err := t.queue(ctx, topicGroup{topic, group})
	if err != nil {
		return nil, err
	}
	return newSender(&t.cfg, DefaultMessageBytes, sendToQueue(t.client, q.url)), nil
}

// resolve takes the turn to ask the broker what there is.
func (t *Transport) resolve(ctx context.Context) (unlock func(), err error) {
	select {
	case t.resolving <- struct{}{}:
		return func() { <-t.resolving }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

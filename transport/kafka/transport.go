package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/transport"
)

// maxDelay is how long a nacked message may wait within its partition, whose watermark waits with it.
const maxDelay = 5 * time.Minute

// longestRedelivery is how long after its first delivery a record may come again: brokers keep committed offsets, and
// records, for a week by default.
const longestRedelivery = 7 * 24 * time.Hour

// Transport is a connection to one Kafka cluster: a producer, and a member of each group that is subscribed with. It is safe
// for concurrent use. Close it when done.
type Transport struct {
	cfg       *config
	client    *kgo.Client // for requests of every kind
	topics    sync.Map    // name to *topicInfo, of topics known to exist
	producers producers

	mu          sync.Mutex
	members     map[string]*member // by group
	subscribers map[*Subscriber]struct{}
	closed      bool
	closing     sync.Once
}

var _ transport.Transport = (*Transport)(nil)

// New connects to the cluster that brokers (host:port each) belong to. It fails, naming what is wrong, if an option is
// invalid, no broker answers before ctx ends or ten seconds pass, credentials are refused, or a required topic is missing.
func New(ctx context.Context, brokers []string, opts ...Option) (*Transport, error) {
	cfg := defaults(brokers)
	for _, o := range opts {
		o.apply(cfg)
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	t := &Transport{
		cfg:       cfg,
		producers: producers{slots: make(chan struct{}, maxExclusive), idle: make(chan *exclusive, maxExclusive)},
		members:   make(map[string]*member), subscribers: make(map[*Subscriber]struct{}),
	}
	client, err := t.newProducer(nil)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	t.client, t.producers.shared = client, client
	if err := t.start(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return t, nil
}

func (t *Transport) start(ctx context.Context) error {
	ping, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := t.client.Ping(ping); err != nil {
		where := strings.Join(t.cfg.brokers, ",")
		switch {
		case errors.Is(err, kerr.SaslAuthenticationFailed):
			return fmt.Errorf("brokers %s refuse the credentials: %w", where, err)
		case t.cfg.sasl != nil && errors.Is(err, io.EOF): // some say no by hanging up
			return fmt.Errorf("brokers %s hang up while authenticating: they refuse the credentials, or want TLS: %w", where, err)
		}
		return fmt.Errorf("no broker of %s answers: %w", where, errors.Join(transport.ErrUnavailable, err))
	}
	var errs []error
	for _, topic := range t.cfg.required {
		errs = append(errs, t.checkTopic(ctx, topic, rightWrite))
	}
	return errors.Join(errs...)
}

// Capabilities says that Kafka keeps what it has accepted, and for how long a nack may ask to wait.
func (t *Transport) Capabilities() transport.Capabilities {
	return transport.Capabilities{
		Name: "kafka", Durable: true, MaxDelay: maxDelay, LongestRedelivery: longestRedelivery,
		Limits: t.limits(),
	}
}

func (t *Transport) limits() transport.Limits { return transport.Limits{MessageBytes: t.cfg.maxBytes} }

// Publisher returns a publisher; all of them are alike. Closing one closes nothing else.
func (t *Transport) Publisher() message.Publisher { return &publisher{transport: t} }

// Subscriber returns a subscriber. All subscribers of one group share a connection and are one member of the group, which
// exists while one of them is subscribed. A new group begins with the earliest record.
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
		return nil, fmt.Errorf("kafka: subscriber: %w", err)
	}
	s := &Subscriber{transport: t, cfg: cfg}
	t.subscribers[s] = struct{}{}
	return s, nil
}

// Close closes every subscriber, leaves the groups and disconnects.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	subs := make([]*Subscriber, 0, len(t.subscribers))
	for s := range t.subscribers {
		subs = append(subs, s)
	}
	t.mu.Unlock()
	errs := make([]error, len(subs))
	var wg sync.WaitGroup
	for i, s := range subs {
		wg.Go(func() { errs[i] = s.Close() })
	}
	wg.Wait()
	t.closing.Do(t.closeProducers)
	return errors.Join(errs...)
}

func (t *Transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

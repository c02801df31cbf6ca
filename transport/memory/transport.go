package memory

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

// Defaults of [New].
const (
	// DefaultLease is how long the deliveries of a crashed member stay with it.
	DefaultLease = 30 * time.Second
	// DefaultBuffer is how many messages a group holds, and how many a topic keeps for its first group.
	DefaultBuffer = 10_000
)

// Option configures a [Transport].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	mode       Mode
	lease      time.Duration
	window     *time.Duration // nil: what the mode says
	buffer     int
	partitions int
	limits     *transport.Limits // nil: what the mode says
	maxDelay   time.Duration
	ackFault   func(id string) error // what the broker says to an ack, in tests
}

// WithLease sets how long the deliveries of a crashed member stay with it before others get them; the default is
// [DefaultLease]. A live member's leases never end by themselves, however long its handlers take. Values below a
// millisecond count as one.
func WithLease(d time.Duration) Option {
	return option(func(c *config) { c.lease = max(d, time.Millisecond) })
}

// WithDedupWindow makes a topic drop a message whose id (and generation) it accepted less than d ago, as SQS FIFO does for
// five minutes. The default is zero: like Kafka, it drops nothing, which is the harder case for a handler. With
// WithStrict(SQS) it is [SQSDedupWindow]. It costs memory for every id in the window. Its clock is time.Now, which is virtual
// in a testing/synctest bubble.
func WithDedupWindow(d time.Duration) Option {
	return option(func(c *config) { c.window = new(max(d, 0)) })
}

// WithBuffer bounds how many messages each group holds, waiting and in flight; the default is [DefaultBuffer], less than 1
// counts as 1. A publisher blocks while one of the topic's groups is full, until its message's context ends. A topic
// without groups keeps that many of its newest messages for the first group.
func WithBuffer(n int) Option {
	return option(func(c *config) { c.buffer = max(n, 1) })
}

// WithLimits makes the transport refuse what breaks l, as a real broker would. The default has no limits, or those of the
// broker that [WithStrict] names.
func WithLimits(l transport.Limits) Option {
	return option(func(c *config) { c.limits = &l })
}

// Transport is a broker in this process and the connection to it at once: whoever shares the value shares the broker.
// It is safe for concurrent use, and has goroutines only while there are subscriptions.
type Transport struct {
	cfg  config
	caps transport.Capabilities

	mu      sync.Mutex
	topics  map[string]*topic
	members map[*Subscriber]struct{}
	timers  map[*time.Timer]struct{} // leases of crashed members
	closed  bool
}

var _ transport.Transport = (*Transport)(nil)

// New returns an empty broker.
func New(opts ...Option) *Transport {
	t := &Transport{
		cfg:     config{lease: DefaultLease, buffer: DefaultBuffer, partitions: DefaultPartitions},
		topics:  make(map[string]*topic),
		members: make(map[*Subscriber]struct{}),
		timers:  make(map[*time.Timer]struct{}),
	}
	for _, o := range opts {
		o.apply(&t.cfg)
	}
	t.caps = t.cfg.finish()
	return t
}

// Capabilities says that nothing survives the process, and in a strict mode what the mode's broker allows.
func (t *Transport) Capabilities() transport.Capabilities { return t.caps }

// Publisher returns a publisher; all of them are alike. Closing one closes nothing else.
func (t *Transport) Publisher() message.Publisher { return &publisher{transport: t} }

// Subscriber returns a new member of a group. A group exists from its first subscription on and then keeps receiving,
// with or without members.
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
		return nil, fmt.Errorf("memory: subscriber: %w", err)
	}
	s := &Subscriber{transport: t, cfg: cfg}
	t.members[s] = struct{}{}
	return s, nil
}

// Close closes every subscriber and forgets all messages.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	members := make([]*Subscriber, 0, len(t.members))
	for s := range t.members {
		members = append(members, s)
	}
	for timer := range t.timers {
		timer.Stop()
	}
	for _, tp := range t.topics {
		tp.close()
	}
	t.mu.Unlock()
	errs := make([]error, len(members))
	for i, s := range members {
		errs[i] = s.Close()
	}
	return errors.Join(errs...)
}

func (t *Transport) topic(name string) (*topic, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	tp, ok := t.topics[name]
	if !ok {
		tp = newTopic(name, t)
		t.topics[name] = tp
	}
	return tp, nil
}

// after runs fn once the lease of a crashed member is over, unless the transport is closed before.
func (t *Transport) after(lease time.Duration, fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(lease, func() {
		t.mu.Lock()
		delete(t.timers, timer)
		t.mu.Unlock()
		fn()
	})
	t.timers[timer] = struct{}{}
}

// Held returns how many messages the groups have before them: waiting, delayed or in flight. Zero means that all is handled.
func (t *Transport) Held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, tp := range t.topics {
		n += tp.held()
	}
	return n
}

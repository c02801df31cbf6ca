package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// Option configures a [Bus].
type Option interface{ applyBus(*config) }

// SubscribeOption configures one subscription.
type SubscribeOption interface{ applySubscription(*subscription) }

// SharedOption configures a subscription, or, given to [New], every subscription that does not say otherwise.
type SharedOption interface {
	Option
	SubscribeOption
}

type config struct {
	logger *slog.Logger
	source string
	drain  time.Duration
	tracer trace.TracerProvider
	boxes  []*outbox.Outbox
	shared shared
	errs   []error
}

// shared holds what a bus gives its subscriptions as defaults.
type shared struct {
	inbox       *inbox.Inbox
	deadLetters event.DeadLetters
	durable     bool // count attempts in the inbox
	onDead      OnDead
	retry       middleware.RetryPolicy
	timeout     time.Duration
	concurrency int
	middleware  []message.HandlerMiddleware
	inner       []message.HandlerMiddleware
}

// Defaults that are safe in production.
const (
	// DefaultTimeout bounds one handler call.
	DefaultTimeout = 30 * time.Second
	// DefaultDrainTimeout is how long handlers may go on after Run's context has ended.
	DefaultDrainTimeout = 30 * time.Second
	// DefaultDedupTTL and DefaultDedupMax bound the memory of handled ids where there is no inbox.
	DefaultDedupTTL = 15 * time.Minute
	DefaultDedupMax = 100_000
)

func defaults() config {
	return config{
		logger: slog.New(slog.DiscardHandler),
		drain:  DefaultDrainTimeout,
		tracer: noop.NewTracerProvider(),
		shared: shared{timeout: DefaultTimeout, concurrency: transport.DefaultConcurrency},
	}
}

type busOption func(*config)

func (o busOption) applyBus(c *config) { o(c) }

type subscribeOption func(*subscription)

func (o subscribeOption) applySubscription(s *subscription) { o(s) }

// sharedOption applies to the settings that both kinds hold and reports a wrong value.
type sharedOption func(*shared) error

func (o sharedOption) applyBus(c *config) { c.errs = append(c.errs, o(&c.shared)) }

func (o sharedOption) applySubscription(s *subscription) { s.errs = append(s.errs, o(&s.shared)) }

// WithLogger sets the logger. The default is silent. Payloads are never logged.
func WithLogger(l *slog.Logger) Option {
	return busOption(func(c *config) {
		if l == nil {
			c.errs = append(c.errs, errors.New("logger is nil"))
			return
		}
		c.logger = l
	})
}

// WithSource sets the CloudEvents source of what [Bus.Publish] sends, a URI reference. The default is the topic's name.
func WithSource(source string) Option {
	return busOption(func(c *config) { c.source = source })
}

// WithTracerProvider sets where spans go. The default makes none.
func WithTracerProvider(p trace.TracerProvider) Option {
	return busOption(func(c *config) {
		if p == nil {
			c.errs = append(c.errs, errors.New("tracer provider is nil"))
			return
		}
		c.tracer = p
	})
}

// WithDrainTimeout bounds how long Run lets handlers finish after its context has ended; the default is
// [DefaultDrainTimeout]. Zero cuts them off at once. [Bus.Shutdown] brings its own deadline.
func WithDrainTimeout(d time.Duration) Option {
	return busOption(func(c *config) {
		if d < 0 {
			c.errs = append(c.errs, fmt.Errorf("drain timeout is %v, want zero or more", d))
		}
		c.drain = d
	})
}

// WithOutbox makes Run run the relays of the outboxes, once every subscription is up.
func WithOutbox(boxes ...*outbox.Outbox) Option {
	return busOption(func(c *config) { c.boxes = append(c.boxes, boxes...) })
}

// WithInbox handles each event inside a transaction of in, which refuses repeated ids and stale versions, and keeps dead
// letters there. Without one, ids are remembered in memory and dead letters go to the topic "<topic>_<group>_dead".
func WithInbox(in *inbox.Inbox) SharedOption {
	return sharedOption(func(s *shared) error {
		if in == nil {
			return errors.New("inbox is nil")
		}
		s.inbox = in
		return nil
	})
}

// WithDeadLetters keeps dead letters in store instead of the default place.
func WithDeadLetters(store event.DeadLetters) SharedOption {
	return sharedOption(func(s *shared) error {
		if store == nil {
			return errors.New("dead letters: store is nil")
		}
		s.deadLetters = store
		return nil
	})
}

// OnDead says what becomes of a key when one of its events is given up.
type OnDead int

const (
	// PassKey lets the later events of the key go on. A redrive of the dead letter comes after them; where that would put the
	// old over the new it is refused.
	PassKey OnDead = iota
	// HoldKey parks the later events of the key behind the dead letter, in their order, in the inbox's database, until an
	// operator redrives or discards it; then they are handled in that order. Other keys go on. An event without a key holds
	// nothing.
	HoldKey
)

// WithOnDead sets what becomes of a key when one of its events is given up. The default is [PassKey]. [HoldKey] needs
// [WithInbox] and keeps the dead letters there. Every process of the group should say the same.
func WithOnDead(p OnDead) SharedOption {
	return sharedOption(func(s *shared) error {
		if p != PassKey && p != HoldKey {
			return fmt.Errorf("on dead is %d, want bus.PassKey or bus.HoldKey", p)
		}
		s.onDead = p
		return nil
	})
}

// WithDurableAttempts counts handler calls in the inbox's database before each call, so that a handler that kills its
// process is given up after as many attempts as any other. It costs two more commits an event and needs [WithInbox]. By
// default the count is in memory and dies with the process.
func WithDurableAttempts() SharedOption {
	return sharedOption(func(s *shared) error {
		s.durable = true
		return nil
	})
}

// WithRetry sets how failed attempts are repeated; zero fields keep their defaults, see [middleware.RetryPolicy].
func WithRetry(p middleware.RetryPolicy) SharedOption {
	return sharedOption(func(s *shared) error {
		s.retry = p
		return nil
	})
}

// WithTimeout bounds one handler call; the default is [DefaultTimeout]. The handler's context ends then; what the handler
// returns still counts. Zero means no bound.
func WithTimeout(d time.Duration) SharedOption {
	return sharedOption(func(s *shared) error {
		if d < 0 {
			return fmt.Errorf("timeout is %v, want zero or more", d)
		}
		s.timeout = d
		return nil
	})
}

// WithConcurrency bounds how many events of one subscription are handled at once in this process; the default is
// [transport.DefaultConcurrency]. Events of one key are handled one at a time whatever it says.
func WithConcurrency(n int) SharedOption {
	return sharedOption(func(s *shared) error {
		if n < 1 {
			return fmt.Errorf("concurrency is %d, want at least 1", n)
		}
		s.concurrency = n
		return nil
	})
}

// WithMiddleware adds Watermill middleware between the attempt count and the inbox transaction, first outermost. It sees
// every attempt; an error it returns counts as the handler's.
func WithMiddleware(m ...message.HandlerMiddleware) SharedOption {
	return sharedOption(func(s *shared) error { return more(&s.middleware, m) })
}

// WithInnerMiddleware adds Watermill middleware next to the handler, inside the inbox transaction and the timeout, first
// outermost. It sees only what the handler is called with, no duplicate and no stale event; an error it returns rolls back.
// There is none by default.
func WithInnerMiddleware(m ...message.HandlerMiddleware) SharedOption {
	return sharedOption(func(s *shared) error { return more(&s.inner, m) })
}

// more adds m to a copy of list, which other subscriptions may share.
func more(list *[]message.HandlerMiddleware, m []message.HandlerMiddleware) error {
	for _, mw := range m {
		if mw == nil {
			return errors.New("middleware is nil")
		}
	}
	*list = slices.Concat(*list, m)
	return nil
}

// WithDecoder reads the envelope of each message with d, for topics whose producer does not speak CloudEvents. An error
// from d is a contract break.
func WithDecoder(d event.Decoder) SubscribeOption {
	return subscribeOption(func(s *subscription) { s.decoder = d })
}

// WithIgnoreUnknown acknowledges events whose type the topic does not list. The default is that they are contract breaks.
func WithIgnoreUnknown() SubscribeOption {
	return subscribeOption(func(s *subscription) { s.ignoreUnknown = true })
}

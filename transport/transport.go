// Package transport is the contract between the bus and a broker: what a transport offers, what it promises of itself,
// and what it tells about each delivery. A third party's broker plugs in by implementing [Transport] and passing the
// conformance suite; nothing here or above changes.
package transport

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Transport connects to one broker. It is safe for concurrent use. Whoever opened it closes it; the bus never does.
type Transport interface {
	// Publisher returns the shared publisher. Its Publish must block until the broker has accepted every message, must
	// honour each message's context, must keep the order of messages with equal keys, and must report what failed as a
	// [PublishError]: after a failure nothing later of the failed key may have been sent. A message's key is
	// [Key]. Closing the publisher must not close the transport.
	Publisher() message.Publisher
	// Subscriber returns a new member of a group. It must not start goroutines before Subscribe is called. All problems
	// of cfg are reported at once.
	Subscriber(cfg SubscriberConfig) (Subscriber, error)
	// Capabilities returns what this transport promises. The result must not change over its life.
	Capabilities() Capabilities
	// Close ends all subscriptions as [Subscriber] Close does and releases the connection. It is idempotent.
	Close() error
}

// Subscriber is one member of a group. Of each key it delivers one message at a time: the next follows the ack. A nack
// redelivers the message before any later one of its key, no sooner than the delay in its [Delivery].
//
// The context of a delivered message carries a *[Delivery] and the values of Subscribe's context, but not its
// cancellation: it ends with its cause set to [ErrLeaseLost], [ErrShutdown] or, once settled, context.Canceled.
// Cancelling Subscribe's context is Close for that subscription.
type Subscriber interface {
	message.Subscriber
	// Drain stops taking in, leaves the deliveries in flight alone, and returns nil once all of them are settled. When
	// ctx ends first it cancels their contexts with [ErrShutdown], hands back what is not settled without counting
	// an attempt, and returns an error that says how many were left; context errors are recognised by errors.Is. Close must
	// still be called.
	Drain(ctx context.Context) error
}

// SubscriberConfig describes one member of a group.
type SubscriberConfig struct {
	// Group shares the topic's messages among its members. Required; see [event.CheckName] for the names that every
	// broker accepts.
	Group string
	// Concurrency is how many messages may be in flight at once in this member. Zero means 64.
	Concurrency int
}

// DefaultConcurrency is the number of messages in flight per subscriber where none is configured.
const DefaultConcurrency = 64

// Capabilities says what a transport promises beyond the contract of its interfaces.
type Capabilities struct {
	// Name names the transport in logs and errors: "memory", "kafka", "sqs".
	Name string
	// Durable is true where an accepted message survives this process. Where it is false an outbox row is marked only
	// after every subscribed group has acknowledged it; see [OnSettled].
	Durable bool
	// MaxDelay is the longest delay that [Delivery.SetDelay] honours. Zero means no limit.
	MaxDelay time.Duration
	// LongestRedelivery is how long after its first delivery the broker may still deliver a message again. An inbox must
	// remember ids for at least as long. Zero means that it is not known.
	LongestRedelivery time.Duration
	// Limits bounds a message.
	Limits Limits
}

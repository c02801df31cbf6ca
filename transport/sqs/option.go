package sqs

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// Defaults of [New].
const (
	// DefaultLease is how long the messages of a crashed process stay invisible to others.
	DefaultLease = 30 * time.Second
	// DefaultLinger is how long an entry waits for others to share its call.
	DefaultLinger = 3 * time.Millisecond
	// DefaultReceivers is how many calls of one subscription wait for messages at once, at most.
	DefaultReceivers = 4
	// DefaultMessageBytes is what SQS takes for one message, attributes included.
	DefaultMessageBytes = 1 << 20
	// FanoutMessageBytes is what SNS takes for one message, attributes included.
	FanoutMessageBytes = 256 << 10
)

const (
	longPoll      = 20 * time.Second
	callTimeout   = 10 * time.Second
	maxVisibility = 12 * time.Hour // from a message's receipt, extensions included
	maxRetention  = 14 * 24 * time.Hour
	leastReceives = 100 // of a native redrive policy
)

// Queue says what differs from the rule for one group's queue.
type Queue struct {
	// Name is the queue's name, which must end in .fifo, or its URL. Empty means <topic>_<group>.fifo.
	Name string
	// External is true for a queue that others own: it is neither created nor altered, whatever the options say.
	External bool
	// AllowNativeRedrive accepts a redrive policy of fewer than 100 receives. It breaks order: a message that SQS moves away lets
	// later ones of its key pass, and handing back unhandled messages counts as a receive.
	AllowNativeRedrive bool
	// Types are the event types that the group handles, for a subscription filter behind SNS. Empty means all.
	Types []string
}

// Option configures a [Transport].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type topicGroup struct{ topic, group string }

type config struct {
	soleGroup    string
	queues       map[topicGroup]Queue
	topics       TopicClient
	fanout       map[string]bool // topics; empty means all
	create       bool
	alter        bool
	lease        time.Duration
	linger       time.Duration
	timeout      time.Duration
	poll         time.Duration
	receivers    int
	messageBytes int
	log          *slog.Logger
	errs         []error
}

func defaults() config {
	return config{
		queues: make(map[topicGroup]Queue), fanout: make(map[string]bool),
		lease: DefaultLease, linger: DefaultLinger, timeout: callTimeout, poll: longPoll, receivers: DefaultReceivers,
		log: slog.New(slog.DiscardHandler),
	}
}

// WithSoleGroup names the group that handles every topic without a queue or fan-out of its own: its messages are sent
// straight to <topic>_<group>.fifo. Subscribing as any other group is refused, since it would get nothing.
func WithSoleGroup(group string) Option {
	return option(func(c *config) { c.soleGroup = group })
}

// WithQueue describes the queue of one topic and group. Without [WithFanout] for the topic, its messages are sent straight to
// this queue, and a second group of the topic is refused.
func WithQueue(topic, group string, q Queue) Option {
	return option(func(c *config) {
		if _, again := c.queues[topicGroup{topic, group}]; again {
			c.errs = append(c.errs, fmt.Errorf("queue of topic %q and group %q is described twice", topic, group))
		}
		c.queues[topicGroup{topic, group}] = q
	})
}

// WithFanout puts an SNS FIFO topic, <topic>.fifo, before the queues of these topics, or of all topics if none is named,
// so that each can have several groups. A group gets what is published after its first subscription. It costs a call to SNS
// for each batch and a delivery for each group, and lowers the limit of a message to [FanoutMessageBytes].
func WithFanout(client TopicClient, topics ...string) Option {
	return option(func(c *config) {
		c.topics = client
		for _, t := range topics {
			c.fanout[t] = true
		}
	})
}

// WithCreate makes the transport create queues, SNS topics and subscriptions that do not exist. The default is an error that
// names what is missing. Queues of others ([Queue] External) are never created.
func WithCreate() Option { return option(func(c *config) { c.create = true }) }

// WithAlter makes the transport set attributes, queue policies and subscriptions that differ from what it needs. The default
// is to log the difference as a warning and go on where that is safe. Queues of others are never altered.
func WithAlter() Option { return option(func(c *config) { c.alter = true }) }

// WithLease sets how long a received message stays invisible to others unless it is extended, which happens for as long as it
// is held; the default is [DefaultLease]. It is rounded up to seconds, from 2 s to 12 h. Shorter means sooner after a crash and
// more calls for long handlers.
func WithLease(d time.Duration) Option {
	return option(func(c *config) {
		c.lease = min(max(time.Duration(seconds(d))*time.Second, 2*time.Second), maxVisibility)
	})
}

// WithLinger sets how long a send or a delete waits for others to share its call, unless there are ten; the default is
// [DefaultLinger]. Zero sends at once, at the price of more calls.
func WithLinger(d time.Duration) Option { return option(func(c *config) { c.linger = max(d, 0) }) }

// WithReceivers bounds how many calls of one subscription wait for messages at once; the default is [DefaultReceivers], less
// than 1 counts as 1. An idle subscription has one.
func WithReceivers(n int) Option { return option(func(c *config) { c.receivers = max(n, 1) }) }

// WithLongPoll sets how long a call waits for messages, in whole seconds up to 20; the default is 20 s. Shorter means more
// calls of an idle subscription.
func WithLongPoll(d time.Duration) Option {
	return option(func(c *config) { c.poll = min(time.Duration(seconds(d))*time.Second, longPoll) })
}

// WithMessageBytes sets the size of the largest message, attributes included, for queues that allow less than
// [DefaultMessageBytes], or [FanoutMessageBytes] behind SNS. A queue that allows less than this is refused.
func WithMessageBytes(n int) Option { return option(func(c *config) { c.messageBytes = n }) }

// WithLogger sets where warnings go: drift of configuration, calls that failed and are repeated. The default is silent.
func WithLogger(log *slog.Logger) Option {
	return option(func(c *config) {
		if log != nil {
			c.log = log
		}
	})
}

// complete fills in what depends on other options, and reports every problem.
func (c *config) complete() error {
	errs := c.errs
	most := DefaultMessageBytes
	if c.topics != nil {
		most = FanoutMessageBytes
	} else if len(c.fanout) > 0 {
		errs = append(errs, errors.New("fan-out without a client for SNS"))
	}
	switch {
	case c.messageBytes == 0:
		c.messageBytes = most
	case c.messageBytes <= 2*packingReserve || c.messageBytes > most:
		errs = append(errs, fmt.Errorf("message bytes is %d, want more than %d, up to %d", c.messageBytes, 2*packingReserve, most))
	}
	if c.soleGroup != "" {
		if err := event.CheckName("sole group", c.soleGroup); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, c.checkQueues()...)...)
}

// checkQueues refuses two groups on one queue and two queues that one topic is to be sent to.
func (c *config) checkQueues() []error {
	var errs []error
	names := make(map[string]topicGroup)
	groups := make(map[string]string)
	for tg := range c.queues {
		name, err := c.queueName(tg.topic, tg.group)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, taken := names[name]; taken {
			errs = append(errs, fmt.Errorf("queue %q is given to group %q of topic %q and to group %q of topic %q: each needs a queue of its own",
				name, other.group, other.topic, tg.group, tg.topic))
		}
		names[name] = tg
		if other, taken := groups[tg.topic]; taken && !c.fansOut(tg.topic) {
			errs = append(errs, fmt.Errorf("topic %q has the groups %q and %q: put SNS before them with WithFanout", tg.topic, other, tg.group))
		}
		groups[tg.topic] = tg.group
	}
	return errs
}

func (c *config) fansOut(topic string) bool {
	return c.topics != nil && (len(c.fanout) == 0 || c.fanout[topic])
}

// groupOf returns the one group that a topic is sent to.
func (c *config) groupOf(topic string) (string, error) {
	for tg := range c.queues {
		if tg.topic == topic {
			return tg.group, nil
		}
	}
	if c.soleGroup == "" {
		return "", fmt.Errorf("no queue is known for topic %q: name its group with WithQueue or WithSoleGroup, or use WithFanout", topic)
	}
	return c.soleGroup, nil
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}\.fifo$`)

// queueName returns a queue's name, from its URL where that is what was given.
func (c *config) queueName(topic, group string) (string, error) {
	name := c.queues[topicGroup{topic, group}].Name
	if name == "" {
		name = topic + "_" + group + ".fifo"
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	if !queueName.MatchString(name) {
		return "", fmt.Errorf("queue %q of topic %q and group %q: a FIFO queue's name has up to 75 letters, digits, _ and -, and ends in .fifo", name, topic, group)
	}
	return name, nil
}

func (c *config) limits() transport.Limits {
	return transport.Limits{MessageBytes: c.messageBytes - packingReserve, Headers: maxHeaders}
}

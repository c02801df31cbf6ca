package memory

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// Mode says which broker a [Transport] behaves like. The zero Mode is the reference: no limits, no partitions, leases of live
// members that never end.
type Mode uint8

// The brokers of [WithStrict].
const (
	// SQS is a FIFO queue for each group of a topic.
	//   - Members receive batches of up to ten. A key is locked while any of its messages is in flight; after a failure
	//     the rest of that key's batch is handed back in order and other keys go on.
	//   - Every receive counts in Deliveries, also of what was handed back unseen.
	//   - A lease is a visibility timeout that the member renews every third of it, for 12 hours at most. A handler learns that
	//     its lease was lost at the next renewal, or when its ack is refused.
	//   - A delay is at most 12 hours less the time held, in whole seconds, rounded up.
	//   - A message has at most 1 MiB as it would be sent: see [transport.Limits]. A key has at most 128 bytes.
	//   - An id is accepted once in five minutes, whatever became of the message.
	SQS Mode = iota + 1
	// Kafka is a log of partitions, on which keys are placed as the Java client places them.
	//   - A partition belongs to one member of each group, which handles its keys in parallel. A member that joins, leaves
	//     or crashes moves as few partitions as it can; [Transport.Rebalance] moves all.
	//   - What is committed is the offset below which everything is finished. Whoever gets a partition is delivered everything
	//     from there on, also what was finished beyond it.
	//   - Deliveries counts from one again with every new owner: the broker keeps no count.
	//   - A delay is at most five minutes. Past 1,000 events behind failing keys, or 10,000 beyond the committed offset,
	//     the partition pauses.
	//   - A message has at most 1 MiB, nothing is deduplicated.
	Kafka
)

// The brokers' limits, as their documentation states them.
const (
	// SQSDedupWindow is how long a FIFO queue refuses an id that it has accepted.
	SQSDedupWindow = 5 * time.Minute
	// DefaultPartitions is the number of partitions of a topic in the mode [Kafka].
	DefaultPartitions = 4

	maxVisibility  = 12 * time.Hour
	maxReceive     = 10 // messages in one receive
	maxAttributes  = 10
	maxKafkaDelay  = 5 * time.Minute
	maxWaiting     = 1000   // events behind failing keys of one partition
	maxGap         = 10_000 // events of one partition beyond what is committed
	maxMessage     = 1 << 20
	maxGroupID     = 128
	sqsRetention   = 14 * 24 * time.Hour
	kafkaRetention = 7 * 24 * time.Hour
)

// WithStrict makes the transport behave like a broker, within what one process can show: its limits, its counting, its leases,
// its deduplication. The default is the reference behaviour, the same promises with nothing in their way. Use it to run a
// team's own tests as on the broker; it costs a timer for each message in flight ([SQS]) or a log for each group ([Kafka]).
// [WithLimits] and [WithDedupWindow] override what the mode says, and [WithLease] is the visibility timeout or session
// timeout. Durable stays false whatever the mode.
func WithStrict(m Mode) Option {
	return option(func(c *config) { c.mode = m })
}

// WithPartitions sets how many partitions a topic has in the mode [Kafka]; the default is [DefaultPartitions], less than 1
// counts as 1. Other modes have none.
func WithPartitions(n int) Option {
	return option(func(c *config) { c.partitions = max(n, 1) })
}

// finish fills in what the mode says and no option did.
func (c *config) finish() transport.Capabilities {
	caps, window := transport.Capabilities{Name: "memory"}, time.Duration(0)
	switch c.mode {
	case SQS:
		caps = transport.Capabilities{
			Name: "memory/sqs", MaxDelay: maxVisibility, LongestRedelivery: sqsRetention,
			Limits: transport.Limits{MessageBytes: maxMessage, KeyBytes: maxGroupID, Size: sqsSize},
		}
		window = SQSDedupWindow
	case Kafka:
		caps = transport.Capabilities{
			Name: "memory/kafka", MaxDelay: maxKafkaDelay, LongestRedelivery: kafkaRetention,
			Limits: transport.Limits{MessageBytes: maxMessage, Size: kafkaSize},
		}
	}
	if c.limits != nil {
		caps.Limits = *c.limits
	}
	if c.window == nil {
		c.window = &window
	}
	c.maxDelay = caps.MaxDelay
	return caps
}

func (t *Transport) newQueue() queue {
	switch t.cfg.mode {
	case SQS:
		return newFIFO(&t.cfg)
	case Kafka:
		return newLog(t)
	default:
		return newDirect(&t.cfg)
	}
}

// sqsSize returns what msg takes as SQS counts it: body, attribute names, types and values. Metadata travels as attributes if
// there are at most ten and SQS can carry them, else packed as JSON into one; a body that is empty or not text as base64.
func sqsSize(msg *message.Message) int {
	const kind = len("String")
	size, plain := 0, len(msg.Metadata)+2 <= maxAttributes // the message's UUID travels as one, room is left for another
	for name, value := range msg.Metadata {
		plain = plain && value != "" && isText(value) && isAttributeName(name)
		size += len(name) + kind + len(value)
	}
	if !plain {
		packed, err := json.Marshal(msg.Metadata)
		if err != nil { // never: strings always can be
			return maxMessage + 1
		}
		size = len("seambus_metadata") + kind + len(packed)
	}
	size += len(event.MetaID) + kind + len(msg.UUID)
	if len(msg.Payload) > 0 && isText(msg.Payload) {
		return size + len(msg.Payload)
	}
	return size + base64.StdEncoding.EncodedLen(len(msg.Payload)) + len("seambus_encoding") + kind + len("base64")
}

// isText reports whether SQS takes s as it is: XML 1.0's characters.
func isText[T ~string | ~[]byte](s T) bool {
	text := string(s)
	if !utf8.ValidString(text) {
		return false
	}
	for _, r := range text {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff {
			return false
		}
	}
	return true
}

func isAttributeName(name string) bool {
	for _, r := range name {
		if (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.' {
			return false
		}
	}
	return name != "" && len(name) <= 256
}

// kafkaSize returns what msg takes at most as a record in a batch of its own: key, value, headers and their lengths.
func kafkaSize(msg *message.Message) int {
	const batch, lengths = 61 + 21, 10
	size := batch + len(transport.Key(msg)) + len(msg.Payload) + len(event.MetaID) + len(msg.UUID) + lengths
	for name, value := range msg.Metadata {
		size += len(name) + len(value) + lengths
	}
	return size
}

// Package chaos makes happen on purpose what happens to every system some day. It only adds: the input stays as it is, so
// that what comes out must be the same as without.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// Kind is a kind of fault.
type Kind string

// The kinds, each of which must happen at least once in a run with chaos.
const (
	ProducerRetry  Kind = "producer_retry"  // the producer sends again what it has sent
	Redelivery     Kind = "redelivery"      // the broker delivers again
	ConsumerCrash  Kind = "consumer_crash"  // the consumer is gone between commit and ack
	RelayCrash     Kind = "relay_crash"     // the relay is gone between publish and mark
	LateEvent      Kind = "late_event"      // an older event comes late, under a new id
	FailedAttempt  Kind = "failed_attempt"  // the handler fails once
	ContractBreach Kind = "contract_breach" // somebody sends what nobody agreed on
)

// every says how rare a kind is: one of so many events.
var every = map[Kind]uint64{
	ProducerRetry: 97, Redelivery: 61, ConsumerCrash: 151, RelayCrash: 1009, LateEvent: 83, FailedAttempt: 71, ContractBreach: 499,
}

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{ProducerRetry, Redelivery, ConsumerCrash, RelayCrash, LateEvent, FailedAttempt, ContractBreach}
}

var (
	errFailed = errors.New("chaos: the attempt failed")
	errKilled = errors.New("chaos: the relay was killed before it could mark")
)

// Chaos chooses events by a hash of their ids and the seed, so that a run can be repeated, and counts what it did.
type Chaos struct {
	seed   uint64
	broker *memory.Transport
	topic  string
	group  string

	mu     sync.Mutex
	counts map[Kind]int
	done   map[Kind]map[string]bool
	kill   context.CancelFunc // the relay's
}

// New returns chaos for the deliveries of topic to group.
func New(seed uint64, broker *memory.Transport, topic, group string) *Chaos {
	c := &Chaos{
		seed: seed, broker: broker, topic: topic, group: group,
		counts: make(map[Kind]int), done: make(map[Kind]map[string]bool),
	}
	for _, k := range Kinds() {
		c.counts[k] = 0
		c.done[k] = make(map[string]bool)
	}
	return c
}

// Strikes reports whether the event called id is to meet a fault of this kind now, and counts it. Each event meets a kind once;
// the first event asked about meets every kind, so that a small run sees them all.
func (c *Chaos) Strikes(k Kind, id string) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s/%s", c.seed, k, id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done[k][id] || c.counts[k] > 0 && h.Sum64()%every[k] != 0 {
		return false
	}
	c.done[k][id] = true
	c.counts[k]++
	return true
}

// Counts returns how often each kind happened.
func (c *Chaos) Counts() map[Kind]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// Relay tells which relay is running: kill ends it as if its process were gone.
func (c *Chaos) Relay(kill context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill = kill
}

// Consumer is middleware outside the handler's transaction.
func (c *Chaos) Consumer(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		id := msg.UUID
		if c.Strikes(FailedAttempt, id) {
			return nil, errFailed
		}
		out, err := next(msg)
		if err != nil {
			return out, err
		}
		if c.Strikes(ConsumerCrash, id) { // the transaction is committed; the ack will come to nothing
			c.broker.ExpireLease(c.topic, c.group, id)
		}
		if c.Strikes(LateEvent, id) {
			late := msg.Copy()
			late.UUID = "late-" + id
			late.Metadata[event.MetaID] = late.UUID
			if err := c.broker.Publisher().Publish(c.topic, late); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

// Broker is the transport with a publisher that repeats, breaks the contract, and kills the relay that is using it.
type Broker struct {
	*memory.Transport
	chaos *Chaos
}

// Around returns the transport that the relay is to use.
func (c *Chaos) Around(t *memory.Transport) *Broker { return &Broker{Transport: t, chaos: c} }

var _ transport.Transport = (*Broker)(nil)

// Publisher publishes everything it is given, and more.
func (b *Broker) Publisher() message.Publisher { return publisher{b.Transport.Publisher(), b.chaos} }

type publisher struct {
	message.Publisher
	chaos *Chaos
}

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	var more []*message.Message
	crash := false
	for _, m := range msgs {
		if topic != p.chaos.topic {
			break
		}
		if p.chaos.Strikes(Redelivery, m.UUID) {
			more = append(more, m.Copy())
		}
		if p.chaos.Strikes(ContractBreach, m.UUID) {
			more = append(more, message.NewMessage("breach-"+m.UUID, []byte("\x00 not what we agreed on")))
		}
		crash = p.chaos.Strikes(RelayCrash, m.UUID) || crash
	}
	err := p.Publisher.Publish(topic, msgs...)
	if err == nil && len(more) > 0 {
		err = p.Publisher.Publish(topic, more...)
	}
	if err == nil && crash {
		p.chaos.mu.Lock()
		p.chaos.kill()
		p.chaos.mu.Unlock()
		return errKilled
	}
	return err
}

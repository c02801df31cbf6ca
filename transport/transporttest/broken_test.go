package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
	"github.com/seambus/seambus/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is the memory transport with a fault of one kind.
type faulty struct {
	*memory.Transport
	pub    func(message.Publisher) message.Publisher
	member func(transport.Subscriber) transport.Subscriber
}

func (f *faulty) Publisher() message.Publisher {
	if f.pub == nil {
		return f.Transport.Publisher()
	}
	return f.pub(f.Transport.Publisher())
}

func (f *faulty) Subscriber(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	s, err := f.Transport.Subscriber(cfg)
	if err == nil && f.member != nil {
		s = f.member(s)
	}
	return s, err
}

type publishFunc func(topic string, msgs ...*message.Message) error

func (p publishFunc) Publish(topic string, msgs ...*message.Message) error { return p(topic, msgs...) }
func (publishFunc) Close() error                                           { return nil }

// relayed is a member between whose broker and handler something happens.
type relayed struct {
	transport.Subscriber
	through func(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message)
}

func (r relayed) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := r.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go r.through(ctx, in, out) // never closed: a case ends by its context
	return out, nil
}

// Each fault is caught by the case that names it.
func TestBrokenTransportsAreCaughtByName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		fault  string
		caught string // the case
		says   string
		make   func(*memory.Transport) *faulty
	}{
		{"loses", "order per key under 16 publishers", "lost", loses},
		{"reorders", "order per key under 16 publishers", "reordered", reorders},
		{"repeats for ever", "what failed before is not repeated for ever", "again after its ack", repeats},
		{"ignores leases", "a lost lease cancels the handler and ignores its ack", "context of a lost lease", ignoresLeases},
		{"lets later events pass a nack", "a nack redelivers before the later events of its key while others go on", "", dropsNacks},
		{"delivers keys one after the other", "keys are in flight at once", "in flight at once", serial},
		{"swallows publish errors", "a failed publish names what failed and nothing later of its key is sent", "PublishError", swallows},
		{"ignores the publisher's context", "a publish whose context has ended is refused", "want context", ignoresContext},
		{"changes headers", "bytes and headers arrive unchanged", "header", dropsEmpty},
		{"forgets delays", "a nack waits for its delay", "no sooner than", forgetsDelays},
		{"counts no deliveries", "deliveries are counted", "want 2", forgetsDelays},
		{"forgets delays, in the script", scriptCase, "too soon", forgetsDelays},
		{"lets later events pass a nack, in the script", scriptCase, "failure script", dropsNacks},
		{"changes headers, in the script", scriptCase, "failure script", dropsDead},
		{"settles what no group has seen", "settled means acknowledged by every group", "settled while", settlesEarly},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			t.Parallel()
			h := transporttest.Harness{
				Unit: time.Second,
				Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
					if first != nil {
						return first, nil
					}
					return tc.make(memory.New(memory.WithLimits(transport.Limits{MessageBytes: 10_000}))), nil
				},
				ExpireLease: func(transport.Transport, string, string, string) error { return nil }, // nobody tells the handler
			}
			synctest.Test(t, func(t *testing.T) {
				err := transporttest.Check(t.Context(), h, caseNamed(t, tc.caught))
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("case %q gave %v, want an error that says %q", tc.caught, err, tc.says)
				}
			})
		})
	}
}

// A call that never returns fails its case by name, and does not keep the test binary until its end.
func TestTransportThatHangsIsCaught(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	defer close(stuck)
	for name, c := range map[string]transporttest.Case{
		"publish": caseNamed(t, "a delivery says where it came from"),
		"close":   caseNamed(t, "close is idempotent, concurrent and works before subscribing"),
		"drain":   caseNamed(t, "drain lets handlers finish and takes nothing in"),
	} {
		h := memoryHarness(func() transport.Transport {
			return &faulty{
				Transport: memory.New(),
				pub: func(p message.Publisher) message.Publisher {
					return publishFunc(func(topic string, msgs ...*message.Message) error {
						if name == "publish" {
							<-stuck
						}
						return p.Publish(topic, msgs...)
					})
				},
				member: func(s transport.Subscriber) transport.Subscriber { return stuckMember{s, name, stuck} },
			}
		})
		h.Unit, h.Patience = time.Millisecond/2, time.Millisecond
		if err := transporttest.Check(t.Context(), h, c); err == nil || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("%s: gave %v", name, err)
		}
	}
}

// stuckMember does not come back from one call.
type stuckMember struct {
	transport.Subscriber
	call  string
	stuck chan struct{}
}

func (m stuckMember) Drain(ctx context.Context) error {
	if m.call == "drain" {
		<-m.stuck
	}
	return m.Subscriber.Drain(ctx)
}

func (m stuckMember) Close() error {
	if m.call == "close" {
		<-m.stuck
	}
	return m.Subscriber.Close()
}

// Of a transport that says it has limits for keys and headers both are tried.
func TestLimitsThatAreStatedAndNotKeptAreCaught(t *testing.T) {
	t.Parallel()
	for want, limits := range map[string]transport.Limits{
		"partition key bytes": {MessageBytes: 10_000, KeyBytes: 64},
		"headers":             {MessageBytes: 10_000, Headers: 20},
	} {
		h := memoryHarness(func() transport.Transport {
			return overstated{memory.New(memory.WithLimits(transport.Limits{MessageBytes: 10_000})), limits}
		}, transporttest.Limits)
		synctest.Test(t, func(t *testing.T) {
			err := transporttest.Check(t.Context(), h, caseNamed(t, "the largest message arrives and a larger one is refused by name"))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("gave %v, want an error that says %q", err, want)
			}
		})
	}
}

// overstated says that it has limits which it does not keep.
type overstated struct {
	*memory.Transport
	limits transport.Limits
}

func (o overstated) Capabilities() transport.Capabilities {
	caps := o.Transport.Capabilities()
	caps.Limits = o.limits
	return caps
}

func caseNamed(t *testing.T, name string) transporttest.Case {
	t.Helper()
	for _, c := range transporttest.Cases() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no case %q", name)
	return transporttest.Case{}
}

func loses(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			if msgs[0].UUID == "3/49" { // the last one of a key: no later one betrays it
				return nil
			}
			return p.Publish(topic, msgs...)
		})
	}}
}

func reorders(b *memory.Transport) *faulty {
	var mu sync.Mutex
	kept := make(map[string]*message.Message)
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range msgs {
				if _, n, _ := strings.Cut(m.UUID, "/"); n == "7" {
					kept[transport.Key(m)] = m
					continue
				}
				if err := p.Publish(topic, m); err != nil {
					return err
				}
				if late := kept[transport.Key(m)]; late != nil {
					delete(kept, transport.Key(m))
					if err := p.Publish(topic, late); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}}
}

func repeats(b *memory.Transport) *faulty {
	return &faulty{Transport: b, member: func(s transport.Subscriber) transport.Subscriber {
		return relayed{s, func(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
			for m := range in {
				for range 5 {
					again := m.CopyWithContext()
					if !handOver(ctx, out, again) {
						return
					}
				}
				m.Ack()
			}
		}}
	}}
}

func ignoresLeases(b *memory.Transport) *faulty { return &faulty{Transport: b} }

func dropsNacks(b *memory.Transport) *faulty {
	return &faulty{Transport: b, member: func(s transport.Subscriber) transport.Subscriber {
		return relayed{s, func(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
			for m := range in {
				c := m.CopyWithContext()
				go func() {
					if handOver(ctx, out, c) {
						m.Ack()
					}
				}()
			}
		}}
	}}
}

// handOver gives m away and waits for its verdict. It reports false if ctx ended before.
func handOver(ctx context.Context, out chan<- *message.Message, m *message.Message) bool {
	select {
	case out <- m:
	case <-ctx.Done():
		return false
	}
	select {
	case <-m.Acked():
	case <-m.Nacked():
	case <-ctx.Done():
		return false
	}
	return true
}

func serial(b *memory.Transport) *faulty {
	return &faulty{Transport: b, member: func(s transport.Subscriber) transport.Subscriber {
		return relayed{s, func(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
			for m := range in {
				if !handOver(ctx, out, m) {
					return
				}
			}
		}}
	}}
}

func swallows(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			_ = p.Publish(topic, msgs...)
			return nil
		})
	}}
}

func ignoresContext(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			for i, m := range msgs {
				msgs[i] = m.Copy()
			}
			return p.Publish(topic, msgs...)
		})
	}}
}

func dropsEmpty(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			for _, m := range msgs {
				for k, v := range m.Metadata {
					if v == "" {
						delete(m.Metadata, k)
					}
				}
			}
			return p.Publish(topic, msgs...)
		})
	}}
}

// forgetsDelays passes on copies that have a delivery of their own, and so keeps neither delay nor count.
func forgetsDelays(b *memory.Transport) *faulty {
	return &faulty{Transport: b, member: func(s transport.Subscriber) transport.Subscriber {
		return relayed{s, func(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
			for m := range in {
				d, _ := transport.FromContext(m.Context())
				c := m.Copy()
				c.SetContext(transport.WithDelivery(m.Context(), &transport.Delivery{
					Topic: d.Topic, Group: d.Group, Key: d.Key, Partition: -1, Deliveries: 1,
				}))
				go func() {
					if !handOver(ctx, out, c) {
						return
					}
					select {
					case <-c.Acked():
						m.Ack()
					default:
						m.Nack()
					}
				}()
			}
		}}
	}}
}

// dropsDead loses what a dead letter says.
func dropsDead(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			for _, m := range msgs {
				delete(m.Metadata, event.MetaDeadClass)
			}
			return p.Publish(topic, msgs...)
		})
	}}
}

func settlesEarly(b *memory.Transport) *faulty {
	return &faulty{Transport: b, pub: func(p message.Publisher) message.Publisher {
		return publishFunc(func(topic string, msgs ...*message.Message) error {
			for i, m := range msgs {
				if fn := transport.Settled(m.Context()); fn != nil {
					fn()
					msgs[i] = m.Copy()
				}
			}
			return p.Publish(topic, msgs...)
		})
	}}
}

const scriptCase = "the failure script leaves the same trace as everywhere"

func memoryHarness(make func() transport.Transport, declares ...transporttest.Feature) transporttest.Harness {
	return transporttest.Harness{
		Unit: time.Second, Declares: declares,
		Open: func(_ context.Context, first transport.Transport) (transport.Transport, error) {
			if first != nil {
				return first, nil
			}
			return make(), nil
		},
		ExpireLease: func(transport.Transport, string, string, string) error { return nil },
		Crash:       func(transport.Transport, string) error { return nil },
		Restart:     func(context.Context) error { return errors.New("cannot be restarted") },
	}
}

func TestHarnessThatIsIncompleteOrDeclaresTheUnknownIsRefusedByName(t *testing.T) {
	t.Parallel()
	err := transporttest.Validate(transporttest.Harness{Declares: []transporttest.Feature{
		transporttest.Leases, transporttest.Restart, transporttest.Crash, "telepathy",
	}})
	for _, want := range []string{`"leases"`, `"restart"`, `"crash"`, `"telepathy"`, "Open is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s: %v", want, err)
		}
	}
}

// For every capability: a harness that declares it over a transport that lacks it fails with the capability's name.
func TestDeclaredCapabilityThatTheTransportLacksFailsByName(t *testing.T) {
	t.Parallel()
	plain := func() transport.Transport { return memory.New() }
	broken := func(fault func(*memory.Transport) *faulty) func() transport.Transport {
		return func() transport.Transport { return fault(memory.New()) }
	}
	lacking := map[transporttest.Feature]func() transport.Transport{
		transporttest.Bytes:      broken(dropsEmpty),
		transporttest.Delay:      broken(forgetsDelays),
		transporttest.Deliveries: broken(forgetsDelays),
		transporttest.Leases:     plain, // whose harness ends no lease
		transporttest.Crash:      plain,
		transporttest.Restart:    plain,
		transporttest.Settled:    broken(settlesEarly),
		transporttest.Limits:     plain,
	}
	tested := make(map[transporttest.Feature]bool)
	for _, c := range transporttest.Cases() {
		if c.Needs == "" {
			continue
		}
		tested[c.Needs] = true
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			h := memoryHarness(lacking[c.Needs], c.Needs)
			synctest.Test(t, func(t *testing.T) {
				err := transporttest.Check(t.Context(), h, c)
				if want := fmt.Sprintf("capability %q", c.Needs); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("gave %v, want an error that says %s", err, want)
				}
			})
		})
	}
	for _, f := range transporttest.Features() {
		if !tested[f] {
			t.Errorf("no case needs capability %q", f)
		}
	}
}

// What a transport says of itself and a harness does not declare would be skipped in silence.
func TestCapabilityThatIsThereAndNotDeclaredFailsByName(t *testing.T) {
	t.Parallel()
	limited := func() transport.Transport { return memory.New(memory.WithStrict(memory.SQS)) }
	c := caseNamed(t, "the harness declares what the transport says of itself")
	synctest.Test(t, func(t *testing.T) {
		err := transporttest.Check(t.Context(), memoryHarness(limited), c)
		for _, want := range []string{`capability "limits"`, `capability "settled"`} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error lacks %s: %v", want, err)
			}
		}
		if err := transporttest.Check(t.Context(), memoryHarness(limited, transporttest.Limits, transporttest.Settled), c); err != nil {
			t.Error(err)
		}
	})
}

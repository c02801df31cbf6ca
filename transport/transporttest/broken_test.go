package transporttest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

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

func TestHarnessThatDeclaresWhatItLacksFailsByName(t *testing.T) {
	t.Parallel()
	err := transporttest.Validate(transporttest.Harness{Declares: []transporttest.Feature{transporttest.Leases, transporttest.Restart}})
	for _, want := range []string{`"leases"`, `"restart"`, "Open is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s: %v", want, err)
		}
	}
}

// A transport that declares limits and has none fails with that capability's name.
func TestDeclaredCapabilityThatTheTransportLacks(t *testing.T) {
	t.Parallel()
	h := transporttest.Harness{
		Unit: time.Second,
		Open: func(context.Context, transport.Transport) (transport.Transport, error) { return memory.New(), nil },
	}
	synctest.Test(t, func(t *testing.T) {
		c := caseNamed(t, "the largest message arrives and a larger one is refused by name")
		if err := transporttest.Check(t.Context(), h, c); err == nil || c.Needs != transporttest.Limits {
			t.Errorf("case gave %v", err)
		}
	})
}

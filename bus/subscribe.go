package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
)

// handlerFunc is a typed handler behind its type.
type handlerFunc func(ctx context.Context, e event.Event) error

// subscription is one group's handling of one topic in this process.
type subscription struct {
	topic         *event.Topic
	group         string
	handlers      map[string]handlerFunc // by wire name; nil means ignored
	decoder       event.Decoder
	ignoreUnknown bool
	shared        shared
	errs          []error
}

func (s *subscription) name() string { return s.topic.Name() + "/" + s.group }

// Handle handles one event type of topic for group. Several calls for one topic and group make one subscription. Every
// type of the topic must be handled or ignored before Run; all problems are collected and reported by [Bus.Run] at once.
// The handler may be called concurrently, never for two events of one key at a time.
func Handle[E event.Event](
	b *Bus, topic *event.Topic, group string, fn func(context.Context, E) error, opts ...SubscribeOption,
) {
	Subscribe(b, topic, group, append([]SubscribeOption{On(fn)}, opts...)...)
}

// Subscribe handles several event types of topic for group, in their order: give it an [On] or [Ignore] for each type.
// Problems are collected and reported by [Bus.Run]; a call after Run has begun is logged, and reported when Run ends.
func Subscribe(b *Bus, topic *event.Topic, group string, opts ...SubscribeOption) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case topic == nil:
		b.problems = append(b.problems, fmt.Errorf("subscribe group %q: topic is nil", group))
		return
	case b.started:
		err := fmt.Errorf("subscribe %s/%s: %w", topic.Name(), group, ErrStarted)
		b.config.logger.Error("subscription ignored", "error", err)
		b.late = append(b.late, err)
		return
	}
	s := b.subscription(topic, group)
	for _, o := range opts {
		if o != nil {
			o.applySubscription(s)
		}
	}
}

// subscription finds or makes the subscription of topic and group.
func (b *Bus) subscription(topic *event.Topic, group string) *subscription {
	for _, s := range b.subs {
		if s.topic.Name() != topic.Name() || s.group != group {
			continue
		}
		if s.topic != topic {
			s.errs = append(s.errs, fmt.Errorf("two topics are named %q", topic.Name()))
		}
		return s
	}
	s := &subscription{topic: topic, group: group, handlers: make(map[string]handlerFunc), shared: b.config.shared}
	b.subs = append(b.subs, s)
	return s
}

// On handles the events of type E with fn.
func On[E event.Event](fn func(context.Context, E) error) SubscribeOption {
	return subscribeOption(func(s *subscription) {
		if fn == nil {
			s.errs = append(s.errs, fmt.Errorf("handler of %s is nil", reflect.TypeFor[E]()))
			return
		}
		s.add(reflect.TypeFor[E](), func(ctx context.Context, e event.Event) error {
			v, ok := e.(E)
			if !ok {
				return event.Contract(fmt.Errorf("bus: decoded %T, the handler wants %s", e, reflect.TypeFor[E]()))
			}
			return fn(ctx, v)
		})
	})
}

// Ignore acknowledges the events of type E without calling anything.
func Ignore[E event.Event]() SubscribeOption {
	return subscribeOption(func(s *subscription) { s.add(reflect.TypeFor[E](), nil) })
}

func (s *subscription) add(rt reflect.Type, h handlerFunc) {
	wire, ok := s.topic.TypeName(rt)
	if !ok {
		s.errs = append(s.errs, fmt.Errorf("%s: %w: topic %q has %v", rt, event.ErrUnknownType, s.topic.Name(), s.topic.Types()))
		return
	}
	if _, taken := s.handlers[wire]; taken {
		s.errs = append(s.errs, fmt.Errorf("%q is handled or ignored twice", wire))
		return
	}
	s.handlers[wire] = h
}

// validate returns every problem of the subscription, each named with it.
func (s *subscription) validate() error {
	errs := append([]error{event.CheckName("group", s.group)}, s.errs...)
	if s.shared.durable && s.shared.inbox == nil {
		errs = append(errs, errors.New("durable attempts need an inbox: add bus.WithInbox"))
	}
	if s.shared.onDead == HoldKey && s.shared.inbox == nil {
		errs = append(errs, errors.New("holding a key needs an inbox to park its events in: add bus.WithInbox"))
	}
	if s.shared.onDead == HoldKey && s.shared.deadLetters != nil {
		errs = append(errs, errors.New("holding a key keeps its dead letters in the inbox: leave out bus.WithDeadLetters"))
	}
	for _, wire := range s.topic.Types() {
		if _, ok := s.handlers[wire]; !ok {
			errs = append(errs, fmt.Errorf("%q is neither handled nor ignored: add bus.On or bus.Ignore for it", wire))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("subscription %s: %w", s.name(), err)
	}
	return nil
}

// handle is the innermost link of the chain: decode, then call the typed handler.
func (s *subscription) handle(msg *message.Message) ([]*message.Message, error) {
	env, err := event.Of(msg)
	if err != nil {
		return nil, err
	}
	e, err := s.topic.Decode(env)
	if err != nil {
		return nil, err
	}
	h, ok := s.handlers[env.Type]
	if !ok || h == nil {
		return nil, event.Contract(fmt.Errorf("bus: %q has no handler in %s: %w", env.Type, s.name(), event.ErrUnknownType))
	}
	return nil, h(msg.Context(), e)
}

// ignores reports whether the event is acknowledged unseen.
func (s *subscription) ignores(env *event.Envelope) bool {
	h, known := s.handlers[env.Type]
	return known && h == nil || !known && s.ignoreUnknown
}

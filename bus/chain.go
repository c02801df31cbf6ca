package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// deadLetterTopic is where a subscription's dead letters go when there is no inbox to keep them.
func deadLetterTopic(topic, group string) string { return topic + "_" + group + "_dead" }

// chain assembles the one order in which the middleware is right; see the package comment. It reports every setting that
// the middleware or the transport refuses.
func (b *Bus) chain(s *subscription) (message.HandlerFunc, error) {
	retry, err := middleware.Retry(s.shared.retry)
	errs := []error{err, b.checkDelay(s), b.checkRetention(s)}
	links := []message.HandlerMiddleware{
		middleware.Recover(),
		s.envelope,
		middleware.Trace(b.config.tracer),
		b.parkLongDelays(s),
		middleware.DeadLetter(b.deadLetters(s), middleware.WithHandler(s.name())),
		retry,
		middleware.Attempts(s.attempts()),
	}
	links = append(links, s.shared.middleware...)
	if s.shared.inbox != nil {
		links = append(links, s.shared.inbox.Middleware(s.group))
	} else {
		links = append(links, middleware.Dedup(middleware.NewMemoryDedup(DefaultDedupTTL, DefaultDedupMax)))
	}
	if s.shared.timeout > 0 {
		links = append(links, middleware.Timeout(s.shared.timeout))
	}
	links = append(links, middleware.Recover())
	links = append(links, s.shared.inner...)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("subscription %s: %w", s.name(), err)
	}
	h := message.HandlerFunc(s.handle)
	for _, link := range slices.Backward(links) {
		h = link(h)
	}
	return h, nil
}

// parkLongDelays takes an event whose next attempt is further away than the transport can keep it out of the stream, and its
// key with it: the inbox brings it back when its time has come, and what came of its key meanwhile behind it.
func (b *Bus) parkLongDelays(s *subscription) message.HandlerMiddleware {
	most := b.transport.Capabilities().MaxDelay
	return func(next message.HandlerFunc) message.HandlerFunc {
		if most == 0 || s.shared.inbox == nil {
			return next
		}
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := next(msg)
			d, ok := transport.FromContext(msg.Context())
			if err == nil || !ok || d.Delay() <= most || msg.Context().Err() != nil {
				return out, err
			}
			parked, parkErr := s.shared.inbox.Delay(msg, d.Delay())
			switch {
			case parkErr != nil:
				d.SetDelay(most) // as far as it goes; the next attempt may come too soon, but it comes
				return nil, errors.Join(err, parkErr)
			case parked:
				return nil, nil
			default:
				return nil, err
			}
		}
	}
}

// checkDelay refuses a retry schedule that the transport cannot keep and no inbox can either.
func (b *Bus) checkDelay(s *subscription) error {
	caps := b.transport.Capabilities()
	if longest := s.shared.retry.Longest(); caps.MaxDelay > 0 && longest > caps.MaxDelay && s.shared.inbox == nil {
		return fmt.Errorf("retry delay of up to %v exceeds the %v that transport %q can keep: lower MaxDelay, or add bus.WithInbox, "+
			"which parks events for longer", longest, caps.MaxDelay, caps.Name)
	}
	return nil
}

// checkRetention refuses an inbox that forgets ids while the broker may still deliver their events again.
func (b *Bus) checkRetention(s *subscription) error {
	caps := b.transport.Capabilities()
	if in := s.shared.inbox; in != nil && in.Retention() < caps.LongestRedelivery {
		return fmt.Errorf("the inbox forgets ids after %v, transport %q may deliver again for %v: raise inbox.WithRetention",
			in.Retention(), caps.Name, caps.LongestRedelivery)
	}
	return nil
}

func (s *subscription) attempts() middleware.AttemptStore {
	if s.shared.durable && s.shared.inbox != nil {
		return inboxAttempts{s.shared.inbox}
	}
	return middleware.NewMemoryAttempts()
}

// inboxAttempts counts in an inbox, which knows nothing of middleware.
type inboxAttempts struct{ in *inbox.Inbox }

func (a inboxAttempts) Begin(ctx context.Context, k middleware.Key) (int, error) {
	return a.in.BeginAttempt(ctx, k.Group, k.Source, k.ID)
}

func (a inboxAttempts) GiveBack(ctx context.Context, k middleware.Key) error {
	return a.in.GiveBackAttempt(ctx, k.Group, k.Source, k.ID)
}

func (a inboxAttempts) Forget(ctx context.Context, k middleware.Key) error {
	return a.in.ForgetAttempts(ctx, k.Group, k.Source, k.ID)
}

func (a inboxAttempts) FirstAttempt(ctx context.Context, k middleware.Key) (time.Time, error) {
	_, began, err := a.in.AttemptHistory(ctx, k.Group, k.Source, k.ID)
	return began, err
}

func (a inboxAttempts) Failed(ctx context.Context, k middleware.Key, f event.Failure) error {
	return a.in.NoteFailure(ctx, k.Group, k.Source, k.ID, f)
}

func (a inboxAttempts) Failures(ctx context.Context, k middleware.Key) ([]event.Failure, error) {
	h, _, err := a.in.AttemptHistory(ctx, k.Group, k.Source, k.ID)
	return h, err
}

func (b *Bus) deadLetters(s *subscription) event.DeadLetters {
	switch {
	case s.shared.deadLetters != nil:
		return s.shared.deadLetters
	case s.shared.inbox != nil && s.shared.onDead == HoldKey:
		return s.shared.inbox.Hold()
	case s.shared.inbox != nil:
		return s.shared.inbox
	default:
		return middleware.PublishDeadLetters(b.publisher, deadLetterTopic(s.topic.Name(), s.group))
	}
}

// envelope parses the message once for the whole chain and acknowledges what the subscription ignores. A message that was
// taken back on its way here is nobody's attempt.
func (s *subscription) envelope(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if ctx := msg.Context(); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		event.Attach(msg, s.decoder)
		if env, err := event.Of(msg); err == nil && s.ignores(env) {
			return nil, nil
		}
		return next(msg)
	}
}

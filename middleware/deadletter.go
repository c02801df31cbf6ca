package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/transport"
)

// DeadLetterOption configures [DeadLetter].
type DeadLetterOption interface{ applyDeadLetter(*deadLetter) }

type deadLetterOption func(*deadLetter)

func (o deadLetterOption) applyDeadLetter(d *deadLetter) { o(d) }

// WithHandler names the handler in the letters. The default is the name that the router knows it by.
func WithHandler(name string) DeadLetterOption {
	return deadLetterOption(func(d *deadLetter) { d.handler = name })
}

// WithPutTimeout bounds writing a letter; the default is 10 seconds.
func WithPutTimeout(t time.Duration) DeadLetterOption {
	return deadLetterOption(func(d *deadLetter) { d.timeout = t })
}

// pausePut is how long a message waits whose letter could not be written.
const pausePut = 5 * time.Second

type deadLetter struct {
	store   event.DeadLetters
	handler string
	timeout time.Duration
}

// DeadLetter gives up what cannot be handled: a permanent error, a contract break, or one that [Retry] has spent all
// attempts on. It writes a letter about a copy of the message, and only then is the message acknowledged; if the letter
// cannot be written the message stays, and is tried again 5 seconds later. The write has a deadline of its own and does not see the handler's context. A handler
// that was cut off by shutdown or a lost lease is never given up.
//
// Without a Retry around or inside it, every error is final. Inside a Retry, where it does not belong, it waits for that
// Retry's last attempt.
func DeadLetter(store event.DeadLetters, opts ...DeadLetterOption) message.HandlerMiddleware {
	d := &deadLetter{store: store, timeout: 10 * time.Second}
	for _, o := range opts {
		o.applyDeadLetter(d)
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			c, outer := callOf(msg), msg.Context()
			out, err := next(msg)
			if err == nil {
				return out, nil
			}
			if cutOff(outer) || !c.isFinal(err) {
				return nil, err
			}
			msg.SetContext(outer)
			return nil, d.put(msg, c, err)
		}
	}
}

// isFinal reports whether no attempt follows err.
func (c *call) isFinal(err error) bool {
	if isUncounted(err) {
		return false
	}
	if errors.Is(err, event.ErrPermanent) || !c.retries {
		return true
	}
	if _, spent := errors.AsType[*ExhaustedError](err); spent {
		return true
	}
	attempt := int(c.attempt.Load())
	return attempt >= c.maxAttempts && attempt > 0
}

func (d *deadLetter) put(msg *message.Message, c *call, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), d.timeout)
	defer cancel()
	if putErr := d.store.Put(ctx, d.letter(msg, c, err)); putErr != nil {
		pause(msg.Context(), pausePut)
		return fmt.Errorf("middleware: dead letter of %.80q: %w", msg.UUID, putErr)
	}
	c.final()
	return nil
}

func (d *deadLetter) letter(msg *message.Message, c *call, err error) *event.DeadLetter {
	ctx := msg.Context()
	letter := &event.DeadLetter{
		Message: msg.Copy(), Topic: topicOf(ctx), Group: groupOf(ctx), Handler: d.handler,
		ID: msg.UUID, Key: transport.Key(msg), Class: event.Class(err), Attempts: max(int(c.attempt.Load()), 1),
		FirstAttempt: c.began(ctx), Time: time.Now().UTC(), History: c.history(ctx),
	}
	if letter.Handler == "" {
		letter.Handler = message.HandlerNameFromCtx(ctx)
	}
	if spent, ok := errors.AsType[*ExhaustedError](err); ok {
		letter.Attempts = spent.Attempts
		err = spent.Err
	}
	letter.Reason = errtext.Clean(err)
	if env, envErr := event.Of(msg); envErr == nil {
		letter.ID, letter.Source, letter.Key = env.ID, env.Source, env.PartitionKey
	}
	if delivery, ok := transport.FromContext(ctx); ok && letter.Key == "" {
		letter.Key = delivery.Key // the broker knows what the message does not say
	}
	if letter.Class == event.ClassContract && msg.Metadata[event.MetaID] == "" {
		letter.ID = foreignID(letter.ID, msg.Payload)
	}
	return letter
}

// foreignID tells apart the letters about messages from producers who keep no contract, and so may have given the same id,
// or none, to different messages; of one message it is always the same.
func foreignID(id string, payload []byte) string {
	sum := sha256.Sum256(payload)
	const room = event.MaxIDBytes - 1 - 2*8
	return strings.ToValidUTF8(id[:min(len(id), room)], "") + "#" + hex.EncodeToString(sum[:8])
}

// PublishDeadLetters keeps letters on a topic of pub: the message with its bytes and metadata, its key, and what happened
// in additional metadata. Where that makes the message exceed a limit of the transport it is kept as it was delivered: a
// letter that does not say why is better than a message that can never leave. Put ends when its context does, if pub honours
// its messages' contexts.
func PublishDeadLetters(pub message.Publisher, topic string) event.DeadLetters {
	return &letterPublisher{pub: pub, topic: topic}
}

type letterPublisher struct {
	pub   message.Publisher
	topic string
}

func (p *letterPublisher) Put(ctx context.Context, letter *event.DeadLetter) error {
	err := p.publish(ctx, letter.Annotated())
	if errors.Is(err, transport.ErrTooLarge) {
		err = p.publish(ctx, letter.Message.Copy())
	}
	if err != nil {
		return fmt.Errorf("publish to %q: %w", p.topic, err)
	}
	return nil
}

func (p *letterPublisher) publish(ctx context.Context, msg *message.Message) error {
	msg.SetContext(ctx)
	return p.pub.Publish(p.topic, msg)
}

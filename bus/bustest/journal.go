package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// journal is what the kit has seen.
type journal struct {
	mu       sync.Mutex
	sent     []Entry
	handled  []Entry
	skipped  []Entry
	failed   []Entry
	groups   map[string][]string      // by topic
	hands    map[place]int            // deliveries that nobody has settled
	settling map[place]chan struct{}  // by key, its id left out: the last delivery's end
	acked    []place                  // in order
	passes   map[Point]int            // how often each point was passed
	open     map[context.Context]bool // handlings whose transaction is open
	effects  map[effect]int           // committed ones
}

// effect is a handled event whose inbox transaction was committed.
type effect struct{ topic, group, typ, key, source, id string }

// pass notes that somebody went past a point.
func (j *journal) pass(ctx context.Context, p crash.Point) {
	j.mu.Lock()
	defer j.mu.Unlock()
	note(&j.passes, Point(p), j.passes[Point(p)]+1)
	if p == crash.Handled {
		note(&j.open, ctx, true)
	}
}

// committed notes the effect of a handler that an inbox has committed. A stale event has none.
func (j *journal) committed(ctx context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.open[ctx] {
		return
	}
	delete(j.open, ctx)
	d, ok := transport.FromContext(ctx)
	env, known := event.FromContext(ctx)
	if ok && known {
		e := effect{d.Topic, d.Group, env.Type, env.PartitionKey, env.Source, env.ID}
		note(&j.effects, e, j.effects[e]+1)
	}
}

// note writes to a map that may not be there yet.
func note[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

func (j *journal) subscribed(topic, group string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Contains(j.groups[topic], group) {
		note(&j.groups, topic, append(j.groups[topic], group))
	}
}

func (j *journal) published(topic string, msg *message.Message) {
	e := entryOf(topic, msg)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sent = append(j.sent, e)
}

// delivered notes a delivery, and when it has been settled. Of a key that is not before the one before it has been noted
// as settled, so that the order in the journal is the order in which things happened.
func (j *journal) delivered(at place, msg *message.Message, moved func()) {
	lane, end := at, make(chan struct{})
	lane.id = ""
	j.mu.Lock()
	before := j.settling[lane]
	note(&j.hands, at, j.hands[at]+1)
	if at.key != "" {
		note(&j.settling, lane, end)
	}
	j.mu.Unlock()
	if before != nil {
		<-before
	}
	ctx := msg.Context()
	go func() {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
		case <-ctx.Done():
		}
		select {
		case <-msg.Acked():
			j.settled(at, true)
		default:
			j.settled(at, false)
		}
		close(end)
		moved()
	}()
}

func (j *journal) settled(at place, acked bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if acked {
		j.acked = append(j.acked, at)
	}
	if j.hands[at]--; j.hands[at] == 0 {
		delete(j.hands, at)
	}
}

// inFlight returns the deliveries of a key that nobody has settled.
func (j *journal) inFlight(key string) (all []place) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for at := range j.hands {
		if at.key == key {
			all = append(all, at)
		}
	}
	return all
}

// attempt is what the outer middleware and the inner one know of one handler call.
type attempt struct{ called bool }

type attemptKey struct{}

// watchHandler is next to the handler. It sees that it was called, and makes the call fail if that is wanted.
func (k *Kit) watchHandler(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if a, ok := msg.Context().Value(attemptKey{}).(*attempt); ok {
			a.called = true
		}
		fault := k.faults.attempts()
		out, err := next(msg)
		if err == nil && fault != nil {
			return nil, fault
		}
		return out, err
	}
}

// watchAttempt is outside the inbox's transaction. It sees what came of it.
func (k *Kit) watchAttempt(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		outer := msg.Context()
		a := new(attempt)
		msg.SetContext(context.WithValue(outer, attemptKey{}, a))
		out, err := next(msg)
		msg.SetContext(outer)
		k.seen.attempted(msg, a, err)
		k.moved()
		return out, err
	}
}

// attempted notes what came of an attempt. What was cut off by its process's end was seen by nobody.
func (j *journal) attempted(msg *message.Message, a *attempt, err error) {
	ctx := msg.Context()
	if err != nil && ctx.Err() != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, transport.ErrLeaseLost) {
			return
		} else if !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
	}
	if errors.Is(err, errDied) {
		return
	}
	d, ok := transport.FromContext(ctx)
	if !ok {
		return
	}
	e := entryOf(d.Topic, msg)
	e.Group, e.Attempt, e.Err = d.Group, middleware.Attempt(ctx), err
	if env, err := event.Of(msg); err == nil {
		e.ID, e.Type, e.Key = env.ID, env.Type, env.PartitionKey
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err != nil:
		j.failed = append(j.failed, e)
	case a.called:
		j.handled = append(j.handled, e)
	default:
		j.skipped = append(j.skipped, e)
	}
}

// entryOf describes a message. One that has no event's attributes is described by what it has.
func entryOf(topic string, msg *message.Message) Entry {
	e := Entry{
		Topic: topic, ID: msg.UUID, Type: msg.Metadata[event.MetaType], Key: transport.Key(msg), At: time.Now(),
		Data: append([]byte(nil), msg.Payload...), metadata: msg.Metadata,
	}
	if id := msg.Metadata[event.MetaID]; id != "" {
		e.ID = id
	}
	return e
}

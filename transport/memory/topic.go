package memory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// topic fans messages out to groups. Publishing takes turns, so that every group sees the same order.
type topic struct {
	name string
	cfg  *config
	home *Transport
	turn chan struct{} // holds one token while nobody publishes

	mu      sync.Mutex
	groups  []*group
	backlog []*stored // while there is no group
	seen    window
}

// group is one consumer group and what it has before it.
type group struct {
	name  string
	queue queue
}

// stored is an accepted message, copied as sending it over a wire would: the publisher may use its own again. It is shared
// by groups and never changes; members get copies.
type stored struct {
	uuid     string
	key      string
	payload  message.Payload
	metadata []header
	settle   *settlement
	few      [8]header // where metadata of the usual length lies
}

type header struct{ name, value string }

// entry is a stored message in one group.
type entry struct {
	*stored
	deliveries int
}

// settlement tells publishers when the last group has acknowledged.
type settlement struct {
	mu   sync.Mutex
	left int
	fns  []func()
}

// groupDone counts one group's acknowledgement. Only the last one finds what is to be called.
func (s *settlement) groupDone() {
	if s == nil {
		return
	}
	s.mu.Lock()
	var fns []func()
	if s.left--; s.left == 0 {
		fns, s.fns = s.fns, nil
	}
	s.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
}

// notify calls fn when all groups have acknowledged, at once if they have.
func (s *settlement) notify(fn func()) {
	if fn == nil {
		return
	}
	s.mu.Lock()
	wait := s.left > 0
	if wait {
		s.fns = append(s.fns, fn)
	}
	s.mu.Unlock()
	if !wait {
		fn()
	}
}

func newTopic(name string, home *Transport) *topic {
	t := &topic{name: name, cfg: &home.cfg, home: home, turn: make(chan struct{}, 1)}
	t.turn <- struct{}{}
	return t
}

// group finds or makes a group. The first one gets what the topic has kept.
func (t *topic) group(name string) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.groups {
		if g.name == name {
			return g
		}
	}
	g := &group{name: name, queue: t.home.newQueue()}
	for _, s := range t.backlog {
		_ = g.queue.add(context.Background(), s) // never full: the backlog has the buffer's bound
	}
	t.backlog = nil
	t.groups = append(slices.Clip(t.groups), g)
	return g
}

// accept takes one message: into every group, or into the backlog. It blocks while a group is full.
func (t *topic) accept(ctx context.Context, msg *message.Message) error {
	select {
	case <-t.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { t.turn <- struct{}{} }()
	fn := transport.Settled(ctx)
	var id string
	if *t.cfg.window > 0 {
		id = msg.UUID + "\x00" + msg.Metadata[event.MetaGeneration]
		if original := t.seen.find(id, *t.cfg.window); original != nil {
			original.notify(fn)
			return nil
		}
	}
	s := snapshot(msg)
	if fn != nil || *t.cfg.window > 0 {
		s.settle = new(settlement)
	}
	for _, g := range t.route(s) {
		if err := g.queue.add(ctx, s); err != nil {
			return err
		}
	}
	if s.settle != nil {
		s.settle.notify(fn)
	}
	if *t.cfg.window > 0 {
		t.seen.add(id, s.settle)
	}
	return nil
}

// route returns the groups that s goes to, all of which must acknowledge it; without any it is kept for the first.
func (t *topic) route(s *stored) []*group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.groups) == 0 {
		if len(t.backlog) >= t.cfg.buffer {
			t.backlog[0] = nil
			t.backlog = t.backlog[1:]
		}
		t.backlog = append(t.backlog, s)
		return nil
	}
	if s.settle != nil {
		s.settle.left = len(t.groups)
	}
	return t.groups
}

func (t *topic) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.groups {
		g.queue.close()
	}
	t.backlog = nil
}

func snapshot(msg *message.Message) *stored {
	s := &stored{uuid: msg.UUID, key: transport.Key(msg), payload: slices.Clone(msg.Payload)}
	s.metadata = s.few[:0]
	for name, value := range msg.Metadata {
		s.metadata = append(s.metadata, header{name, value})
	}
	return s
}

// window remembers ids for a while. It is used by whoever has the turn.
type window struct {
	ids   map[string]*settlement
	order []seenID // oldest first
}

type seenID struct {
	id string
	at time.Time
}

// find returns the settlement of the message accepted under id, or nil.
func (w *window) find(id string, length time.Duration) *settlement {
	oldest := time.Now().Add(-length)
	n := 0
	for n < len(w.order) && !w.order[n].at.After(oldest) {
		delete(w.ids, w.order[n].id)
		n++
	}
	w.order = w.order[n:]
	return w.ids[id]
}

func (w *window) add(id string, s *settlement) {
	if w.ids == nil {
		w.ids = make(map[string]*settlement)
	}
	w.ids[id] = s
	w.order = append(w.order, seenID{id, time.Now()})
}

func (t *topic) held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, g := range t.groups {
		n += g.queue.held()
	}
	return n
}

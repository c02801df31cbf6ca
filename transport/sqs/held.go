package sqs

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/lazyctx"
	"github.com/seambus/seambus/transport"
)

// state is what becomes of a received message. It only grows.
type state uint8

const (
	waiting   state = iota // behind an earlier one of its group, or for a worker
	inFlight               // with a handler
	deleting               // acknowledged; the broker does not know yet
	returning              // nacked or handed back; the broker does not know yet
	gone                   // settled, or its lease is lost
)

// held is a message that this member has received and not settled, and the context it travels with, in one piece. What
// the subscription's mutex guards stands below the line.
type held struct {
	transport.Delivery
	lazyctx.Context
	id       string // the broker's
	group    string
	msg      *message.Message
	received time.Time
	over     chan struct{} // closed when it ends without its handler's verdict

	// guarded
	state    state
	lane     *lane
	receipt  string
	deadline time.Time // when the lease is over
	renewing bool
}

// Value answers with the delivery itself, so that finding it costs no context of its own.
func (h *held) Value(key any) any {
	if key == transport.DeliveryKey() {
		return &h.Delivery
	}
	return h.Context.Value(key)
}

// hasVerdict reports whether the handler has settled the message, though its worker may not have seen it yet.
func (h *held) hasVerdict() bool {
	select {
	case <-h.msg.Acked():
	case <-h.msg.Nacked():
	default:
		return false
	}
	return true
}

// lane is what is held of one message group and not acknowledged, in order. At most the first of it is in flight.
type lane struct {
	group string
	queue []*held
	busy  *held
}

// rest removes and returns what waits behind h, or everything that waits if h is in flight.
func (ln *lane) rest(h *held) []*held {
	from := 0
	for i, w := range ln.queue {
		if w == h {
			from = i + 1
		}
	}
	rest := append([]*held(nil), ln.queue[from:]...)
	ln.queue = ln.queue[:from]
	if from > 0 {
		ln.queue = ln.queue[:from-1] // h itself goes too
	}
	return rest
}

// finished remembers messages that were acknowledged, by the broker's id, for as long as they may come again because a
// delete was late.
type finished struct {
	ids   map[string]time.Time
	order []string // oldest first; may name an id twice
}

const (
	maxFinished    = 100_000
	finishedMemory = time.Hour
)

func (f *finished) add(id string) {
	if f.ids == nil {
		f.ids = make(map[string]time.Time)
	}
	now := time.Now()
	f.ids[id] = now
	f.order = append(f.order, id)
	for len(f.order) > 0 && (len(f.order) > maxFinished || now.Sub(f.ids[f.order[0]]) > finishedMemory) {
		delete(f.ids, f.order[0])
		f.order = f.order[1:]
	}
}

func (f *finished) has(id string) bool {
	_, ok := f.ids[id]
	return ok
}

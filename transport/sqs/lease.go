package sqs

import (
	"errors"
	"time"

	"github.com/seambus/seambus/transport"
)

// beats is how often within a lease the heartbeat looks at it.
const beats = 4

// beat extends the leases of everything held until the subscription has ended. A message is extended once half its lease is over:
// one that is handled sooner costs no call.
func (s *subscription) beat() {
	ticker := time.NewTicker(s.cfg.lease / beats)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.beating:
			return
		}
		s.visibility.add(s.expiring()...)
	}
}

// expiring returns entries for the messages whose leases need extending, and ends those whose lease is over.
func (s *subscription) expiring() []*batchItem {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var items []*batchItem
	for _, h := range s.held {
		switch left := h.deadline.Sub(now); {
		case h.state == returning || h.state == gone:
		case left <= 0 && h.state != deleting: // an acknowledged one is deleted with what receipt there is
			s.log.Warn("lease is over: the broker could not be told to extend it", "event_id", h.msg.UUID)
			items = append(items, s.lose(h)...)
		case left <= s.cfg.lease*5/8 && !h.renewing:
			h.renewing = true
			items = append(items, s.extension(h))
		}
	}
	return items
}

// extension makes the entry that extends a message's lease. In its group it waits for other changes and they wait for it, so
// that it cannot undo the delay of a nack that came after it.
func (s *subscription) extension(h *held) *batchItem {
	it := &batchItem{
		lane: h.group, value: change{h, h.receipt, seconds(s.cfg.lease)},
		stale: func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return h.state == returning || h.state == gone
		},
	}
	it.done = func(err error) { s.visibility.add(s.extended(h, it.sent, err)...) }
	return it
}

// extended notes the result of an extension, and returns the entries for what is to be handed back if the lease is lost.
func (s *subscription) extended(h *held, sent time.Time, err error) []*batchItem {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.renewing = false
	switch {
	case err == nil:
		h.deadline = sent.Add(s.cfg.lease)
	case errors.Is(err, errReceipt) && h.state != deleting:
		s.log.Warn("lease lost", "event_id", h.msg.UUID, "error", err)
		return s.lose(h)
	case !errors.Is(err, transport.ErrClosed):
		s.log.Warn("lease not extended", "event_id", h.msg.UUID, "error", err)
	}
	return nil
}

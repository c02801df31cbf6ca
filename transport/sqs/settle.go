package sqs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/transport"
)

// errCrashed is the cause of deliveries whose member died: their leases run on.
var errCrashed = errors.New("member crashed")

// serve hands out one message after the other until the subscription stops.
func (s *subscription) serve() {
	for {
		h := s.take()
		if h == nil {
			return
		}
		s.passes(crash.Delivered)
		s.deliver(h)
	}
}

// take waits for a group whose first message is not in flight; nil when the subscription stops.
func (s *subscription) take() *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopping {
		if len(s.ready) == 0 {
			s.work.Wait()
			continue
		}
		ln := s.ready[0]
		s.ready = s.ready[1:]
		if len(ln.queue) == 0 || ln.busy != nil {
			continue // emptied, or ready twice
		}
		h := ln.queue[0]
		ln.queue = ln.queue[1:]
		ln.busy, h.state = h, inFlight
		return h
	}
	return nil
}

func (s *subscription) deliver(h *held) {
	defer h.End(context.Canceled)
	select {
	case <-h.over: // it crashed
		return
	default:
	}
	select {
	case s.out <- h.msg:
	case <-s.taking.Done():
		s.fail(h, 0)
		return
	case <-h.over:
		return
	}
	select {
	case <-h.msg.Acked():
		s.succeed(h)
		s.passes(crash.Acked)
	case <-h.msg.Nacked():
		s.fail(h, h.Delay())
	case <-h.over:
	}
}

// succeed lets the group's next message go on and tells the broker that this one is done.
func (s *subscription) succeed(h *held) {
	s.mu.Lock()
	if h.state != inFlight {
		s.mu.Unlock()
		return
	}
	ln := h.lane
	ln.busy = nil
	switch {
	case len(ln.queue) > 0:
		s.makeReady(ln)
	case s.lanes[ln.group] == ln:
		delete(s.lanes, ln.group)
	}
	h.state = deleting
	s.done.add(h.id)
	item := s.toDelete(h)
	s.mu.Unlock()
	s.deletes.add(item)
}

// fail hands a message back, to come again after delay, and before it the rest of its group that is held here: it cannot be
// handled before.
func (s *subscription) fail(h *held, delay time.Duration) {
	s.mu.Lock()
	if h.state != inFlight {
		s.mu.Unlock()
		return
	}
	rest := s.detach(h)
	items := append(s.returning(rest, 0), s.returning([]*held{h}, delay)...)
	s.mu.Unlock()
	s.visibility.add(items...)
}

// detach takes h and what waits behind it out of its lane, and returns the latter. What arrives of the group from now on was
// received anew.
func (s *subscription) detach(h *held) []*held {
	ln := h.lane
	if ln == nil {
		return nil
	}
	rest := ln.rest(h)
	if ln.busy == h {
		ln.busy = nil
	}
	if ln.busy == nil && len(ln.queue) == 0 && s.lanes[ln.group] == ln {
		delete(s.lanes, ln.group)
	}
	return rest
}

// lose ends a message whose lease is over, and returns the entries that hand back what waits behind it. The lock is held.
func (s *subscription) lose(h *held) []*batchItem {
	was := h.state
	s.forget(h)
	if was != waiting && was != inFlight {
		return nil
	}
	h.End(transport.ErrLeaseLost)
	close(h.over)
	return s.returning(s.detach(h), 0)
}

// forget is the end of a message here. The lock is held.
func (s *subscription) forget(h *held) {
	h.state = gone
	if s.held[h.id] == h {
		delete(s.held, h.id)
	}
	s.room.Broadcast()
	s.checkIdle()
}

// returning marks messages as handed back and makes the entries that tell the broker. The lock is held.
func (s *subscription) returning(back []*held, delay time.Duration) []*batchItem {
	if s.crashed {
		return nil
	}
	items := make([]*batchItem, 0, len(back))
	for _, h := range back {
		h.state = returning
		s.held[h.id] = h
		left := maxVisibility - time.Since(h.received) - time.Second
		items = append(items, &batchItem{
			lane: h.group, value: change{h, h.receipt, seconds(min(delay, left))},
			stale: s.when(h, returning),
			done:  func(error) { s.settled(h) }, // an error means that its lease is over: it comes again all the same
		})
	}
	return items
}

// when returns a function that says whether h is no longer in a state.
func (s *subscription) when(h *held, is state) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return h.state != is
	}
}

func (s *subscription) settled(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(h)
}

// toDelete makes the entry that deletes an acknowledged message. It is repeated until the broker has an answer: the lease
// is extended meanwhile, and if it is lost all the same, the message is known when it comes again.
func (s *subscription) toDelete(h *held) *batchItem {
	return &batchItem{
		lane: h.group, value: change{h, h.receipt, 0}, stale: s.when(h, deleting),
		done: func(err error) {
			if err != nil && !errors.Is(err, transport.ErrClosed) {
				s.log.Warn("an acknowledged message was not deleted; if it comes again here it is only deleted", "event_id", h.msg.UUID, "error", err)
			}
			s.settled(h)
		},
	}
}

// change is an entry of a delete or of a change of visibility.
type change struct {
	held    *held
	receipt string
	seconds int32
}

// deleting configures the batches of deletes. Those of a group go in its order, several in one call.
func (s *subscription) deleting() batchConfig {
	call := func(ctx context.Context, items []*batchItem) (map[int]error, error) {
		entries := make([]sqstypes.DeleteMessageBatchRequestEntry, len(items))
		for i, it := range items {
			c, _ := it.value.(change)
			entries[i] = sqstypes.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &c.receipt}
		}
		out, err := s.client.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: &s.queue.url, Entries: entries})
		if err != nil {
			return nil, ofReceipts(err)
		}
		failed := unanswered(len(items))
		for _, e := range out.Successful {
			delete(failed, place(e.Id))
		}
		for _, e := range out.Failed {
			failed[place(e.Id)] = ofReceipt(e)
		}
		return failed, nil
	}
	return batchConfig{perLane: maxBatch, parallel: 8, linger: s.cfg.linger, timeout: s.cfg.timeout, call: call}
}

// changing configures the batches of changes of visibility.
func (s *subscription) changing() batchConfig {
	call := func(ctx context.Context, items []*batchItem) (map[int]error, error) {
		entries := make([]sqstypes.ChangeMessageVisibilityBatchRequestEntry, len(items))
		for i, it := range items {
			c, _ := it.value.(change)
			entries[i] = sqstypes.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &c.receipt, VisibilityTimeout: c.seconds,
			}
		}
		out, err := s.client.ChangeMessageVisibilityBatch(ctx, &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.queue.url, Entries: entries})
		if err != nil {
			return nil, ofReceipts(err)
		}
		failed := unanswered(len(items))
		for _, e := range out.Successful {
			delete(failed, place(e.Id))
		}
		for _, e := range out.Failed {
			failed[place(e.Id)] = ofReceipt(e)
		}
		return failed, nil
	}
	return batchConfig{perLane: maxBatch, parallel: 8, linger: s.cfg.linger, timeout: s.cfg.timeout, call: call}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 1
	}
	return n
}

// crash makes the member vanish as a killed process would: it takes nothing in, settles nothing, and what it holds comes
// back when its lease is over.
func (s *subscription) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crashed {
		return
	}
	s.crashed, s.stopping = true, true
	s.stopTaking()
	s.work.Broadcast()
	s.room.Broadcast()
	for _, h := range s.held {
		if h.state == inFlight {
			h.End(errCrashed)
			close(h.over)
		}
		h.state = gone
	}
	clear(s.held)
	s.checkIdle()
}

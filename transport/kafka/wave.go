package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/transport"
)

// wave is a part of a call: messages that are under way at once.
type wave struct {
	call *call
	msgs []*message.Message
	done chan struct{} // closed when all are settled

	mu       sync.Mutex
	verdicts []verdict
	left     int
	failed   map[string]bool // keys
	again    []int           // failed for another's sake, to be sent once more
	suspects []int           // one of a batch that the broker refused, to be sent alone
}

// verdict is what became of a message. Only the first one counts.
type verdict struct {
	settled bool
	err     error
}

func newWave(c *call, msgs []*message.Message, failed map[string]bool) *wave {
	return &wave{
		call: c, msgs: msgs, done: make(chan struct{}), failed: failed,
		verdicts: make([]verdict, len(msgs)), left: len(msgs),
	}
}

// publish sends the wave and waits until every message is settled: by the broker, by the end of its context, or by time.
func (w *wave) publish() {
	stop := w.watch()
	defer stop()
	todo := make([]int, len(w.msgs))
	for i := range todo {
		todo[i] = i
	}
	for alone := false; len(todo) > 0; {
		if alone {
			w.send(todo[:1], false)
			todo = todo[1:]
		} else {
			w.send(todo, w.call.shared)
			todo = nil
		}
		again, suspects := w.unsettled()
		switch {
		case len(again) > 0:
			todo = append(again, todo...)
			slices.Sort(todo)
		case len(suspects) > 0:
			todo, alone = suspects, true
		}
	}
	<-w.done
}

// watch settles messages whose contexts end, and all of them when the time is up.
func (w *wave) watch() (stop func()) {
	limit := w.call.transport.cfg.deliveryTimeout + backstop
	timer := time.AfterFunc(limit, func() {
		late := fmt.Errorf("no acknowledgement within %v: %w", limit, transport.ErrUnavailable)
		w.abandon(func(context.Context) error { return late })
	})
	watched := make(map[<-chan struct{}]func() bool)
	for _, msg := range w.msgs {
		ctx := msg.Context()
		if done := ctx.Done(); done != nil && watched[done] == nil {
			watched[done] = context.AfterFunc(ctx, func() { w.abandon(context.Context.Err) })
		}
	}
	return func() {
		timer.Stop()
		for _, stop := range watched {
			stop()
		}
	}
}

// send sends some of the wave, in order, and waits until each is settled or known to need another go.
func (w *wave) send(which []int, shared bool) {
	if shared {
		flying := w.produce(w.call.transport.producers.shared, nil, which, true)
		w.await(flying.Wait)
		return
	}
	client, err := w.call.transport.exclusive(w.done)
	if client == nil {
		for _, i := range which {
			w.settle(i, err) // unless it is settled, which is why there is no client
		}
		return
	}
	client.placing.begin()
	flying := w.produce(client.Client, client.placing, which, len(which) > 1)
	w.await(func() {
		<-client.placing.all()
		_ = client.Flush(context.Background()) // it waits for every verdict
		w.call.transport.giveBack(client)
		flying.Wait()
	})
}

// produce hands messages to a client, in order.
func (w *wave) produce(client *kgo.Client, placing *placing, which []int, amongOthers bool) *sync.WaitGroup {
	flying := new(sync.WaitGroup)
	for _, i := range which {
		rec, err := w.prepare(w.msgs[i])
		if err != nil {
			w.settle(i, err)
			continue
		}
		flying.Add(1)
		if placing != nil {
			placing.add(rec)
		}
		client.Produce(w.msgs[i].Context(), rec, func(rec *kgo.Record, err error) {
			w.judge(i, err, amongOthers)
			if placing != nil {
				placing.done(rec)
			}
			flying.Done()
		})
	}
	return flying
}

// await waits for landing to return, or until nobody waits for the rest.
func (w *wave) await(landing func()) {
	landed := make(chan struct{})
	go func() {
		landing()
		close(landed)
	}()
	select {
	case <-landed:
	case <-w.done:
	}
}

// prepare makes the record of a message, or says why it must not be sent.
func (w *wave) prepare(msg *message.Message) (*kgo.Record, error) {
	if w.hasFailed(transport.Key(msg)) {
		return nil, transport.ErrSkipped
	}
	ctx, t := msg.Context(), w.call.transport
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := t.limits().Check(msg); err != nil {
		return nil, err
	}
	info, err := w.call.known(ctx)
	if err != nil {
		return nil, err
	}
	rec, err := encode(w.call.topic, msg)
	if err != nil {
		return nil, err
	}
	if n := recordBytes(rec); n > info.maxBytes {
		limit := fmt.Sprintf("record bytes of topic %q", w.call.topic)
		return nil, &transport.LimitError{ID: msg.UUID, Limit: limit, Max: info.maxBytes, Got: n}
	}
	return rec, nil
}

func (w *wave) hasFailed(key string) bool {
	if key == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed[key]
}

// judge takes the client's verdict on message i, which may have been among others in a batch: then a refusal is not final.
func (w *wave) judge(i int, err error, amongOthers bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	refused := errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.MessageTooLarge)
	switch {
	case w.verdicts[i].settled:
	case err != nil && cutShort(err, w.msgs[i].Context()):
		w.again = append(w.again, i)
	case refused && amongOthers:
		w.suspects = append(w.suspects, i)
	case errors.Is(err, kerr.MessageTooLarge):
		w.settleLocked(i, errors.Join(transport.ErrTooLarge, err))
	case refused:
		w.settleLocked(i, errors.Join(transport.ErrRefused, err))
	default:
		w.settleLocked(i, classify(err))
	}
}

// unsettled returns what must be sent once more, in order, and forgets it.
func (w *wave) unsettled() (again, suspects []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	again, w.again = w.again, nil
	if len(again) > 0 { // suspects of the same partition, if any, take their turn with them
		again = append(again, w.suspects...)
		w.suspects = nil
		return again, nil
	}
	suspects, w.suspects = w.suspects, nil
	slices.Sort(suspects)
	return nil, suspects
}

func (w *wave) settle(i int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settleLocked(i, err)
}

func (w *wave) settleLocked(i int, err error) {
	v := &w.verdicts[i]
	if v.settled {
		return
	}
	*v = verdict{settled: true, err: err}
	if key := transport.Key(w.msgs[i]); err != nil && key != "" {
		if w.failed == nil {
			w.failed = make(map[string]bool)
		}
		w.failed[key] = true
	}
	if w.left--; w.left == 0 {
		close(w.done)
	}
}

// abandon gives up on what is still under way and for which there is a reason to. A batch that is with the broker already
// may yet be kept by it.
func (w *wave) abandon(reason func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, msg := range w.msgs {
		if w.verdicts[i].settled {
			continue
		}
		if err := reason(msg.Context()); err != nil {
			w.settleLocked(i, err)
		}
	}
}

// report adds the wave's failures, whose first message is the call's number base, and returns the keys that failed so far.
func (w *wave) report(failures []transport.Failure, base int) ([]transport.Failure, map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, v := range w.verdicts {
		if v.err != nil {
			failures = append(failures, transport.Failure{Index: base + i, ID: w.msgs[i].UUID, Err: v.err})
		}
	}
	return failures, w.failed
}

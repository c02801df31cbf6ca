package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// publishBatch bounds the rows of one Publish call: a slow one in it makes all of them wait.
const publishBatch = 64

type taken = partition.Taken[*item]

// work publishes until ctx ends; late outlives ctx for a call that has begun.
func (r *relay) work(ctx, late context.Context) {
	for ctx.Err() == nil { // taking does not ask while there is something to take
		probe, err := r.gate.enter(ctx)
		if err != nil {
			return
		}
		n := min(publishBatch, r.box.cfg.batch)
		if probe {
			n = 1
		}
		batch, err := r.lanes.TakeBatch(ctx, n)
		if err != nil {
			r.gate.leave(probe)
			return
		}
		r.publishAll(late, r.filter(batch), probe)
	}
}

// filter gives back what must not be sent now: rows whose lease another relay has or may have, and rows of keys that were
// blocked since they were read.
func (r *relay) filter(batch []*taken) []*taken {
	r.mu.Lock()
	defer r.mu.Unlock()
	expired := !time.Now().Before(r.leaseUntil)
	keep := batch[:0]
	for _, t := range batch {
		it := t.Item
		ks := r.keys[keyOf(it.row)]
		switch {
		case r.tokens[dialect.RangeOf(it.row.Shard)] != it.token:
			r.drop(it)
			r.unbusy(keyOf(it.row))
			t.Done()
		case ks.stops(it):
			r.holds = append(r.holds, it)
			r.poke()
			t.Done()
		case expired:
			r.poke()
			t.Retry(leasePause)
		default:
			keep = append(keep, t)
		}
	}
	return keep
}

// leasePause is how long a row waits for the reader to extend the lease.
const leasePause = 50 * time.Millisecond

// publishAll publishes a batch topic by topic. Once the broker is away the rest goes back untried.
func (r *relay) publishAll(ctx context.Context, batch []*taken, probe bool) {
	if len(batch) == 0 {
		r.gate.leave(probe)
		return
	}
	var away error
	for len(batch) > 0 {
		topic := batch[0].Item.row.Topic
		var same, rest []*taken
		for _, t := range batch {
			if t.Item.row.Topic == topic {
				same = append(same, t)
			} else {
				rest = append(rest, t)
			}
		}
		batch = rest
		if away != nil {
			for _, t := range same {
				t.Retry(0)
			}
			continue
		}
		results := r.publish(ctx, topic, same)
		if err := crash.At(ctx, crash.Sent); err != nil {
			r.die(err)
			return
		}
		away = r.settle(ctx, same, results)
	}
	switch {
	case away == nil:
		r.gate.open()
	case ctx.Err() == nil:
		r.gate.shut(probe, away)
	default:
		r.gate.leave(probe)
	}
}

// publish sends the rows of one topic and returns the error of each.
func (r *relay) publish(ctx context.Context, topic string, batch []*taken) []error {
	results := make([]error, len(batch))
	msgs := make([]*message.Message, 0, len(batch))
	index := make([]int, 0, len(batch))
	var broken map[laneKey]bool
	for i, t := range batch {
		row := t.Item.row
		if broken[keyOf(row)] {
			results[i] = transport.ErrSkipped
			continue
		}
		msg, err := messageOf(row)
		if err != nil {
			results[i] = err
			if row.Key != "" && r.box.cfg.policy == HoldKey {
				broken = map[laneKey]bool{keyOf(row): true}
			}
			continue
		}
		msg.SetContext(r.settledContext(ctx, t.Item))
		msgs, index = append(msgs, msg), append(index, i)
	}
	for j, err := range r.call(topic, msgs) {
		results[index[j]] = err
	}
	return results
}

func (r *relay) settledContext(ctx context.Context, it *item) context.Context {
	if r.box.caps.Durable {
		return ctx
	}
	return transport.OnSettled(ctx, func() { r.settled(it) })
}

// settled is called by a transport that is not durable, perhaps before Publish returns.
func (r *relay) settled(it *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it.settled {
		return
	}
	if r.waits(it) && r.flight[it.row.Seq] == it {
		r.waiting--
	}
	it.settled = true
	if it.sent {
		r.markLater(it)
		r.poke()
	}
}

// call publishes and returns the error of each message that was not accepted. A refusal of a whole call does not say
// whose fault it was, so then each message is tried by itself.
func (r *relay) call(topic string, msgs []*message.Message) map[int]error {
	if len(msgs) == 0 {
		return nil
	}
	err := r.safely(topic, msgs...)
	_, told := errors.AsType[*transport.PublishError](err)
	if err == nil || told || !transport.Permanent(err) || len(msgs) == 1 {
		if err != nil && !told && !transport.Permanent(err) {
			err = fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
		}
		return transport.Failed(err, len(msgs))
	}
	failed := make(map[int]error)
	stopped := make(map[string]bool)
	for i, msg := range msgs {
		if key := transport.Key(msg); key != "" && stopped[key] {
			failed[i] = transport.ErrSkipped
			continue
		}
		for _, err := range r.call(topic, []*message.Message{msg}) {
			failed[i] = err
			stopped[transport.Key(msg)] = true
		}
	}
	return failed
}

func (r *relay) safely(topic string, msgs ...*message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("publisher panicked: %v", p)
		}
	}()
	return r.pub.Publish(topic, msgs...)
}

// settle turns the results into outcomes and frees the lanes. It returns an error if the broker is away. Keys are blocked
// before their lanes are freed, so that nothing of them is sent in between.
func (r *relay) settle(ctx context.Context, batch []*taken, results []error) (away error) {
	again := make([]bool, len(batch))
	pause := time.Duration(0)
	now := time.Now()
	r.mu.Lock()
	for i, t := range batch {
		err := results[i]
		switch {
		case err == nil:
			r.succeeded(t.Item, now)
		case errors.Is(err, transport.ErrSkipped):
			if again[i] = !r.keys[keyOf(t.Item.row)].stops(t.Item); !again[i] {
				r.holds = append(r.holds, t.Item)
			} else if away == nil {
				pause = leasePause // no reason known: do not spin
			}
		case unavailable(ctx, err):
			again[i], away = true, err
		default:
			r.failed(t.Item, err, now)
		}
	}
	if len(r.holds)+len(r.fails) > 0 {
		r.poke()
	}
	r.mu.Unlock()
	for i, t := range batch {
		if again[i] {
			t.Retry(pause)
		} else {
			t.Done()
		}
	}
	return away
}

func unavailable(ctx context.Context, err error) bool {
	return errors.Is(err, transport.ErrUnavailable) || errors.Is(err, transport.ErrClosed) ||
		ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// succeeded notes that the transport took the row. The lock is held.
func (r *relay) succeeded(it *item, now time.Time) {
	c := &r.box.count
	c.attempts.Add(1)
	if !it.row.Created.IsZero() && it.row.Generation == 0 {
		c.latency.Add(int64(max(now.Sub(it.row.Created), 0)))
	}
	it.sent = true
	it.row.Payload = nil
	r.bytes -= it.bytes
	it.bytes = 0
	r.unbusy(keyOf(it.row))
	if r.waits(it) {
		r.waiting++
	} else {
		r.markLater(it)
	}
}

// failed notes that the transport did not take the row, and blocks its key. The lock is held.
func (r *relay) failed(it *item, err error, now time.Time) {
	c := &r.box.count
	c.attempts.Add(1)
	c.failures.Add(1)
	row := it.row
	f := failure{it, dialect.Failure{Seq: row.Seq, State: dialect.Held, Text: errtext.Clean(err), Class: event.Class(err)}}
	switch {
	case transport.Permanent(err) || errors.Is(err, event.ErrPermanent):
		c.failed.Add(1)
		f.State = dialect.Failed
		if f.Class == event.ClassTransient {
			f.Class = event.ClassPermanent
		}
		if row.Key != "" && r.box.cfg.policy == HoldKey {
			ks := r.block(row, now)
			ks.failed, ks.blocker = true, row.Seq
		}
	default:
		f.Retry = now.Add(backoff(row.Attempts+1, r.box.cfg.backoff, r.box.cfg.backoffTo))
		if row.Key != "" {
			r.block(row, f.Retry)
		}
	}
	r.log.Warn("outbox row was not published", "topic", row.Topic, "event_id", row.ID, "event_type", row.Type,
		"attempt", row.Attempts+1, "class", f.Class, "error", f.Text)
	r.fails = append(r.fails, f)
}

// messageOf builds the message of a row. A row that cannot be one, from a foreign writer, is a contract break.
func messageOf(row *dialect.Row) (*message.Message, error) {
	md := make(map[string]string, 4)
	if row.Metadata != "" {
		if err := json.Unmarshal([]byte(row.Metadata), &md); err != nil {
			return nil, event.Contract(fmt.Errorf("outbox: metadata of row %d: %w", row.Seq, err))
		}
	}
	if row.ID == "" || len(row.ID) > event.MaxIDBytes || row.Type == "" || row.Topic == "" {
		return nil, event.Contract(fmt.Errorf("outbox: row %d: event_id has %d bytes, type %d, topic %d; want 1 to %d for the id, and none empty",
			row.Seq, len(row.ID), len(row.Type), len(row.Topic), event.MaxIDBytes))
	}
	pick := func(key, usual string) string {
		if v, ok := md[key]; ok {
			return v
		}
		return usual
	}
	env := event.Envelope{
		ID: row.ID, Source: row.Source, Type: row.Type, Time: row.Created, ContentType: row.ContentType,
		SchemaVersion: row.SchemaVersion, PartitionKey: row.Key, Version: row.Version, HasVersion: row.HasVersion,
		Subject: pick(event.MetaSubject, row.Key), CorrelationID: pick(event.MetaCorrelationID, row.ID),
		CausationID: pick(event.MetaCausationID, ""), Metadata: md, Data: row.Payload,
	}
	if row.Generation > 0 {
		md[event.MetaGeneration] = strconv.Itoa(row.Generation)
	}
	return env.Message(), nil
}

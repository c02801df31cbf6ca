package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
)

// Hold returns a place for dead letters that holds the rest of their keys: later events of a dead letter's key are parked
// behind it, in their order, and acknowledged, by every inbox of the group on this database, until an operator redrives or
// discards the letter. Then they are handled in that order, and new events of the key again as they come. A letter without a
// key holds nothing. Compare [Inbox.Put], after which the key goes on.
func (in *Inbox) Hold() event.DeadLetters { return holding{in} }

type holding struct{ in *Inbox }

// Put keeps the letter as Inbox.Put does, and marks its key as held in the same transaction.
func (h holding) Put(ctx context.Context, letter *event.DeadLetter) error {
	return h.in.put(ctx, letter, letter.Key != "")
}

// Delay parks the event that msg delivers until d is over, and its key behind it: for retries that are further away than the
// transport can keep a message out of its way. It costs no attempt, and returns once the event is parked. It reports false for
// one that is replayed: that is parked already, and a nack puts it off for as long as anybody likes.
func (in *Inbox) Delay(msg *message.Message, d time.Duration) (parked bool, err error) {
	h := handling{in: in, ctx: context.WithoutCancel(msg.Context())}
	if err := h.identify(msg); err != nil || h.replayed.sequence != 0 {
		return false, err
	}
	ctx, env := h.ctx, h.env
	letter := &event.DeadLetter{
		Message: msg, Topic: h.topic, Group: h.group, ID: env.ID, Source: env.Source, Key: env.PartitionKey, Time: time.Now(),
	}
	args, err := parkArgs(letter, StateReady, false)
	if err == nil {
		args[parkedType] = env.Type
		err = in.transact(ctx, func(tx *sql.Tx) error {
			for _, s := range []struct {
				text string
				args []any
			}{
				{in.sql.LockHeld, []any{h.group, h.topic, env.PartitionKey}},
				{in.sql.Park, args},
				{in.sql.Replay, append(in.sql.Now(), h.group, h.topic, env.PartitionKey)},
				{in.sql.Postpone, append(in.sql.Now(), d.Microseconds(), h.group, h.topic, env.PartitionKey)},
			} {
				if _, err := tx.ExecContext(ctx, s.text, s.args...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return false, fmt.Errorf("inbox: delay %.80q: %w", env.ID, err)
	}
	in.wakeAll()
	return true, nil
}

// explain finds out why an id could not be claimed: it was handled, or its key is held. It parks the event then. Failed means
// neither: the key was opened meanwhile.
func (h *handling) explain(msg *message.Message) (verdict, error) {
	var known bool
	e := h.env
	if err := h.tx.QueryRowContext(h.ctx, h.in.sql.Known, h.group, e.Source, e.ID).Scan(&known); err != nil || known {
		return duplicate, err
	}
	isHeld, err := affects(h.tx.ExecContext(h.ctx, h.in.sql.LockHeld, h.group, h.topic, e.PartitionKey))
	if err != nil || !isHeld {
		return failed, err
	}
	args, err := parkArgs(&event.DeadLetter{
		Message: msg, Topic: h.topic, Group: h.group, ID: e.ID, Source: e.Source, Key: e.PartitionKey, Time: time.Now(),
	}, StateHeld, false)
	if err != nil {
		return failed, err
	}
	args[parkedType] = e.Type // a decoder knows it where the message does not say
	_, err = h.tx.ExecContext(h.ctx, h.in.sql.Append, args...)
	return held, err
}

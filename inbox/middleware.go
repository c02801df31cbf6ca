package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/txhook"
	"github.com/seambus/seambus/transport"
)

// Middleware runs what is inside it in a transaction that remembers the event's id, and in which [Tx] gives the handler
// its part. A duplicate or stale event is acknowledged without calling the handler, and so is one whose key is held (see
// [Inbox.Hold]), which is parked in the same transaction. An error or a panic of the handler
// rolls everything back; messages that the handler returns with nil are passed on after the commit. Ids are kept apart by
// group; an empty group is taken from the delivery, or from the handler's name in a plain router.
//
// Place it inside retry, so that each attempt has a transaction of its own. Twice in one chain is an error, [ErrNested].
func (in *Inbox) Middleware(group string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			h := handling{in: in, ctx: msg.Context(), group: group, verdict: failed}
			out, err := h.run(msg, next)
			if h.count(); err != nil {
				return nil, err
			}
			return out, nil
		}
	}
}

// verdict is what became of an event.
type verdict int

const (
	failed verdict = iota
	handled
	duplicate
	stale
	held
)

// handling is one event on its way through one transaction.
type handling struct {
	in       *Inbox
	ctx      context.Context
	group    string
	topic    string
	env      *event.Envelope
	tx       *sql.Tx
	conn     *sql.Conn // that tx runs on, on PostgreSQL
	verdict  verdict
	replayed replayed // the parked event that this is, if it is one
}

func (h *handling) run(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	if err := h.identify(msg); err != nil {
		return nil, err
	}
	if err := h.begin(); err != nil {
		return nil, h.wrap("begin", err)
	}
	defer h.end()
	// Without effect after a commit. A deferred call, so that a panic of the handler, which goes on from here, or a
	// Goexit does not leave the transaction, and with it the database's one writer, to nobody.
	defer func() { _ = h.tx.Rollback() }()

	v, err := h.claim(msg)
	switch {
	case err != nil:
		return nil, h.wrap("claim", err)
	case v == duplicate && h.replayed.sequence == 0:
		h.verdict = duplicate
		return nil, nil
	case v != handled:
		if err := h.commit(v); err != nil {
			return nil, err
		}
		return nil, crash.At(h.ctx, crash.InboxCommitted)
	}
	ctx, hooks := txhook.With(context.WithValue(h.ctx, scopeKey{}, &scope{h.tx, h.conn}))
	out, err := h.call(ctx, msg, next)
	if err != nil {
		return nil, err
	}
	if err := h.commit(handled); err != nil {
		return nil, err
	}
	hooks.Fire()
	return out, crash.At(h.ctx, crash.InboxCommitted)
}

// identify finds out which event this is, and for whom.
func (h *handling) identify(msg *message.Message) (err error) {
	if Tx(h.ctx) != nil {
		return fmt.Errorf("inbox: handle %.80q: %w", msg.UUID, ErrNested)
	}
	if h.env, err = event.Of(msg); err != nil {
		return err
	}
	h.replayed, _ = h.ctx.Value(replayKey{}).(replayed)
	if d, ok := transport.FromContext(h.ctx); ok {
		h.topic = d.Topic
		if h.group == "" {
			h.group = d.Group
		}
	} else {
		h.topic = message.SubscribeTopicFromCtx(h.ctx)
		if h.group == "" {
			h.group = message.HandlerNameFromCtx(h.ctx)
		}
	}
	if h.group == "" {
		return fmt.Errorf("inbox: handle %.80q: group: %w", h.env.ID, ErrOrigin)
	}
	return nil
}

func (h *handling) begin() (err error) {
	options := &sql.TxOptions{Isolation: h.in.sql.Isolation}
	if !h.in.reach {
		h.tx, err = h.in.db.BeginTx(h.ctx, options)
		return err
	}
	if h.conn, err = h.in.db.Conn(h.ctx); err != nil {
		return err
	}
	if h.tx, err = h.conn.BeginTx(h.ctx, options); err != nil {
		return errors.Join(err, h.conn.Close())
	}
	return nil
}

// end gives the connection back, after the transaction.
func (h *handling) end() {
	if h.conn != nil {
		_ = h.conn.Close() // back to the pool, which finds out itself whether it is good
	}
}

// claim writes the event's id and raises its key's version. Two copies meet at the first insert: the later one waits
// there until the earlier one's transaction is over, and then finds the id or, after a rollback, does not. An event whose key
// is held is parked instead.
func (h *handling) claim(msg *message.Message) (verdict, error) {
	if h.replayed.sequence != 0 {
		if mine, err := affects(h.tx.ExecContext(h.ctx, h.in.sql.Take, h.replayed.sequence, h.replayed.revision)); err != nil || !mine {
			return duplicate, err // another process was faster
		}
		fresh, err := h.insert(h.in.stmts.claimAlways)
		if err != nil || !fresh {
			return duplicate, err
		}
		return h.advance()
	}
	for {
		v, err := h.insertUnlessHeld()
		if err != nil || v != failed {
			return v, err
		}
		if v, err := h.explain(msg); err != nil || v != failed {
			return v, err
		}
		// The key was held when the insert looked, and opened before explain did.
	}
}

func (h *handling) insert(stmt *sql.Stmt, more ...any) (fresh bool, err error) {
	e := h.env
	args := append(h.in.sql.Now(), h.group, e.Source, e.ID, h.topic, e.PartitionKey)
	return affects(h.tx.StmtContext(h.ctx, stmt).ExecContext(h.ctx, append(args, more...)...))
}

// insertUnlessHeld claims the event and raises its key's version, in one round trip where the database can. Failed means that
// the id is there or the key is held.
func (h *handling) insertUnlessHeld() (v verdict, err error) {
	var fresh bool
	e := h.env
	switch {
	case e.PartitionKey == "": // nothing holds an event without a key
		fresh, err = h.insert(h.in.stmts.claimAlways)
	case e.HasVersion && h.in.stmts.claimAndAdvance != nil:
		return h.insertAndAdvance()
	default:
		fresh, err = h.insert(h.in.stmts.claim, h.group, h.topic, e.PartitionKey)
	}
	if err != nil || !fresh {
		return failed, err
	}
	return h.advance()
}

func (h *handling) insertAndAdvance() (verdict, error) {
	e := h.env
	var claimed, advanced int
	args := append(h.in.sql.Now(), h.group, e.Source, e.ID, h.topic, e.PartitionKey, h.group, h.topic, e.PartitionKey,
		h.group, h.topic, e.PartitionKey, h.in.sql.Version(e.Version))
	err := h.tx.StmtContext(h.ctx, h.in.stmts.claimAndAdvance).QueryRowContext(h.ctx, args...).Scan(&claimed, &advanced)
	switch {
	case err != nil || claimed == 0:
		return failed, err
	case advanced == 0:
		return h.markStale()
	default:
		return handled, nil
	}
}

// advance raises the key's version to the event's.
func (h *handling) advance() (verdict, error) {
	e := h.env
	if !e.HasVersion || e.PartitionKey == "" {
		return handled, nil
	}
	newer, err := affects(h.tx.StmtContext(h.ctx, h.in.stmts.advance).ExecContext(h.ctx,
		h.group, h.topic, e.PartitionKey, h.in.sql.Version(e.Version)))
	if err != nil || newer {
		return handled, err
	}
	return h.markStale()
}

func (h *handling) markStale() (verdict, error) {
	_, err := h.tx.ExecContext(h.ctx, h.in.sql.MarkStale, h.group, h.env.Source, h.env.ID)
	return stale, err
}

// call runs the handler with ctx, and puts the message's own context back however it ends.
func (h *handling) call(ctx context.Context, msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	defer msg.SetContext(h.ctx)
	msg.SetContext(ctx)
	out, err := next(msg)
	if err != nil {
		return nil, err
	}
	return out, crash.At(h.ctx, crash.Handled)
}

// commit ends the transaction with verdict v. A message whose context is done is somebody else's to handle by now, or will
// be: its effect must not be committed, whatever the handler made of it.
func (h *handling) commit(v verdict) error {
	if h.ctx.Err() != nil {
		return h.wrap("commit", context.Cause(h.ctx))
	}
	if err := h.tx.Commit(); err != nil {
		return h.wrap("commit", err)
	}
	h.verdict = v
	return nil
}

// wrap adds what was being done, and, where the context ended, why: drivers report only that something was interrupted.
func (h *handling) wrap(operation string, err error) error {
	if cause := context.Cause(h.ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("inbox: %s %.80q: %w: %w", operation, h.env.ID, err, cause)
	}
	return fmt.Errorf("inbox: %s %.80q: %w", operation, h.env.ID, err)
}

func (h *handling) count() {
	switch h.verdict {
	case handled:
		h.in.handled.Add(1)
	case duplicate:
		h.in.duplicates.Add(1)
	case stale:
		h.in.stale.Add(1)
	case held:
		h.in.held.Add(1)
	case failed:
	}
}

// affects reports whether a statement changed a row.
func affects(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

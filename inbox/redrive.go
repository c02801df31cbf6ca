package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
)

// Sentinels of what an operator asks for.
var (
	// ErrNotParked holds where no dead letter is what was asked for.
	ErrNotParked = errors.New("no such dead letter")
	// ErrOvertaken holds for a dead letter that a later event of its key has overtaken: handling it now would put the old over
	// the new.
	ErrOvertaken = errors.New("a later event of the key was applied")
)

// Order is what an operator wants done with dead letters, and what the audit says about it.
type Order struct {
	// Filter chooses among the dead letters; its State and Limit do not count.
	Filter Filter
	// By and Why are required.
	By, Why string
	// OutOfOrder redrives letters, too, that a later event of their key has overtaken.
	OutOfOrder bool
	// Erase makes Discard delete payload and metadata for good.
	Erase bool
	// Pause is how long to wait between two letters; zero means not at all.
	Pause time.Duration
	// DryRun changes nothing and counts.
	DryRun bool
}

// Outcome is what became of an [Order].
type Outcome struct {
	// Done counts the letters that the order was carried out on, or would be.
	Done int `json:"done"`
	// Duplicates and Stale count those among them that the group drops when they are handled again: their id was handled, or
	// a version not older than theirs was applied.
	Duplicates int `json:"duplicates"`
	Stale      int `json:"stale"`
	// Refused are the letters that were left alone, with the reason.
	Refused []Refusal `json:"refused,omitempty"`
}

// Refusal is a letter that was left alone.
type Refusal struct {
	ID     string `json:"id"`
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Redrive has dead letters handled again: each becomes ready, and its key is replayed by a process that runs the
// subscription, to this group alone and in the key's order, after what is parked before it. New events of the key wait
// until then. A letter that a later event of its key has overtaken is refused unless the order says OutOfOrder. An order
// can be given again after a crash: what is ready already is no dead letter any more. [ErrNotParked] holds if there is none.
func (in *Inbox) Redrive(ctx context.Context, o Order) (Outcome, error) {
	return in.each(ctx, "redrive", &o, func(tx *sql.Tx, p *Parked) error {
		if err := affected(tx.ExecContext(ctx, in.sql.Ready, p.Sequence)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, in.sql.Replay, append(in.sql.Now(), p.Group, p.Topic, p.Key)...)
		return err
	})
}

// Discard gives dead letters up for good: nothing waits for them any longer, and a copy of such an event that still comes is
// dropped. They stay for the record, without payload and metadata if the order says Erase. [ErrNotParked] holds if there is
// none.
func (in *Inbox) Discard(ctx context.Context, o Order) (Outcome, error) {
	o.OutOfOrder = true // nothing is applied
	return in.each(ctx, "discard", &o, func(tx *sql.Tx, p *Parked) error {
		if err := affected(tx.ExecContext(ctx, in.sql.Discard, p.Sequence)); err != nil {
			return err
		}
		if o.Erase {
			if _, err := tx.ExecContext(ctx, in.sql.Erase, p.Sequence); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, in.sql.Unblock, p.Group, p.Topic, p.Key); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, in.sql.ClaimAlways, append(in.sql.Now(), p.Group, p.Source, p.ID, p.Topic, p.Key)...)
		if err == nil {
			_, err = tx.ExecContext(ctx, in.sql.MarkStale, p.Group, p.Source, p.ID)
		}
		return err
	})
}

// errGone says that another operator was faster.
var errGone = errors.New("no dead letter any more")

func affected(res sql.Result, err error) error {
	changed, err := affects(res, err)
	if err == nil && !changed {
		return errGone
	}
	return err
}

// each carries an order out, letter by letter in their order, each in a transaction of its own with its note in the audit.
func (in *Inbox) each(ctx context.Context, action string, o *Order, do func(*sql.Tx, *Parked) error) (out Outcome, err error) {
	if o.By == "" || o.Why == "" {
		return out, fmt.Errorf("inbox: %s: by is %q and why is %q, want both for the audit", action, o.By, o.Why)
	}
	f, found := o.Filter, false
	f.State, f.Limit = StateDead, defaultLimit
	for {
		page, err := in.Parked(ctx, f)
		if err != nil {
			return out, err
		}
		for i := range page {
			found, f.After = true, page[i].Sequence
			if err := in.carryOut(ctx, action, o, &page[i], &out, do); err != nil {
				return out, fmt.Errorf("inbox: %s %.80q: %w", action, page[i].ID, err)
			}
		}
		if len(page) < defaultLimit {
			break
		}
	}
	if !found {
		return out, fmt.Errorf("inbox: %s: %w: group %q, topic %q, key %q, id %q", action, ErrNotParked, f.Group, f.Topic, f.Key, f.ID)
	}
	return out, nil
}

func (in *Inbox) carryOut(ctx context.Context, action string, o *Order, p *Parked, out *Outcome, do func(*sql.Tx, *Parked) error) error {
	duplicate, stale, overtaken, err := in.standing(ctx, p)
	if err != nil {
		return err
	}
	if overtaken && !o.OutOfOrder {
		out.Refused = append(out.Refused, Refusal{p.ID, p.Key, ErrOvertaken.Error()})
		return nil
	}
	if !o.DryRun {
		err = in.transact(ctx, func(tx *sql.Tx) error {
			// Before the event, as everybody who changes both: a replay must not find the key's head dead, and end for it, while
			// somebody is deciding about it.
			if _, err := tx.ExecContext(ctx, in.sql.LockHeld, p.Group, p.Topic, p.Key); err != nil {
				return err
			}
			if err := do(tx, p); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, in.sql.Audit,
				append(in.sql.Now(), o.By, o.Why, action, p.Group, p.Topic, p.Key, p.Source, p.ID)...)
			return err
		})
	}
	if errors.Is(err, errGone) {
		out.Refused = append(out.Refused, Refusal{p.ID, p.Key, err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	out.count(duplicate, stale)
	if o.DryRun {
		return nil
	}
	in.wakeAll()
	return pause(ctx, o.Pause)
}

func (out *Outcome) count(duplicate, stale bool) {
	out.Done++
	switch {
	case duplicate:
		out.Duplicates++
	case stale:
		out.Stale++
	}
}

// standing tells what the group would do with p, and whether a later event of its key was applied. Nothing can have overtaken a
// letter that holds its key.
func (in *Inbox) standing(ctx context.Context, p *Parked) (duplicate, stale, overtaken bool, err error) {
	if err = in.db.QueryRowContext(ctx, in.sql.Known, p.Group, p.Source, p.ID).Scan(&duplicate); err != nil || p.Key == "" || p.Holds {
		return duplicate, false, false, err
	}
	env, envErr := event.FromMessage(p.Message)
	if envErr != nil || !env.HasVersion {
		err = in.db.QueryRowContext(ctx, in.sql.Later, p.Group, p.Topic, p.Key, dialect.Micros(p.Time)).Scan(&overtaken)
		return duplicate, false, overtaken, err
	}
	var text string
	err = in.db.QueryRowContext(ctx, in.sql.VersionOf, p.Group, p.Topic, p.Key).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return duplicate, false, false, nil
	}
	version, parseErr := strconv.ParseUint(text, 10, 64)
	return duplicate, version >= env.Version, version > env.Version, errors.Join(err, parseErr)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Audit is a note of what an operator did to one event.
type Audit struct {
	Sequence                      int64
	At                            time.Time
	By, Why, Action               string
	Group, Topic, Key, Source, ID string
}

// Audits returns up to limit notes after a sequence, oldest first; zero means 100.
func (in *Inbox) Audits(ctx context.Context, after int64, limit int) (all []Audit, err error) {
	if limit <= 0 {
		limit = defaultLimit
	}
	rows, err := in.db.QueryContext(ctx, in.sql.ListAudit, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox: list audit: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Err(), rows.Close()) }()
	for rows.Next() {
		var a Audit
		var at int64
		if err := rows.Scan(&a.Sequence, &at, &a.By, &a.Why, &a.Action, &a.Group, &a.Topic, &a.Key, &a.Source, &a.ID); err != nil {
			return all, fmt.Errorf("inbox: list audit: %w", err)
		}
		a.At = dialect.Time(at)
		all = append(all, a)
	}
	return all, nil
}

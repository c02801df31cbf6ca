package inbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
)

// BeginAttempt counts a handler call that is about to be made for an event of a group, and returns which one it is, from 1.
// The count is committed before it returns, so that a call which kills the process counts. It costs a transaction of its
// own, and one more to forget it. It refuses to run inside an inbox transaction ([ErrNested]).
func (in *Inbox) BeginAttempt(ctx context.Context, group, source, id string) (n int, err error) {
	if err := outside(ctx, "count attempt", id); err != nil {
		return 0, err
	}
	args := append(in.sql.Now(), group, source, id)
	if in.sql.ReadAttempt == "" {
		err = in.db.QueryRowContext(ctx, in.sql.BeginAttempt, args...).Scan(&n)
	} else {
		err = in.transact(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, in.sql.BeginAttempt, args...); err != nil {
				return err
			}
			return tx.QueryRowContext(ctx, in.sql.ReadAttempt, group, source, id).Scan(&n)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("inbox: count attempt %.80q: %w", id, err)
	}
	return n, nil
}

// GiveBackAttempt takes back the latest count of an event, whose handler was cut off through no fault of its own. Without
// a count it does nothing.
func (in *Inbox) GiveBackAttempt(ctx context.Context, group, source, id string) error {
	return in.attempt(ctx, "give back attempt", in.sql.GiveBackAttempt, group, source, id)
}

// NoteFailure adds a failure to the history of an event whose attempts are counted.
func (in *Inbox) NoteFailure(ctx context.Context, group, source, id string, f event.Failure) error {
	history, _, err := in.AttemptHistory(ctx, group, source, id)
	if err != nil {
		return err
	}
	text, err := encodeHistory(event.Remember(history, f))
	if err != nil {
		return fmt.Errorf("inbox: note failure of %.80q: %w", id, err)
	}
	return in.attempt(ctx, "note failure", in.sql.NoteAttempt, text, group, source, id)
}

// AttemptHistory returns the failures of an event whose attempts are counted, oldest first, and when its first attempt began;
// nothing if none is counted.
func (in *Inbox) AttemptHistory(ctx context.Context, group, source, id string) (h []event.Failure, began time.Time, err error) {
	if err := outside(ctx, "read attempts", id); err != nil {
		return nil, began, err
	}
	var text string
	var micros int64
	err = in.db.QueryRowContext(ctx, in.sql.AttemptHistory, group, source, id).Scan(&text, &micros)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, began, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &h)
	}
	if err != nil {
		return nil, began, fmt.Errorf("inbox: read attempts of %.80q: %w", id, err)
	}
	return h, dialect.Time(micros), nil
}

// ForgetAttempts drops the count of an event that is done or given up.
func (in *Inbox) ForgetAttempts(ctx context.Context, group, source, id string) error {
	return in.attempt(ctx, "forget attempts", in.sql.ForgetAttempts, group, source, id)
}

// attempt runs a statement whose last argument is the event's id.
func (in *Inbox) attempt(ctx context.Context, operation, query string, args ...any) error {
	id, _ := args[len(args)-1].(string)
	if err := outside(ctx, operation, id); err != nil {
		return err
	}
	if _, err := in.db.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("inbox: %s %.80q: %w", operation, id, err)
	}
	return nil
}

// outside refuses what must not share the fate of a handler's transaction, nor wait for the connection it holds.
func outside(ctx context.Context, operation, id string) error {
	if Tx(ctx) != nil {
		return fmt.Errorf("inbox: %s %.80q: %w", operation, id, ErrNested)
	}
	return nil
}

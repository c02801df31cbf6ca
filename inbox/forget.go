package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// Oblivion says which handled events a group is to forget, so that they are handled again when they are delivered again.
type Oblivion struct {
	// Group is required, and so is Key, Since, or both.
	Group string
	// Key chooses the events of one key.
	Key string
	// Since chooses the events that were handled at that time or later.
	Since time.Time
	// By and Why are required, for the audit.
	By, Why string
	// DryRun changes nothing and counts.
	DryRun bool
}

// Forget makes a group forget that it has handled events, and the versions of their keys, so that a replay of them takes effect
// again. It returns how many it forgot, or would. The handlers must be ready to see them again: their effects stay.
func (in *Inbox) Forget(ctx context.Context, o Oblivion) (n int, err error) {
	if err := o.validate(); err != nil {
		return 0, fmt.Errorf("inbox: forget: %w", err)
	}
	args := []any{o.Group, o.Key, o.Key, dialect.Micros(o.Since)}
	err = in.transact(ctx, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, in.sql.CountIDs, args...).Scan(&n); err != nil || o.DryRun {
			return err
		}
		for _, statement := range []string{in.sql.ForgetVersions, in.sql.ForgetIDs} {
			if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, in.sql.Audit, append(in.sql.Now(), o.By, o.Why, "forget", o.Group, "", o.Key, "", "")...)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("inbox: forget: %w", err)
	}
	return n, nil
}

func (o *Oblivion) validate() error {
	var errs []error
	if o.Group == "" {
		errs = append(errs, errors.New("group is empty"))
	}
	if o.Key == "" && o.Since.IsZero() {
		errs = append(errs, errors.New("neither key nor since is given: it would forget everything"))
	}
	if o.By == "" || o.Why == "" {
		errs = append(errs, fmt.Errorf("by is %q and why is %q, want both for the audit", o.By, o.Why))
	}
	return errors.Join(errs...)
}

package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"
)

// sweepBatch bounds the rows of one deleting transaction, and so how long handlers wait for it.
const sweepBatch = 500

// Run sweeps now and at every interval until ctx ends, and returns nil then. A sweep that fails is logged and tried again
// at the next interval: until then the tables only grow. Several may run at once, in any number of processes.
func (in *Inbox) Run(ctx context.Context) error {
	ticker := time.NewTicker(in.config.interval)
	defer ticker.Stop()
	for {
		n, err := in.Sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			in.config.logger.WarnContext(ctx, "inbox sweep failed", slog.Any("error", err))
		case n > 0:
			in.config.logger.InfoContext(ctx, "inbox swept", slog.Int64("ids", n))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Sweep deletes the ids that are past their retention, and attempt counts that old, in batches that each have a
// transaction of their own, and returns how many ids it deleted. Versions and parked events stay.
//
// It follows the order in which ids were written: ids from a time when the clock was ahead by more than the retention
// may hold back those behind them until they are due too.
func (in *Inbox) Sweep(ctx context.Context) (int64, error) {
	retention := in.config.retention.Microseconds()
	ids, err := in.sweep(ctx, in.sql.SweepIDs, sweepBatch, retention)
	if err != nil {
		return ids, fmt.Errorf("inbox: sweep ids: %w", err)
	}
	if _, err := in.sweep(ctx, in.sql.SweepAttempts, retention, sweepBatch); err != nil {
		return ids, fmt.Errorf("inbox: sweep attempts: %w", err)
	}
	return ids, nil
}

func (in *Inbox) sweep(ctx context.Context, query string, args ...any) (total int64, err error) {
	for {
		var (
			res sql.Result
			n   int64
		)
		if res, err = in.db.ExecContext(ctx, query, append(in.sql.Now(), args...)...); err != nil {
			return total, err
		}
		if n, err = res.RowsAffected(); err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}

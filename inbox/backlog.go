package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// Backlog is what waits for an operator, or behind what does. A metrics endpoint asks for it when it is scraped; it reads
// every parked event's row head, so not many times a second.
type Backlog struct {
	// Dead counts dead letters by error class. Contract breaks are the class event.ClassContract: alert on them apart.
	Dead map[string]int
	// Held counts events that wait behind another of their key; Ready those that are about to be handled again.
	Held, Ready int
	// HeldKeys counts the keys whose new events are parked.
	HeldKeys int
	// Oldest is how long ago the oldest of all these was parked; zero if there is none.
	Oldest time.Duration
}

// Backlog returns what is parked now, by every group on this database.
func (in *Inbox) Backlog(ctx context.Context) (b Backlog, err error) {
	rows, err := in.db.QueryContext(ctx, in.sql.Backlog)
	if err != nil {
		return b, fmt.Errorf("inbox: backlog: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	b.Dead = make(map[string]int)
	for rows.Next() {
		var state, class string
		var n int
		var oldest int64
		if err := rows.Scan(&state, &class, &n, &oldest); err != nil {
			return b, fmt.Errorf("inbox: backlog: %w", err)
		}
		b.Oldest = max(b.Oldest, time.Since(dialect.Time(oldest)))
		switch state {
		case StateDead:
			b.Dead[class] += n
		case StateHeld:
			b.Held += n
		case StateReady:
			b.Ready += n
		}
	}
	if err := rows.Err(); err != nil {
		return b, fmt.Errorf("inbox: backlog: %w", err)
	}
	if err := in.db.QueryRowContext(ctx, in.sql.HeldKeys).Scan(&b.HeldKeys); err != nil {
		return b, fmt.Errorf("inbox: backlog: %w", err)
	}
	return b, nil
}

// Retention returns how long handled ids are kept.
func (in *Inbox) Retention() time.Duration { return in.config.retention }

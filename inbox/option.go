package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// DefaultRetention is how long handled ids are kept unless [WithRetention] says otherwise. It is as long as any broker
// here keeps a message.
const DefaultRetention = 14 * 24 * time.Hour

// DefaultSweepInterval is how often [Inbox.Run] deletes ids that are past their retention.
const DefaultSweepInterval = time.Hour

// Option configures [New].
type Option interface{ apply(*config) error }

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type config struct {
	retention time.Duration
	interval  time.Duration
	logger    *slog.Logger
	migrate   bool
}

func newConfig(opts []Option) (config, error) {
	c := config{retention: DefaultRetention, interval: DefaultSweepInterval, logger: slog.New(slog.DiscardHandler)}
	var errs []error
	for _, o := range opts {
		errs = append(errs, o.apply(&c))
	}
	return c, errors.Join(errs...)
}

// WithRetention keeps handled ids for d, at least one second; the default is [DefaultRetention]. An event that is
// delivered again later than that is handled again, so d must exceed the longest time after which the broker redelivers
// and after which an operator replays. Longer costs room: about 200 bytes per event.
func WithRetention(d time.Duration) Option {
	return option(func(c *config) error {
		if d < time.Second {
			return fmt.Errorf("retention is %v, want at least 1s", d)
		}
		c.retention = d
		return nil
	})
}

// WithMigrate makes New create the tables, or bring them up to this release, on PostgreSQL and MySQL too, under a lock that all
// processes share. The default leaves that to `seambus migrate up`, so that the program's database user needs no right to change
// tables. On SQLite it changes nothing: tables are made there in any case.
func WithMigrate() Option {
	return option(func(c *config) error {
		c.migrate = true
		return nil
	})
}

// WithSweepInterval sets how often [Inbox.Run] sweeps, at least one second; the default is [DefaultSweepInterval]. A long
// interval makes sweeps longer, though never a single transaction of theirs.
func WithSweepInterval(d time.Duration) Option {
	return option(func(c *config) error {
		if d < time.Second {
			return fmt.Errorf("sweep interval is %v, want at least 1s", d)
		}
		c.interval = d
		return nil
	})
}

// WithLogger reports sweeps and their failures to l. By default nothing is logged. Payloads never are.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return errors.New("logger is nil")
		}
		c.logger = l
		return nil
	})
}

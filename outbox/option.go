package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

// FailurePolicy says what becomes of a key's later rows when one is refused for good.
type FailurePolicy int

const (
	// HoldKey keeps later rows of the key back until the failed row is retried or discarded. It is the default.
	HoldKey FailurePolicy = iota
	// PassKey lets later rows of the key go on, as if the failed one had not been there.
	PassKey
)

// Option configures an [Outbox].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	name      string
	source    string
	prefix    string
	log       *slog.Logger
	retention time.Duration
	leaseTTL  time.Duration
	poll      time.Duration
	backoff   time.Duration
	backoffTo time.Duration
	batch     int
	workers   int
	inFlight  int
	policy    FailurePolicy
	listener  ListenFunc
	migrate   bool
}

func defaults() config {
	return config{
		name: "default", prefix: dialect.DefaultPrefix, log: slog.New(slog.DiscardHandler),
		retention: 7 * 24 * time.Hour, leaseTTL: 10 * time.Second, backoff: 500 * time.Millisecond, backoffTo: 5 * time.Minute,
		batch: 500, workers: 16, inFlight: 10_000,
	}
}

func (c *config) check() error {
	var errs []error
	bad := func(wrong bool, field string, value any, want string) {
		if wrong {
			errs = append(errs, fmt.Errorf("%s is %v, want %s", field, value, want))
		}
	}
	bad(c.log == nil, "logger", "nil", "a logger, or leave the option out")
	bad(c.retention < 0, "retention", c.retention, "zero or more")
	bad(c.leaseTTL < 100*time.Millisecond, "lease TTL", c.leaseTTL, "100ms or more")
	bad(c.poll != 0 && c.poll < time.Millisecond, "poll", c.poll, "1ms or more, or zero")
	bad(c.backoff < time.Millisecond || c.backoffTo < c.backoff, "backoff", [2]time.Duration{c.backoff, c.backoffTo}, "1ms <= first <= longest")
	bad(c.batch < 1, "batch", c.batch, "1 or more")
	bad(c.workers < 1, "workers", c.workers, "1 or more")
	bad(c.inFlight < 1, "in flight", c.inFlight, "1 or more")
	bad(c.policy != HoldKey && c.policy != PassKey, "failure policy", int(c.policy), "HoldKey or PassKey")
	errs = append(errs, dialect.CheckPrefix(c.prefix))
	return errors.Join(errs...)
}

// WithName sets the name under which logs and metrics tell this outbox from others in the process. The default is
// "default".
func WithName(name string) Option { return option(func(c *config) { c.name = name }) }

// WithSource sets the CloudEvents source of recorded events: a URI reference that names the producer. The default is the
// topic's name.
func WithSource(source string) Option { return option(func(c *config) { c.source = source }) }

// WithTablePrefix sets what the names of the tables begin with, so that several outboxes fit into one database. It must
// be a plain lower-case identifier; the default is "seambus_".
func WithTablePrefix(prefix string) Option { return option(func(c *config) { c.prefix = prefix }) }

// WithLogger sets the logger. The default is silent. Payloads are never logged.
func WithLogger(log *slog.Logger) Option { return option(func(c *config) { c.log = log }) }

// WithRetention sets how long published rows are kept before the relay deletes them; the default is 7 days. An id can be
// recognised as recorded before for as long as its row is there. Zero deletes rows instead of marking them; on
// SQLite all but the newest row of the table, whose number must not be given out again.
func WithRetention(d time.Duration) Option { return option(func(c *config) { c.retention = d }) }

// WithLeaseTTL sets how long a relay that died keeps its keys from others; the default is 10 seconds, the least 100
// milliseconds. Rows of a dead relay go out within this time plus one poll. A relay that cannot reach the database for
// this long loses its keys to another one, which repeats what was in flight.
func WithLeaseTTL(d time.Duration) Option { return option(func(c *config) { c.leaseTTL = d }) }

// WithMigrate makes New create the tables, or bring them up to this release, on PostgreSQL and MySQL too, under a lock that all
// processes share. The default leaves that to `seambus migrate up`, so that the program's database user needs no right to change
// tables. On SQLite it changes nothing: tables are made there in any case.
func WithMigrate() Option { return option(func(c *config) { c.migrate = true }) }

// WithPoll makes an idle relay look for rows every d, for rows that other processes record. It also keeps the relay's share
// of the keys while it is idle. On PostgreSQL and MySQL the default is 200 milliseconds. On SQLite it is zero: a relay alone
// on its database sleeps until this Outbox wakes it or something is due, and looks by itself only after 200 milliseconds
// of idleness, then at doubling intervals up to 5 minutes. While several relays share the database each polls every 200
// milliseconds in any case.
func WithPoll(d time.Duration) Option { return option(func(c *config) { c.poll = d }) }

// WithBackoff sets the delay before a row that failed for now is tried again, and the longest such delay; the defaults
// are 500 milliseconds and 5 minutes. It doubles with each attempt, and half of it is random. Probes of a broker that is
// away follow it too, up to 10 seconds apart.
func WithBackoff(first, longest time.Duration) Option {
	return option(func(c *config) { c.backoff, c.backoffTo = first, longest })
}

// WithBatch sets how many rows are read, published and marked at once at most; the default is 500.
func WithBatch(n int) Option { return option(func(c *config) { c.batch = n }) }

// WithWorkers sets how many Publish calls run at once; the default is 16.
func WithWorkers(n int) Option { return option(func(c *config) { c.workers = n }) }

// WithInFlight sets how many rows may be read and not yet marked; the default is 10,000. It bounds memory, together with
// a fixed 64 MiB of payload. On a transport that is not durable, rows that no group has acknowledged count, so that a
// group which stands still stops the relay at this number.
func WithInFlight(n int) Option { return option(func(c *config) { c.inFlight = n }) }

// WithFailurePolicy sets what becomes of the later rows of a key whose row was refused for good. The default is
// [HoldKey]: order is kept, and the age of the held rows raises the alarm.
func WithFailurePolicy(p FailurePolicy) Option { return option(func(c *config) { c.policy = p }) }

// ListenFunc calls wake for each notification on the database's channel until ctx ends or the connection is lost, and then
// returns. It is called again after a pause if ctx has not ended.
type ListenFunc func(ctx context.Context, channel string, wake func()) error

// WithListener makes the relay hear at once of rows that other processes record, where the database can tell: on
// PostgreSQL, through pgxoutbox.Listen. Elsewhere it does nothing. The default is none: the relay finds them by [WithPoll]. It
// takes one connection for as long as the relay runs. Polling goes on beside it, since a notification may be lost.
func WithListener(l ListenFunc) Option { return option(func(c *config) { c.listener = l }) }

package dialect

import (
	"context"
	"database/sql"
	"strconv"
	"time"
)

// Ranges is the number of ranges that the 1,024 shards are leased in; RangeOf says which one a shard is in.
const (
	Ranges    = 16
	rangeBits = 6
)

// RangeOf returns the range of a shard.
func RangeOf(shard int) int { return shard >> rangeBits }

// State is where an outbox row stands.
type State int

// The states, as the column has them.
const (
	Pending   State = 0 // in the head, to be published next
	Held      State = 1 // waits for its own next attempt, or behind an earlier row of its key
	Failed    State = 2 // refused for good
	Published State = 3
	Discarded State = 4 // given up by an operator
)

// Row is one row of the outbox.
type Row struct {
	Seq           int64
	ID            string
	Source        string
	Topic         string
	Type          string
	SchemaVersion string
	ContentType   string
	Key           string
	Version       uint64
	HasVersion    bool
	Payload       []byte
	Metadata      string // JSON object, or empty
	Created       time.Time
	Available     time.Time
	Attempts      int
	Generation    int
	Shard         int // -1 where a foreign writer left it to the relay
	State         State
}

// version is the argument of the column: text, since versions are unsigned.
func (r *Row) version() any {
	if !r.HasVersion {
		return nil
	}
	return strconv.FormatUint(r.Version, 10)
}

// payload is the argument of the column: a nil slice would be NULL.
func (r *Row) payload() []byte {
	if r.Payload == nil {
		return []byte{}
	}
	return r.Payload
}

// InsertQuery returns the statement that [Outbox] Insert runs, and its arguments, for those who run it themselves.
func (d Dialect) InsertQuery(rows []Row, prefix string) (query string, args []any) {
	if d.name == SQLite {
		return named(sqliteInsertRows(len(rows)), prefix), sqliteArgs(rows)
	}
	return d.text(serverInsertRows(len(rows)), prefix), serverArgs(rows)
}

// BlockedKey is the first waiting row of a key.
type BlockedKey struct {
	Topic     string
	Key       string
	Shard     int
	Seq       int64
	State     State
	Available time.Time
}

// Fence says on which claim a change of rows rests. A change under a token that is no longer the lease's changes nothing.
type Fence struct {
	Owner string
	Token int64
}

// Failure is an attempt that did not publish a row.
type Failure struct {
	Seq   int64
	State State // Held or Failed
	Retry time.Time
	Class string
	Text  string
}

// Claim is what one relay holds.
type Claim struct {
	// Tokens has the token of each range that is held.
	Tokens map[int]int64
	// Share is how many ranges this relay should hold, given how many relays live.
	Share int
	// Relays is how many relays live, this one included.
	Relays int
	// Absent is how many others let their time run out a short while ago and did not leave: idle ones, which may come back, and
	// dead ones. It may be zero where nobody counts them.
	Absent int
}

// Mask is a set of ranges, one bit each.
type Mask int64

// Has reports whether the set holds the range of shard.
func (m Mask) Has(shard int) bool { return m>>RangeOf(shard)&1 == 1 }

// Execer is what a statement runs on: *sql.DB, *sql.Conn, *sql.Tx, or a wrapper of one.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Depth counts the rows of an outbox that are not done with.
type Depth struct {
	Pending int64
	Held    int64
	Failed  int64
}

// Outbox runs the statements of package outbox. It is safe for concurrent use. Databases that have a clock of their own
// which all processes share use it and ignore now.
type Outbox interface {
	// Insert writes rows in one statement, skips those whose id is there already, and returns how many were new.
	Insert(ctx context.Context, x Execer, rows []Row) (int64, error)
	// Heads calls yield for the pending rows after seq in the ranges, and those that have no shard yet, in order.
	Heads(ctx context.Context, after int64, ranges Mask, limit int, yield func(*Row) bool) error
	// Top returns a sequence number that no row seen so far is above, or zero where it is not worth knowing: a reader that
	// begins there does not have to pass what was drained and not yet cleaned away by the database.
	Top(ctx context.Context) (int64, error)
	// Stragglers returns the sequence numbers of the pending rows up to seq, as Heads would choose them, at most limit.
	Stragglers(ctx context.Context, after, upTo int64, ranges Mask, limit int) ([]int64, error)
	// Done returns the sequence numbers after one and up to another that rows are under which are not to be published by whoever
	// has the ranges. It has none on SQLite, where all rows appear in their order.
	Done(ctx context.Context, after, upTo int64, ranges Mask) ([]int64, error)
	// Load calls yield for the rows that are still pending, in order.
	Load(ctx context.Context, seqs []int64, yield func(*Row) bool) error
	// Waiting calls yield for a key's held rows after seq, in order; with failed also for its failed rows.
	Waiting(ctx context.Context, topic, key string, after int64, failed bool, yield func(*Row) bool) error
	// Retrying calls yield for the topic's held rows without a key that are due, oldest first.
	Retrying(ctx context.Context, topic string, now time.Time, ranges Mask, yield func(*Row) bool) error
	// NextRetry returns when the first of the topic's held rows without a key is due after now; zero if there is none.
	NextRetry(ctx context.Context, topic string, now time.Time, ranges Mask) (time.Time, error)
	// Blocked returns the first waiting row of every key in the ranges; a topic's rows without a key give the one that is due
	// first. With failed, failed rows count as waiting, save those without a key.
	Blocked(ctx context.Context, ranges Mask, failed bool) ([]BlockedKey, error)
	// AnyPending reports whether the head has rows at all.
	AnyPending(ctx context.Context) (bool, error)

	// Adopt gives rows of foreign writers what they lack: shard, time and source.
	Adopt(ctx context.Context, rows []*Row) error
	// Mark marks rows as published, or deletes them, and returns how many it changed.
	Mark(ctx context.Context, f Fence, seqs []int64, now time.Time, remove bool) (int64, error)
	// Hold takes pending rows out of the head.
	Hold(ctx context.Context, f Fence, seqs []int64) error
	// Fail notes failed attempts.
	Fail(ctx context.Context, f Fence, failures []Failure, now time.Time) error

	// Renew says that owner lives, extends its leases, and claims free ranges up to its share.
	Renew(ctx context.Context, owner string, now time.Time, ttl time.Duration) (Claim, error)
	// Release gives up ranges.
	Release(ctx context.Context, owner string, ranges []int) error
	// Leave gives up everything.
	Leave(ctx context.Context, owner string) error

	// Sweep deletes, among the limit rows after seq, those published before a time. It returns where to go on, how many it
	// deleted, the time of the first published row that is too young (zero if none), and whether rows are left to look at.
	Sweep(ctx context.Context, after int64, before time.Time, limit int) (Swept, error)
	// Channel names where [Outbox] Notify is heard, in the database's own LISTEN; it is empty where there is no such thing.
	Channel() string
	// Notify wakes whoever listens, on a connection of its own: inside the business transaction it would cost most of the
	// commit rate.
	Notify(ctx context.Context) error

	// Oldest returns when the oldest row that is neither published nor failed was recorded; zero if there is none.
	Oldest(ctx context.Context) (time.Time, error)
	// Depth counts rows.
	Depth(ctx context.Context) (Depth, error)
	// Orders counts what operators changed among the rows that wait, so that a relay looks at them again.
	Orders(ctx context.Context) (int64, error)
}

// Swept is the result of one batch of a sweep.
type Swept struct {
	Next    int64
	Deleted int64
	Young   time.Time
	More    bool
}

// OpenOutbox returns the statements for the outbox tables of db whose names begin with prefix. The tables must be there.
func OpenOutbox(ctx context.Context, db *sql.DB, prefix string) (Outbox, error) {
	d, err := For(db)
	if err != nil {
		return nil, err
	}
	if err := CheckPrefix(prefix); err != nil {
		return nil, err
	}
	if d.name == SQLite {
		return openSQLiteOutbox(ctx, db, prefix)
	}
	return openServerOutbox(ctx, db, d, prefix)
}

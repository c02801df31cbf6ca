package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/errtext"
)

// ErrNoRow holds where no row is what an operator asked for.
var ErrNoRow = errors.New("no such row in the outbox")

// The states of a [Row].
const (
	StatePending   = "pending"   // to be published next
	StateHeld      = "held"      // waits for its next attempt, or behind an earlier row of its key
	StateFailed    = "failed"    // refused for good
	StatePublished = "published" // done
	StateDiscarded = "discarded" // given up by an operator
)

const (
	operatorBatch = 500
	defaultRows   = 100
)

// Operator looks after the rows of an outbox: it needs the database and no broker, and works while every relay is dead. What
// it changes is written to the audit in the same transaction. A relay notices within its poll ([WithPoll]); on SQLite, where
// the default has none, at once if it runs in this process and the Operator is from [Outbox.Operator]. It is safe for
// concurrent use.
type Operator struct {
	sql   *dialect.Operator
	store dialect.Outbox
	cfg   config
	rouse func()
}

// NewOperator returns an operator for the outbox in db. Of the options [WithTablePrefix] and [WithRetention], which Sweep
// goes by, count. The tables must be there.
func NewOperator(db *sql.DB, opts ...Option) (*Operator, error) {
	cfg := defaults()
	for _, o := range opts {
		o.apply(&cfg)
	}
	err := cfg.check()
	if db == nil {
		err = errors.Join(errors.New("database is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: new operator: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	store, err := dialect.OpenOutbox(ctx, db, cfg.prefix)
	if err != nil {
		return nil, fmt.Errorf("outbox: new operator: %w", err)
	}
	return newOperator(db, store, cfg, func() {})
}

func newOperator(db *sql.DB, store dialect.Outbox, cfg config, rouse func()) (*Operator, error) {
	statements, err := dialect.OpenOperator(db, cfg.prefix)
	if err != nil {
		return nil, fmt.Errorf("outbox: new operator: %w", err)
	}
	return &Operator{sql: statements, store: store, cfg: cfg, rouse: rouse}, nil
}

// Operator returns an operator for this outbox, which wakes its relay.
func (o *Outbox) Operator() (*Operator, error) { return newOperator(o.db, o.store, o.cfg, o.Committed) }

// Status is how an outbox stands.
type Status struct {
	Depth
	// Oldest is how long the oldest row waits that is pending or held, since it was recorded or replayed; zero if there is none.
	Oldest time.Duration
}

// Status asks the database how the outbox stands. Failed rows do not count as waiting.
func (op *Operator) Status(ctx context.Context) (Status, error) {
	d, err := op.store.Depth(ctx)
	var t time.Time
	if err == nil {
		t, err = op.store.Oldest(ctx)
	}
	if err != nil {
		return Status{}, fmt.Errorf("outbox: status: %w", err)
	}
	s := Status{Depth: Depth(d)}
	if !t.IsZero() {
		s.Oldest = max(time.Since(t), 0)
	}
	return s, nil
}

// Filter chooses rows; empty and zero fields choose all.
type Filter struct {
	State string    `json:"state,omitempty"`
	Topic string    `json:"topic,omitempty"`
	Type  string    `json:"type,omitempty"`
	Key   string    `json:"key,omitempty"`
	ID    string    `json:"id,omitempty"`
	Since time.Time `json:"since,omitzero"` // recorded then or later
	Until time.Time `json:"until,omitzero"` // recorded before then
	// After is a sequence number: only later rows.
	After int64 `json:"after,omitempty"`
	// Limit is how many rows [Operator.Rows] returns at most; zero is 100.
	Limit int `json:"-"`
	// Payload makes [Operator.Rows] return payloads too.
	Payload bool `json:"-"`
}

// chooses reports whether f leaves anything out.
func (f *Filter) chooses() bool {
	return f.Topic != "" || f.Type != "" || f.Key != "" || f.ID != "" || !f.Since.IsZero() || !f.Until.IsZero() || f.After != 0
}

func (f *Filter) rows() dialect.RowFilter {
	return dialect.RowFilter{Topic: f.Topic, Type: f.Type, Key: f.Key, ID: f.ID, Since: f.Since, Until: f.Until, After: f.After}
}

// Row is one row of the outbox, as operators see it.
type Row struct {
	Sequence      int64
	State         string
	Topic         string
	Type          string
	Key           string
	ID            string
	Source        string
	SchemaVersion string
	ContentType   string
	// Version is the aggregate's, if HasVersion.
	Version    uint64
	HasVersion bool
	Metadata   map[string]string
	Payload    []byte // nil unless asked for
	Attempts   int
	Class      string // of the last error
	Error      string // the last one, cleaned and cut
	Generation int    // how often it was replayed
	Recorded   time.Time
	// NotBefore, LastAttempt and Published are zero where there is no such time. Published is when a discarded row was given up.
	NotBefore, LastAttempt, Published time.Time
}

// Rows returns the rows that f chooses, in the order in which they were recorded.
func (op *Operator) Rows(ctx context.Context, f Filter) ([]Row, error) {
	limit := f.Limit
	if limit == 0 {
		limit = defaultRows
	}
	chosen := f.rows()
	if f.State != "" {
		s, err := dialect.ParseState(f.State)
		if err != nil {
			return nil, fmt.Errorf("outbox: rows: %w", err)
		}
		chosen.States = []dialect.State{s}
	}
	found, err := op.sql.Rows(ctx, chosen, limit, f.Payload)
	if err != nil {
		return nil, fmt.Errorf("outbox: rows: %w", err)
	}
	rows := make([]Row, len(found))
	for i := range found {
		rows[i] = rowOf(&found[i])
	}
	return rows, nil
}

func rowOf(d *dialect.Detail) Row {
	r := Row{
		Sequence: d.Seq, State: d.State.String(), Topic: d.Topic, Type: d.Type, Key: d.Key, ID: d.ID, Source: d.Source,
		SchemaVersion: d.SchemaVersion, ContentType: d.ContentType, Version: d.Version, HasVersion: d.HasVersion, Payload: d.Payload,
		Attempts: d.Attempts, Class: d.Class, Error: d.Error, Generation: d.Generation, Recorded: d.Created, NotBefore: d.Available,
		LastAttempt: d.LastAttempt, Published: d.Published,
	}
	if d.Metadata != "" && json.Unmarshal([]byte(d.Metadata), &r.Metadata) != nil {
		r.Metadata = map[string]string{"unreadable": errtext.Clean(errors.New(d.Metadata))} // a foreign writer's
	}
	return r
}

// Order is what an operator wants done, and what the audit says about it.
type Order struct {
	// Filter chooses among the rows that the order is for; its State and Limit do not count.
	Filter Filter
	// By and Why are required.
	By, Why string
	// All must be set for an order whose Filter leaves nothing out.
	All bool
	// Erase makes Discard delete payload and metadata for good.
	Erase bool
	// DryRun changes nothing and counts.
	DryRun bool
}

func (o *Order) check(free bool) error {
	var errs []error
	if o.By == "" || o.Why == "" {
		errs = append(errs, fmt.Errorf("by is %q and why is %q, want both for the audit", o.By, o.Why))
	}
	if !free && !o.All && !o.Filter.chooses() {
		errs = append(errs, errors.New("filter is empty, want one, or All for every row"))
	}
	return errors.Join(errs...)
}

func (o *Order) note() (dialect.Note, error) {
	chosen, err := json.Marshal(&o.Filter)
	return dialect.Note{Who: o.By, Why: o.Why, Chosen: string(chosen)}, err
}

// Retry has failed rows sent again, and held ones without waiting for their next attempt; it returns how many. The rows of a key
// still go in their order: those behind a failed row follow it. [ErrNoRow] holds if there is none.
func (op *Operator) Retry(ctx context.Context, o Order) (int64, error) {
	return op.act(ctx, dialect.ActionRetry, o)
}

// Discard gives failed rows up for good, and returns how many: they are never sent, and what is held behind them goes on. They
// stay as long as published rows do, and in the audit for ever. [ErrNoRow] holds if there is none.
func (op *Operator) Discard(ctx context.Context, o Order) (int64, error) {
	if o.Erase {
		return op.act(ctx, dialect.ActionErase, o)
	}
	return op.act(ctx, dialect.ActionDiscard, o)
}

// Replay has published rows sent again, and returns how many: in the order of each key, with the same event ids and a new
// generation, so that the broker does not take them for duplicates. Consumers drop what they have handled unless they forget
// it first (inbox.Inbox.Forget). New events of a key may come between its replayed ones. Rows are replayed for as long as
// [WithRetention] keeps them. [ErrNoRow] holds if there is none. After an error a part may have been replayed: the order can be
// given again, with Filter.After from the audit or in full.
func (op *Operator) Replay(ctx context.Context, o Order) (int64, error) {
	return op.act(ctx, dialect.ActionReplay, o)
}

func (op *Operator) act(ctx context.Context, a dialect.Action, o Order) (total int64, err error) {
	fail := func(err error) (int64, error) { return total, fmt.Errorf("outbox: %s: %w", a, err) }
	by, err := o.note()
	if err = errors.Join(err, o.check(false)); err != nil {
		return fail(err)
	}
	f := o.Filter.rows()
	if o.DryRun {
		total, err = op.sql.Count(ctx, a, f)
	} else {
		total, err = op.actAll(ctx, a, f, by)
	}
	switch {
	case err != nil:
		return fail(err)
	case total == 0:
		return fail(ErrNoRow)
	}
	return total, nil
}

// actAll goes up through the rows there are now: what is sent again meanwhile is behind it.
func (op *Operator) actAll(ctx context.Context, a dialect.Action, f dialect.RowFilter, by dialect.Note) (total int64, err error) {
	if f.UpTo, err = op.sql.Top(ctx); err != nil || f.UpTo == 0 {
		return 0, err
	}
	defer op.rouse()
	for {
		n, next, err := op.sql.Act(ctx, a, f, operatorBatch, by)
		total += n
		if err != nil || n == 0 {
			return total, err
		}
		f.After = next
	}
}

// Sweep deletes published and discarded rows older than the retention now, and returns how many. Filter does not count. It
// deletes nothing while another sweeper is at work.
func (op *Operator) Sweep(ctx context.Context, o Order) (total int64, err error) {
	fail := func(err error) (int64, error) { return total, fmt.Errorf("outbox: sweep: %w", err) }
	if err := o.check(true); err != nil {
		return fail(err)
	}
	before := time.Now().Add(-op.cfg.retention)
	if o.DryRun {
		if total, err = op.sql.CountOld(ctx, before); err != nil {
			return fail(err)
		}
		return total, nil
	}
	for after, more := int64(0), true; more; {
		s, err := op.store.Sweep(ctx, after, before, sweepBatch)
		if err != nil {
			return fail(err)
		}
		total += s.Deleted
		after, more = s.Next, s.More
	}
	by := dialect.Note{Who: o.By, Why: o.Why, Chosen: "older than " + op.cfg.retention.String()}
	if err := op.sql.Swept(ctx, by, total); err != nil {
		return fail(err)
	}
	return total, nil
}

// Note is a line of the audit.
type Note struct {
	Sequence int64     `json:"sequence"`
	Time     time.Time `json:"time"`
	By       string    `json:"by"`
	Why      string    `json:"why"`
	Action   string    `json:"action"` // retry, discard, erase (a discard with the payload), replay or sweep
	Chosen   string    `json:"chosen"` // the order's filter
	ID       string    `json:"id"`     // of the event; empty where Rows is the number of a replay's or sweep's
	Rows     int64     `json:"rows"`
}

// Audit returns at most limit lines of the audit after a sequence number, oldest first.
func (op *Operator) Audit(ctx context.Context, after int64, limit int) ([]Note, error) {
	notes, err := op.sql.Audit(ctx, after, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: audit: %w", err)
	}
	lines := make([]Note, len(notes))
	for i, n := range notes {
		lines[i] = Note{Sequence: n.Seq, Time: n.At, By: n.Who, Why: n.Why, Action: n.Action, Chosen: n.Chosen, ID: n.EventID, Rows: n.Rows}
	}
	return lines, nil
}

package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What an operator does to an outbox is rare, so that these statements are put together when they are needed. What the
// databases say differently stands in braces, beside [serverWords].
var operatorWords = map[Name]*strings.Replacer{
	SQLite: strings.NewReplacer(
		"{epoch created_at}", "created_at",
		"{epoch published_at}", "published_at",
		"{epoch last_attempt_at}", "last_attempt_at",
		"{epoch available_at}", "nullif(available_at, 0)",
		"{epoch at}", "at",
		"{due}", "0",
		"{unblock}", "",
		"{lock}", "",
		"{but the newest}", " AND seq < (SELECT max(seq) FROM seambus_outbox)",
		"{by seq}", "",
		"{ids}", sqliteAmong,
		"{bytes}", "x''",
	),
	Postgres: strings.NewReplacer(
		"{epoch published_at}", "CAST(extract(epoch FROM published_at) * 1000000 AS bigint)",
		"{epoch last_attempt_at}", "CAST(extract(epoch FROM last_attempt_at) * 1000000 AS bigint)",
		"{epoch available_at}", "CAST(extract(epoch FROM available_at) * 1000000 AS bigint)",
		"{epoch at}", "CAST(extract(epoch FROM at) * 1000000 AS bigint)",
		"{due}", "NULL",
		"{lock}", "FOR UPDATE",
		"{but the newest}", "",
		"{bytes}", "''",
	),
	MySQL: strings.NewReplacer(
		"{epoch published_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', published_at)",
		"{epoch last_attempt_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', last_attempt_at)",
		"{epoch available_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', available_at)",
		"{epoch at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at)",
		"{due}", "NULL",
		"{lock}", "FOR UPDATE",
		"{but the newest}", "",
		"{bytes}", "''",
	),
}

const (
	operatorColumns = `seq, event_id, source, topic, type, schema_version, content_type, partition_key, aggregate_version,
  metadata, {epoch created_at}, {epoch available_at}, {epoch last_attempt_at}, {epoch published_at}, attempts, error_class,
  last_error, generation, state, `
	operatorList    = `SELECT ` + operatorColumns
	operatorFrom    = ` FROM seambus_outbox WHERE seq > ?`
	operatorOrder   = ` ORDER BY seq LIMIT ?`
	operatorChoose  = `SELECT seq, event_id` + operatorFrom
	operatorCount   = `SELECT count(*)` + operatorFrom
	operatorTop     = `SELECT coalesce(max(seq), 0) FROM seambus_outbox`
	operatorOld     = `SELECT count(*) FROM seambus_outbox WHERE state >= 3 AND {epoch published_at} < ?{but the newest}`
	operatorChanges = `SELECT changes FROM seambus_outbox_locks WHERE name = 'operator'`

	// Whoever changes waiting rows holds this row to the end: the count grows in the order of the commits.
	operatorLock   = `UPDATE seambus_outbox_locks SET changes = changes + ? WHERE name = 'operator'`
	operatorAudit  = `INSERT INTO seambus_outbox_audit (at, who, why, action, chosen, event_id, rows_changed) VALUES ({now}, ?, ?, ?, ?, ?, ?)`
	operatorAudits = `SELECT seq, {epoch at}, who, why, action, chosen, event_id, rows_changed FROM seambus_outbox_audit
WHERE seq > ? ORDER BY seq LIMIT ?`

	// A held row stays held: were it pending, the rows behind it could be taken from the held ones before it is seen.
	operatorHurry = `UPDATE seambus_outbox {by seq} SET available_at = {due} WHERE state = 1 AND {ids}`
	operatorRetry = `UPDATE seambus_outbox {by seq} SET state = 0, available_at = {due}{unblock} WHERE state = 2 AND {ids}`
	operatorGive  = `UPDATE seambus_outbox {by seq} SET state = 4, published_at = {now}{unblock} WHERE state = 2 AND {ids}`
	operatorErase = `UPDATE seambus_outbox {by seq} SET payload = {bytes}, metadata = '' WHERE state = 4 AND {ids}`
	operatorAgain = `UPDATE seambus_outbox {by seq} SET state = 0, available_at = {due}, replayed_at = {now}, generation = generation + 1
WHERE state = 3 AND {ids}`
)

// Action is what an operator does to a row.
type Action string

// The actions, as the audit has them.
const (
	ActionRetry   Action = "retry"
	ActionDiscard Action = "discard"
	ActionErase   Action = "erase" // discard, payload included
	ActionReplay  Action = "replay"
	ActionSweep   Action = "sweep"
)

// from returns the states that an action changes rows in.
func (a Action) from() []State {
	switch a {
	case ActionRetry:
		return []State{Held, Failed}
	case ActionReplay:
		return []State{Published}
	case ActionDiscard, ActionErase:
		return []State{Failed}
	case ActionSweep:
	}
	return []State{Published, Discarded}
}

// RowFilter chooses rows; empty and zero fields choose all.
type RowFilter struct {
	States               []State
	Topic, Type, Key, ID string
	Since, Until         time.Time // recorded then
	After, UpTo          int64     // sequence numbers
}

func (f *RowFilter) where() (conditions string, args []any) {
	var b strings.Builder
	args = []any{f.After}
	add := func(condition string, arg any, given bool) {
		if given {
			b.WriteString(" AND " + condition)
			args = append(args, arg)
		}
	}
	add("topic = ?", f.Topic, f.Topic != "")
	add("type = ?", f.Type, f.Type != "")
	add("partition_key = ?", f.Key, f.Key != "")
	add("event_id = ?", f.ID, f.ID != "")
	add("{epoch created_at} >= ?", Micros(f.Since), !f.Since.IsZero())
	add("{epoch created_at} < ?", Micros(f.Until), !f.Until.IsZero())
	add("seq <= ?", f.UpTo, f.UpTo > 0)
	if len(f.States) > 0 { // as numbers in the text, by which a partial index is recognised
		names, waiting := make([]string, len(f.States)), true
		for i, s := range f.States {
			names[i] = strconv.Itoa(int(s))
			waiting = waiting && (s == Held || s == Failed)
		}
		b.WriteString(" AND state IN (" + strings.Join(names, ", ") + ")")
		if waiting {
			b.WriteString(" AND state IN (1, 2)")
		}
	}
	return b.String(), args
}

// Detail is a row with everything that an operator may want to know.
type Detail struct {
	Row
	LastAttempt, Published time.Time
	Class, Error           string
}

// Note is a line of the audit.
type Note struct {
	Seq                               int64
	At                                time.Time
	Who, Why, Action, Chosen, EventID string
	Rows                              int64
}

// Operator runs the statements of those who look after an outbox. It is safe for concurrent use.
type Operator struct {
	db     *sql.DB
	d      Dialect
	prefix string
}

// OpenOperator returns the statements for the outbox tables of db whose names begin with prefix.
func OpenOperator(db *sql.DB, prefix string) (*Operator, error) {
	d, err := For(db)
	if err != nil {
		return nil, err
	}
	return &Operator{db: db, d: d, prefix: prefix}, CheckPrefix(prefix)
}

func (o *Operator) text(statement string) string {
	statement = operatorWords[o.d.name].Replace(statement)
	if o.d.Shared() {
		return o.d.text(statement, o.prefix)
	}
	now := strconv.FormatInt(Micros(time.Now()), 10)
	return named(strings.ReplaceAll(statement, "{now}", now), o.prefix)
}

// Rows returns at most limit rows that f chooses, in their order, with their payload or without.
func (o *Operator) Rows(ctx context.Context, f RowFilter, limit int, payload bool) (found []Detail, err error) {
	where, args := f.where()
	column := "NULL"
	if payload {
		column = "payload"
	}
	rows, err := o.db.QueryContext(ctx, o.text(operatorList+column+operatorFrom+where+operatorOrder), append(args, limit)...)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		d, err := scanDetail(rows)
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		found = append(found, d)
	}
	return found, errors.Join(rows.Err(), rows.Close())
}

func scanDetail(rows *sql.Rows) (d Detail, err error) {
	var version sql.NullString
	var created, due, attempt, published sql.NullInt64
	err = rows.Scan(&d.Seq, &d.ID, &d.Source, &d.Topic, &d.Type, &d.SchemaVersion, &d.ContentType, &d.Key, &version, &d.Metadata,
		&created, &due, &attempt, &published, &d.Attempts, &d.Class, &d.Error, &d.Generation, &d.State, &d.Payload)
	d.Created, d.Available, d.LastAttempt, d.Published = Time(created.Int64), Time(due.Int64), Time(attempt.Int64), Time(published.Int64)
	if version.Valid {
		var bad error
		d.Version, bad = strconv.ParseUint(version.String, 10, 64)
		d.HasVersion = bad == nil
	}
	return d, err
}

// Count counts the rows that f chooses and the action may change.
func (o *Operator) Count(ctx context.Context, a Action, f RowFilter) (n int64, err error) {
	f.States = a.from()
	where, args := f.where()
	err = o.db.QueryRowContext(ctx, o.text(operatorCount+where), args...).Scan(&n)
	return n, err
}

// CountOld counts the rows that a sweep deletes.
func (o *Operator) CountOld(ctx context.Context, before time.Time) (n int64, err error) {
	err = o.db.QueryRowContext(ctx, o.text(operatorOld), Micros(before)).Scan(&n)
	return n, err
}

// Top returns the highest sequence number.
func (o *Operator) Top(ctx context.Context) (n int64, err error) {
	err = o.db.QueryRowContext(ctx, o.text(operatorTop)).Scan(&n)
	return n, err
}

// Act carries an action out on the first limit rows after f.After, in one transaction with its lines in the audit. It
// returns how many it changed, and the sequence number to go on after: zero if there are no more.
func (o *Operator) Act(ctx context.Context, a Action, f RowFilter, limit int, by Note) (n, next int64, err error) {
	f.States = a.from()
	err = o.tx(ctx, func(tx *sql.Tx) error {
		signal := 1
		if a == ActionReplay {
			signal = 0 // pending rows are found anyhow
		}
		if _, err := tx.ExecContext(ctx, o.text(operatorLock), signal); err != nil {
			return err
		}
		seqs, ids, err := o.choose(ctx, tx, f, limit)
		if err != nil {
			return err
		}
		if len(seqs) == 0 {
			return nil
		}
		n, next = int64(len(seqs)), seqs[len(seqs)-1]
		if err := o.change(ctx, tx, a, seqs); err != nil {
			return err
		}
		return o.note(ctx, tx, a, by, ids, n)
	})
	return n, next, err
}

func (o *Operator) choose(ctx context.Context, tx *sql.Tx, f RowFilter, limit int) (seqs []int64, ids []string, err error) {
	where, args := f.where()
	rows, err := tx.QueryContext(ctx, o.text(operatorChoose+where+operatorOrder+" {lock}"), append(args, limit)...)
	if err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		var seq int64
		var id string
		if err := rows.Scan(&seq, &id); err != nil {
			return nil, nil, errors.Join(err, rows.Close())
		}
		seqs, ids = append(seqs, seq), append(ids, id)
	}
	return seqs, ids, errors.Join(rows.Err(), rows.Close())
}

// change changes the rows, which are locked.
func (o *Operator) change(ctx context.Context, tx *sql.Tx, a Action, seqs []int64) error {
	for _, statement := range map[Action][]string{
		ActionRetry: {operatorHurry, operatorRetry}, ActionDiscard: {operatorGive}, ActionErase: {operatorGive, operatorErase},
		ActionReplay: {operatorAgain},
	}[a] {
		text, args := o.text(statement), []any{list(seqs)}
		if o.d.Shared() {
			text, args = o.d.among(text, seqs)
		}
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return err
		}
	}
	return nil
}

// note writes a line for each row, or one for all of a replay, which may be millions.
func (o *Operator) note(ctx context.Context, tx *sql.Tx, a Action, by Note, ids []string, n int64) error {
	rows := int64(1)
	if a == ActionReplay {
		ids, rows = []string{""}, n
	}
	for _, id := range ids {
		if _, err := tx.ExecContext(ctx, o.text(operatorAudit), by.Who, by.Why, string(a), by.Chosen, id, rows); err != nil {
			return err
		}
	}
	return nil
}

// Swept notes in the audit what a sweep that an operator ordered deleted.
func (o *Operator) Swept(ctx context.Context, by Note, n int64) error {
	_, err := o.db.ExecContext(ctx, o.text(operatorAudit), by.Who, by.Why, string(ActionSweep), by.Chosen, "", n)
	return err
}

// Audit returns at most limit lines of the audit after a sequence number.
func (o *Operator) Audit(ctx context.Context, after int64, limit int) (notes []Note, err error) {
	rows, err := o.db.QueryContext(ctx, o.text(operatorAudits), after, limit)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var n Note
		var at int64
		if err := rows.Scan(&n.Seq, &at, &n.Who, &n.Why, &n.Action, &n.Chosen, &n.EventID, &n.Rows); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		n.At = Time(at)
		notes = append(notes, n)
	}
	return notes, errors.Join(rows.Err(), rows.Close())
}

func (o *Operator) tx(ctx context.Context, fn func(*sql.Tx) error) error {
	if o.d.Shared() {
		return inServerTx(ctx, o.db, fn)
	}
	return (&sqliteOutbox{db: o.db}).inTx(ctx, fn)
}

// ParseState returns the state of that name.
func ParseState(name string) (State, error) {
	for s := Pending; s <= Discarded; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("state %.40q is none of pending, held, failed, published, discarded", name)
}

// String returns the state's name.
func (s State) String() string {
	if s < Pending || s > Discarded {
		return strconv.Itoa(int(s))
	}
	return [...]string{"pending", "held", "failed", "published", "discarded"}[s]
}

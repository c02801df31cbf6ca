package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/tracing"
	"github.com/seambus/seambus/internal/txhook"
	"github.com/seambus/seambus/partition"
)

// Execer is the transaction that Record writes in: a *sql.Tx, or anything that runs a statement inside one.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// A bare Record does not know when its transaction will commit: the relay looks every burstEvery, for burstFor at most.
const (
	burstEvery = 5 * time.Millisecond
	burstFor   = time.Second
)

// Record writes the events as rows, in their order, with one statement in the caller's transaction tx. They are published
// after its commit and never if it rolls back. An event whose id was recorded before is skipped. Events that the transport
// would refuse (transport.ErrTooLarge holds), that the topic does not list or that are not valid fail the call before
// anything is written, so that the transaction can still be given up. Record does not commit; use [Outbox.InTx], or call
// [Outbox.Committed] after your own commit.
func (o *Outbox) Record(ctx context.Context, tx Execer, topic *event.Topic, events ...event.Event) error {
	if len(events) == 0 {
		return nil
	}
	rows := make([]dialect.Row, len(events))
	for i, e := range events {
		if err := o.row(ctx, topic, e, &rows[i]); err != nil {
			return fmt.Errorf("outbox: record in %q: event %d: %w", topic.Name(), i+1, err)
		}
	}
	n, err := o.store.Insert(ctx, tx, rows)
	if err != nil {
		return fmt.Errorf("outbox: record in %q: %w", topic.Name(), err)
	}
	o.count.recorded.Add(n)
	if err := crash.At(ctx, crash.Recorded); err != nil {
		return err
	}
	o.expectCommit(ctx, tx)
	return nil
}

func (o *Outbox) row(ctx context.Context, topic *event.Topic, e event.Event, into *dialect.Row) error {
	env, err := topic.Encode(ctx, e)
	if err != nil {
		return err
	}
	env.Source = o.cfg.source
	if env.Source == "" {
		env.Source = topic.Name()
	}
	env.Time = env.Time.Truncate(time.Microsecond) // as the column keeps it
	md := make(map[string]string, 4)
	tracing.Inject(ctx, md)
	env.Metadata = md
	if err := o.caps.Limits.Check(env.Message()); err != nil {
		return err
	}
	*into = dialect.Row{
		ID: env.ID, Source: env.Source, Topic: topic.Name(), Type: env.Type, SchemaVersion: env.SchemaVersion,
		ContentType: env.ContentType, Key: env.PartitionKey, Version: env.Version, HasVersion: env.HasVersion,
		Payload: env.Data, Created: env.Time, Shard: shardOf(env.PartitionKey, env.ID),
	}
	into.Metadata, err = extras(env, md)
	return err
}

// extras returns, as JSON, the metadata that has no column. A correlation id equal to the event's own is left out, and
// so is a subject equal to the key: most rows have both.
func extras(env *event.Envelope, md map[string]string) (string, error) {
	set := func(key, value, usual string) {
		if value != usual {
			md[key] = value
		}
	}
	set(event.MetaSubject, env.Subject, env.PartitionKey)
	set(event.MetaCorrelationID, env.CorrelationID, env.ID)
	set(event.MetaCausationID, env.CausationID, "")
	if len(md) == 0 {
		return "", nil
	}
	text, err := json.Marshal(md)
	return string(text), err
}

// shardOf spreads events without a key by their id.
func shardOf(key, id string) int {
	if key == "" {
		key = id
	}
	return partition.Shard(key)
}

// expectCommit arranges that the relay hears of the commit. A bare transaction's cannot be seen, so it looks out for it.
func (o *Outbox) expectCommit(ctx context.Context, tx Execer) {
	if sqlTx, ok := tx.(*sql.Tx); ok {
		if _, ours := o.open.Load(sqlTx); ours {
			return
		}
	}
	if txhook.After(ctx, o.Committed) {
		return
	}
	now := time.Now()
	if o.burst.Swap(dialect.Micros(now.Add(burstFor))) < dialect.Micros(now) {
		o.rouse() // the relay sleeps and must hear that it should not
	}
}

// Package wmsql lets a plain watermill-sql v3 Publisher write outbox rows, so that code which publishes in a transaction
// with watermill-sql today has its messages delivered by the relay without a change:
//
//	schema, err := wmsql.New(db)
//	pub, err := sql.NewPublisher(tx, sql.PublisherConfig{SchemaAdapter: schema}, logger)
//	err = pub.Publish("orders", msg)
//	err = tx.Commit()
//	box.Committed()
//
// It is a package of its own so that the core does not depend on watermill-sql.
package wmsql

import (
	stdsql "database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/partition"
)

// ErrNoSubscriber holds for what a watermill-sql Subscriber asks of a [Schema]: the relay alone reads the outbox.
var ErrNoSubscriber = errors.New("the outbox is read by its relay, not by a watermill-sql subscriber")

// Schema is a watermill-sql v3 SchemaAdapter for Publishers. Its exported fields may be set before first use; it is safe
// for concurrent use after that.
type Schema struct {
	// TypeOf returns a message's event type. The default takes the metadata ce_type, then name, which Watermill's CQRS
	// marshalers set, then the topic.
	TypeOf func(topic string, msg *message.Message) string
	// KeyOf returns a message's partition key. The default takes the metadata ce_partitionkey, and none if there is none.
	KeyOf func(topic string, msg *message.Message) string

	d      dialect.Dialect
	prefix string
}

var _ wsql.SchemaAdapter = (*Schema)(nil)

// New returns the schema of the outbox in db with the default table prefix.
func New(db *stdsql.DB) (*Schema, error) { return NewWithPrefix(db, dialect.DefaultPrefix) }

// NewWithPrefix is [New] for an outbox made with outbox.WithTablePrefix.
func NewWithPrefix(db *stdsql.DB, prefix string) (*Schema, error) {
	d, err := dialect.For(db)
	if err == nil {
		err = dialect.CheckPrefix(prefix)
	}
	if err != nil {
		return nil, fmt.Errorf("wmsql: new: %w", err)
	}
	return &Schema{TypeOf: typeOf, KeyOf: keyOf, d: d, prefix: prefix}, nil
}

func typeOf(topic string, msg *message.Message) string {
	for _, key := range []string{event.MetaType, "name"} {
		if v := msg.Metadata.Get(key); v != "" {
			return v
		}
	}
	return topic
}

func keyOf(_ string, msg *message.Message) string { return msg.Metadata.Get(event.MetaPartitionKey) }

// InsertQuery returns the statement that writes the messages as rows, in their order. A message's UUID is the event's id
// unless its metadata has one, and its metadata travels with it. A message that no row can carry is refused here, while
// the transaction can still be given up.
func (s *Schema) InsertQuery(topic string, msgs message.Messages) (wsql.Query, error) {
	if len(msgs) == 0 {
		return wsql.Query{}, errors.New("wmsql: publish: no messages")
	}
	rows := make([]dialect.Row, len(msgs))
	for i, msg := range msgs {
		if err := s.row(topic, msg, &rows[i]); err != nil {
			return wsql.Query{}, fmt.Errorf("wmsql: publish %q: message %d: %w", topic, i+1, err)
		}
	}
	query, args := s.d.InsertQuery(rows, s.prefix)
	return wsql.Query{Query: query, Args: args}, nil
}

func (s *Schema) row(topic string, msg *message.Message, into *dialect.Row) error {
	env, err := event.FromMessage(msg)
	if err != nil {
		return err
	}
	metadata, err := json.Marshal(msg.Metadata)
	if err != nil {
		return err
	}
	*into = dialect.Row{
		ID: env.ID, Source: or(env.Source, topic), Topic: topic, Type: s.TypeOf(topic, msg), SchemaVersion: env.SchemaVersion,
		ContentType: or(env.ContentType, "application/json"), Key: s.KeyOf(topic, msg), Version: env.Version, HasVersion: env.HasVersion,
		Payload: msg.Payload, Metadata: string(metadata), Created: time.Now(),
	}
	into.Shard = partition.Shard(or(into.Key, into.ID))
	return nil
}

func or(value, usual string) string {
	if value == "" {
		return usual
	}
	return value
}

// SelectQuery has no answer: see [ErrNoSubscriber]. The database refuses what it returns.
func (s *Schema) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: strings.ReplaceAll(ErrNoSubscriber.Error(), ",", "")}
}

// UnmarshalMessage returns [ErrNoSubscriber].
func (s *Schema) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) { return wsql.Row{}, ErrNoSubscriber }

// SchemaInitializingQueries returns none: `seambus migrate up` makes the tables.
func (s *Schema) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SubscribeIsolationLevel returns read committed; nobody asks.
func (s *Schema) SubscribeIsolationLevel() stdsql.IsolationLevel { return stdsql.LevelReadCommitted }

package wmsql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/outbox/wmsql"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// publish sends messages as a program does that knows watermill-sql only.
func publish(tb testing.TB, db *sql.DB, commit bool, msgs ...*message.Message) error {
	tb.Helper()
	schema, err := wmsql.New(db)
	check(tb, err)
	tx, err := db.Begin()
	check(tb, err)
	pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: schema}, nil)
	check(tb, err)
	if err := pub.Publish("orders", msgs...); err != nil || !commit {
		check(tb, tx.Rollback())
		return err
	}
	return tx.Commit()
}

func TestPlainPublisherIsDelivered(t *testing.T) {
	t.Parallel()
	dialecttest.Each(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox)
		broker := memory.New()
		defer broker.Close()
		sub, err := broker.Subscriber(transport.SubscriberConfig{Group: "g"})
		check(t, err)
		msgs, err := sub.Subscribe(t.Context(), "orders")
		check(t, err)
		box, err := outbox.New(db, broker, outbox.WithPoll(10*time.Millisecond))
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- box.Run(ctx) }()

		check(t, publish(t, db, false, message.NewMessage("gone", []byte("rolled back"))))
		first := message.NewMessage("first", []byte("\x00\xff not JSON"))
		first.Metadata.Set("name", "order.placed")
		first.Metadata.Set(event.MetaPartitionKey, "7")
		first.Metadata.Set("tenant", "blue")
		second := message.NewMessage("second", nil)
		second.Metadata.Set(event.MetaPartitionKey, "7")
		check(t, publish(t, db, true, first, second))

		got := <-msgs
		if got.UUID != "first" || string(got.Payload) != "\x00\xff not JSON" {
			t.Errorf("got %s %q", got.UUID, got.Payload)
		}
		for key, want := range map[string]string{
			event.MetaType: "order.placed", event.MetaPartitionKey: "7", "tenant": "blue", event.MetaSource: "orders", event.MetaID: "first",
		} {
			if v := got.Metadata.Get(key); v != want {
				t.Errorf("%s is %q, want %q", key, v, want)
			}
		}
		got.Ack()
		got = <-msgs
		if got.UUID != "second" || got.Metadata.Get(event.MetaType) != "orders" || len(got.Payload) != 0 {
			t.Errorf("then got %s %v %q", got.UUID, got.Metadata, got.Payload)
		}
		got.Ack()
		cancel()
		check(t, <-done)
		check(t, sub.Close())
	})
}

func TestWhatNoRowCanCarryIsRefused(t *testing.T) {
	t.Parallel()
	db := dialecttest.SQLite(t).Migrated(t, dialect.SetOutbox)
	for name, msg := range map[string]*message.Message{
		"no id":   message.NewMessage("", nil),
		"long id": message.NewMessage(strings.Repeat("x", 256), nil),
	} {
		if err := publish(t, db, true, msg); err == nil || !strings.Contains(err.Error(), "id has") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := publish(t, db, true); err == nil || !strings.Contains(err.Error(), "no messages") {
		t.Errorf("no messages: %v", err)
	}
}

func TestSubscriberIsRefused(t *testing.T) {
	t.Parallel()
	schema, err := wmsql.New(dialecttest.SQLite(t).Open(t))
	check(t, err)
	if _, err := schema.UnmarshalMessage(nil); !errors.Is(err, wmsql.ErrNoSubscriber) {
		t.Errorf("got %v", err)
	}
	if _, err := wmsql.NewWithPrefix(dialecttest.SQLite(t).Open(t), "a b"); !errors.Is(err, dialect.ErrIdentifier) {
		t.Errorf("prefix: %v", err)
	}
}

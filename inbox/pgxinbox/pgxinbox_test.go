package pgxinbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/inbox/pgxinbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deliver(id string) *message.Message {
	msg := (&event.Envelope{ID: id, Source: "shop", Type: "order.placed", PartitionKey: "k"}).Message()
	msg.SetContext(transport.WithDelivery(context.Background(), &transport.Delivery{Topic: "orders", Group: "g", Key: "k", Partition: -1}))
	return msg
}

// What a handler does through pgx commits or rolls back with the event's id, and with what it does through database/sql.
func TestPgxSharesTheInboxTransaction(t *testing.T) {
	t.Parallel()
	db := dialecttest.Postgres(t).Migrated(t, dialect.SetInbox)
	if _, err := db.Exec(`CREATE TABLE effects (id text)`); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db)
	if err != nil {
		t.Fatal(err)
	}
	errBoom := errors.New("boom")
	handle := func(fail bool) message.HandlerFunc {
		return in.Middleware("g")(func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			tx, err := pgxinbox.Tx(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id"}, pgx.CopyFromRows([][]any{{"copied"}})); err != nil {
				return nil, err
			}
			if _, err := inbox.Tx(ctx).ExecContext(ctx, `INSERT INTO effects VALUES ('sql')`); err != nil {
				return nil, err
			}
			err = pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, `INSERT INTO effects VALUES ('undone')`)
				return errors.Join(err, errBoom)
			})
			if !errors.Is(err, errBoom) {
				return nil, err
			}
			if err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, `INSERT INTO effects VALUES ($1)`, "kept")
				return err
			}); err != nil {
				return nil, err
			}
			if err := tx.Commit(ctx); !errors.Is(err, pgxinbox.ErrNotYours) {
				return nil, fmt.Errorf("commit gave %w", err)
			}
			if fail {
				return nil, errBoom
			}
			return nil, nil
		})
	}
	if _, err := handle(true)(deliver("e1")); !errors.Is(err, errBoom) {
		t.Fatalf("got %v", err)
	}
	for range 2 {
		if _, err := handle(false)(deliver("e1")); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	if err := db.QueryRow(`SELECT string_agg(id, ' ' ORDER BY id) FROM effects`).Scan(&got); err != nil || got != "copied kept sql" {
		t.Errorf("effects %q, %v", got, err)
	}
	if s := in.Stats(); s.Handled != 1 || s.Duplicates != 1 {
		t.Errorf("%+v", s)
	}
}

func TestElsewhereThereIsNone(t *testing.T) {
	t.Parallel()
	if _, err := pgxinbox.Tx(t.Context()); !errors.Is(err, pgxinbox.ErrNoTx) {
		t.Errorf("outside a handler: %v", err)
	}
	in, err := inbox.New(dialecttest.SQLite(t).Open(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = in.Middleware("g")(func(msg *message.Message) ([]*message.Message, error) {
		_, err := pgxinbox.Tx(msg.Context())
		return nil, err
	})(deliver("e1"))
	if !errors.Is(err, pgxinbox.ErrNoTx) {
		t.Errorf("on SQLite: %v", err)
	}
}

func ExampleTx() {
	handler := func(ctx context.Context) error {
		tx, err := pgxinbox.Tx(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE stock SET n = n - 1`)
		return err
	}
	fmt.Println(handler(context.Background()))
	// Output: pgxinbox: no inbox transaction on a database that was opened with pgx's stdlib driver
}

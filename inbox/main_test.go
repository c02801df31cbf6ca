package inbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const group = "fulfillment"

// bundle is an inbox over a database with one table of effects.
type bundle struct {
	db   *sql.DB
	path string
	in   *inbox.Inbox
}

const pragmas = "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)"

func newBundle(t testing.TB, conns int, opts ...inbox.Option) *bundle {
	t.Helper()
	b := &bundle{path: filepath.Join(t.TempDir(), "inbox.db")}
	b.db = openDB(t, b.path+pragmas, conns)
	mustExec(t, b.db, `CREATE TABLE effects (n INTEGER PRIMARY KEY, id TEXT NOT NULL)`)
	in, err := inbox.New(b.db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	b.in = in
	return b
}

func openDB(t testing.TB, dsn string, conns int) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

// one returns the single value of a query.
func one[T any](t testing.TB, db *sql.DB, query string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func (b *bundle) effects(t testing.TB) int {
	t.Helper()
	return one[int](t, b.db, `SELECT count(*) FROM effects`)
}
func (b *bundle) ids(t testing.TB) int {
	t.Helper()
	return one[int](t, b.db, `SELECT count(*) FROM seambus_inbox`)
}

// apply is the handler of most tests: its effect is a row.
func apply(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES (?)`, msg.UUID)
	return nil, err
}

func (b *bundle) handle(msg *message.Message, h message.HandlerFunc) error {
	_, err := b.in.Middleware(group)(h)(msg)
	return err
}

// deliver returns a message as a transport delivers it.
func deliver(env event.Envelope) *message.Message {
	msg := env.Message()
	ctx := transport.WithDelivery(context.Background(), &transport.Delivery{
		Topic: "orders", Group: group, Key: env.PartitionKey, Partition: -1, Deliveries: 1,
	})
	msg.SetContext(ctx)
	return msg
}

func versioned(id, key string, version uint64) event.Envelope {
	return event.Envelope{ID: id, Source: "shop", Type: "order.placed", PartitionKey: key, Version: version, HasVersion: true}
}

func wantStats(t testing.TB, in *inbox.Inbox, want inbox.Stats) {
	t.Helper()
	if got := in.Stats(); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

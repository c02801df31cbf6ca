package pgxoutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/outbox/pgxoutbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type placed struct {
	ID string `json:"id"`
}

func (placed) EventType() string      { return "order.placed" }
func (p placed) PartitionKey() string { return p.ID }
func (p placed) EventID() string      { return p.ID }

var orders = event.NewTopic("orders", placed{})

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

type bench struct {
	db   *sql.DB
	pool *pgxpool.Pool
	seen chan string
}

func setUp(t *testing.T) (*bench, transport.Transport) {
	t.Helper()
	d := dialecttest.Postgres(t)
	b := &bench{db: d.Migrated(t, dialect.SetOutbox), seen: make(chan string, 1000)}
	var err error
	b.pool, err = pgxpool.New(t.Context(), d.DSN)
	check(t, err)
	t.Cleanup(b.pool.Close)
	broker := memory.New()
	sub, err := broker.Subscriber(transport.SubscriberConfig{Group: "g"})
	check(t, err)
	msgs, err := sub.Subscribe(context.WithoutCancel(t.Context()), "orders")
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for msg := range msgs {
			msg.Ack()
			b.seen <- msg.UUID
		}
	})
	t.Cleanup(func() {
		check(t, sub.Close())
		wg.Wait()
		_ = broker.Close()
	})
	return b, broker
}

func run(t *testing.T, box *outbox.Outbox) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- box.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
	})
}

func (b *bench) await(t *testing.T, want ...string) {
	t.Helper()
	for _, id := range want {
		select {
		case got := <-b.seen:
			if got != id {
				t.Fatalf("delivered %s, want %s", got, id)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was never delivered", id)
		}
	}
}

// listening waits until what is true of a listening connection of this test is true of one.
func (b *bench) listening(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var n int
		check(t, b.db.QueryRow("SELECT "+what+` FROM pg_stat_activity WHERE query LIKE 'LISTEN seambus_outbox%'
			AND application_name = current_setting('application_name')`).Scan(&n))
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the relay never listened")
		}
	}
}

func TestRecordInAPgxTransaction(t *testing.T) {
	t.Parallel()
	b, broker := setUp(t)
	box, err := outbox.New(b.db, broker)
	check(t, err)
	run(t, box)
	ctx := t.Context()
	no := errors.New("no")
	err = pgxoutbox.InTx(ctx, box, b.pool, func(tx pgx.Tx) error {
		check(t, box.Record(ctx, pgxoutbox.Tx(tx), orders, placed{"a"}, placed{"b"}))
		return no
	})
	if !errors.Is(err, no) {
		t.Fatalf("got %v, want the error of the function", err)
	}
	check(t, pgxoutbox.InTx(ctx, box, b.pool, func(tx pgx.Tx) error {
		return box.Record(ctx, pgxoutbox.Tx(tx), orders, placed{"a"})
	}))
	b.await(t, "a")
	tx, err := b.pool.Begin(ctx) // a bare commit
	check(t, err)
	check(t, box.Record(ctx, pgxoutbox.Tx(tx), orders, placed{"a"}, placed{"b"}, placed{"c"}))
	check(t, tx.Commit(ctx))
	first, second := <-b.seen, <-b.seen
	if first+second != "bc" && first+second != "cb" {
		t.Errorf("delivered %s and %s, want b and c", first, second)
	}
	if got := box.Stats().Recorded; got != 5 {
		t.Errorf("recorded %d, want 5: two rolled back, a, b, c", got)
	}
}

// TestNotifyWakesAnotherProcess has a relay that would look by itself once a minute only.
func TestNotifyWakesAnotherProcess(t *testing.T) {
	t.Parallel()
	b, broker := setUp(t)
	listener, err := outbox.New(b.db, broker, outbox.WithPoll(time.Minute), outbox.WithLeaseTTL(time.Minute), pgxoutbox.Listen(b.db))
	check(t, err)
	run(t, listener)
	writer, err := outbox.New(b.db, broker)
	check(t, err)
	b.listening(t, "count(*)")
	for i := range 20 {
		id := fmt.Sprint("e", i)
		began := time.Now()
		check(t, pgxoutbox.InTx(t.Context(), writer, b.pool, func(tx pgx.Tx) error {
			return writer.Record(t.Context(), pgxoutbox.Tx(tx), orders, placed{id})
		}))
		b.await(t, id)
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v, want far less than the poll", d)
		}
	}
}

func TestListenAgainAfterTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	b, broker := setUp(t)
	var log strings.Builder
	var mu sync.Mutex
	box, err := outbox.New(b.db, broker, outbox.WithPoll(time.Minute), outbox.WithLeaseTTL(time.Minute), pgxoutbox.Listen(b.db),
		outbox.WithLogger(slog.New(slog.NewTextHandler(&locked{mu: &mu, b: &log}, nil))))
	check(t, err)
	run(t, box)
	b.listening(t, "count(pg_terminate_backend(pid))")
	writer, err := outbox.New(b.db, broker)
	check(t, err)
	check(t, pgxoutbox.InTx(t.Context(), writer, b.pool, func(tx pgx.Tx) error {
		return writer.Record(t.Context(), pgxoutbox.Tx(tx), orders, placed{"after"})
	}))
	b.await(t, "after")
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "polling meanwhile") {
		t.Errorf("the log says nothing of the lost connection: %s", log.String())
	}
}

type locked struct {
	mu *sync.Mutex
	b  *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func TestListenNeedsPgx(t *testing.T) {
	t.Parallel()
	b, broker := setUp(t)
	other := dialecttest.SQLite(t).Open(t)
	var log strings.Builder
	var mu sync.Mutex
	box, err := outbox.New(b.db, broker, pgxoutbox.Listen(other),
		outbox.WithLogger(slog.New(slog.NewTextHandler(&locked{mu: &mu, b: &log}, nil))))
	check(t, err)
	run(t, box)
	for deadline := time.Now().Add(10 * time.Second); ; {
		mu.Lock()
		text := log.String()
		mu.Unlock()
		if strings.Contains(text, "not opened with pgx") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say so: %s", text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

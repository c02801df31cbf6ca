package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
)

// databases are the servers that the environment names, and SQLite.
func databases(b *testing.B) map[string]func(testing.TB) dialecttest.Database {
	b.Helper()
	all := map[string]func(testing.TB) dialecttest.Database{"sqlite": dialecttest.SQLite}
	if os.Getenv(dialecttest.PostgresVariable) != "" {
		all["postgres"] = dialecttest.Postgres
	}
	if os.Getenv(dialecttest.MySQLVariable) != "" {
		all["mysql"] = dialecttest.MySQL
	}
	return all
}

// BenchmarkConnections compares, over 16 connections, a handler's transaction of one upsert with the same inside the inbox:
// claimed id, raised version. Interleaved in one run; the metric "cost" is the inbox's time by the bare one's.
func BenchmarkConnections(b *testing.B) {
	for name, database := range databases(b) {
		b.Run(name, func(b *testing.B) {
			d := database(b)
			if d.Name == dialect.MySQL {
				d.DSN += "&tx_isolation=%27READ-COMMITTED%27" // as New's comment advises
			}
			db := d.Migrated(b, dialect.SetInbox)
			db.SetMaxOpenConns(16)
			db.SetMaxIdleConns(16)
			mustExec(b, db, `CREATE TABLE orders (id BIGINT PRIMARY KEY, version BIGINT)`)
			in, err := inbox.New(db)
			if err != nil {
				b.Fatal(err)
			}
			upsert := map[dialect.Name]string{
				dialect.SQLite:   `INSERT INTO orders VALUES (%d, %d) ON CONFLICT (id) DO UPDATE SET version = excluded.version`,
				dialect.Postgres: `INSERT INTO orders VALUES (%d, %d) ON CONFLICT (id) DO UPDATE SET version = excluded.version`,
				dialect.MySQL:    `INSERT INTO orders VALUES (%d, %d) ON DUPLICATE KEY UPDATE version = VALUES(version)`,
			}[d.Name]
			bare := func(ctx context.Context, n int) error {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				if _, err := tx.ExecContext(ctx, fmt.Sprintf(upsert, n%1000, n)); err != nil {
					return err
				}
				return tx.Commit()
			}
			h := in.Middleware(group)(func(msg *message.Message) ([]*message.Message, error) {
				n, _ := strconv.Atoi(msg.Metadata["n"])
				_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), fmt.Sprintf(upsert, n%1000, n))
				return nil, err
			})
			through := func(_ context.Context, n int) error {
				env := versioned(event.NewID(), strconv.Itoa(n%1000), uint64(n+1))
				env.Metadata = map[string]string{"n": strconv.Itoa(n)}
				_, err := h(deliver(env))
				return err
			}
			var bareTime, inboxTime time.Duration
			rounds := 0
			for b.Loop() {
				bareTime += sixteen(b, rounds, bare)
				inboxTime += sixteen(b, rounds, through)
				rounds++
			}
			events := float64(rounds * benchRound)
			b.ReportMetric(events/bareTime.Seconds(), "bare/s")
			b.ReportMetric(events/inboxTime.Seconds(), "inbox/s")
			b.ReportMetric(float64(inboxTime)/float64(bareTime), "cost")
		})
	}
}

const benchRound = 320

// sixteen does a round of work in 16 goroutines. Each has keys of its own, as lanes would have it.
func sixteen(b *testing.B, round int, do func(context.Context, int) error) time.Duration {
	b.Helper()
	began := time.Now()
	done := make(chan error, 16)
	for g := range 16 {
		go func() {
			for i := range benchRound / 16 {
				if err := do(b.Context(), round*benchRound+i*16+g); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 16 {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// BenchmarkParkedPage lists a page of 100 parked events of one key, among as many behind 1,000 keys as SEAMBUS_BENCH_ROWS says
// (10,000 by default), and redrives a key of them.
func BenchmarkParkedPage(b *testing.B) {
	rows := 10_000
	if text := os.Getenv("SEAMBUS_BENCH_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for name, database := range databases(b) {
		b.Run(name, func(b *testing.B) {
			d := database(b)
			db := d.Migrated(b, dialect.SetInbox)
			in, err := inbox.New(db)
			if err != nil {
				b.Fatal(err)
			}
			fillParked(b, d.Name, db, rows)
			b.ResetTimer()
			var n atomic.Int64
			for b.Loop() {
				key := strconv.FormatInt(n.Add(1)%1000, 10)
				page, err := in.Parked(b.Context(), inbox.Filter{Group: group, Topic: "orders", Key: key, Limit: 100})
				if err != nil || len(page) != min(100, rows/1000) {
					b.Fatalf("%d events, %v", len(page), err)
				}
			}
		})
	}
}

// fillParked parks n events of 200 bytes behind 1,000 keys, each begun by a dead letter that holds.
func fillParked(b *testing.B, name dialect.Name, db *sql.DB, n int) {
	b.Helper()
	series := map[dialect.Name]string{
		dialect.SQLite:   `WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d - 1)`,
		dialect.Postgres: `WITH s(i) AS (SELECT generate_series(0, %d - 1))`,
		dialect.MySQL:    `WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d - 1)`,
	}[name]
	text := map[dialect.Name]string{dialect.SQLite: "TEXT", dialect.Postgres: "text", dialect.MySQL: "CHAR"}[name]
	payload := map[dialect.Name]string{dialect.SQLite: "zeroblob(200)", dialect.Postgres: "decode(repeat('00', 200), 'hex')", dialect.MySQL: "REPEAT('x', 200)"}[name]
	query := fmt.Sprintf(`INSERT INTO seambus_parked (grp, topic, partition_key, source, event_id, event_type, handler, message_uuid, metadata,
payload, state, holds, attempts, class, reason, parked_at) `+series+`
SELECT '%s', 'orders', CAST(i %% 1000 AS %s), 'shop', CAST(i AS %s), 't', 'h', CAST(i AS %s), '{}', %s,
CASE WHEN i < 1000 THEN 'dead' ELSE 'held' END, CASE WHEN i < 1000 THEN 1 ELSE 0 END, 1, 'permanent', 'r', 1 FROM s`,
		n, group, text, text, text, payload)
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if name == dialect.MySQL {
		if _, err := conn.ExecContext(b.Context(), `SET SESSION max_recursive_iterations = 100000000`); err != nil {
			b.Fatal(err)
		}
		query = "INSERT INTO seambus_parked" + query[len("INSERT INTO seambus_parked"):]
	}
	if _, err := conn.ExecContext(b.Context(), query); err != nil {
		b.Fatal(err)
	}
}

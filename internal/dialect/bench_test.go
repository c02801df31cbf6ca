package dialect_test

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
)

// benchRows is how many published rows a benchmark puts into the table: SEAMBUS_BENCH_ROWS, or few.
func benchRows(b *testing.B) int {
	b.Helper()
	n := 64_000
	if s := os.Getenv("SEAMBUS_BENCH_ROWS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	return n
}

// multiply doubles the table's rows until there are n, all in the given state.
func multiply(b *testing.B, db *sql.DB, n, state int) {
	b.Helper()
	exec := func(text string) int64 {
		res, err := db.Exec(text)
		if err != nil {
			b.Fatal(err)
		}
		m, _ := res.RowsAffected()
		return m
	}
	exec(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload, shard, state) VALUES ('seed', 't', 'x', 'k', '{}', 1, ` +
		strconv.Itoa(state) + `)`)
	for have, round := 1, 0; have < n; round++ {
		have += int(exec(fmt.Sprintf(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload, shard, state, published_at)
			SELECT concat('r%d-', seq), topic, type, partition_key, payload, shard, state, created_at FROM seambus_outbox ORDER BY seq LIMIT %d`,
			round, min(n-have, 100_000))))
	}
}

// poll reads as an idle relay does and returns the median time.
func poll(b *testing.B, o dialect.Outbox, want int) time.Duration {
	b.Helper()
	took := make([]time.Duration, 200)
	for i := range took {
		began := time.Now()
		n := 0
		err := o.Heads(b.Context(), 0, -1, 500, func(*dialect.Row) bool { n++; return true })
		if err == nil {
			_, err = o.Stragglers(b.Context(), 0, 1<<40, -1, 500)
		}
		took[i] = time.Since(began)
		if err != nil || n != want {
			b.Fatalf("%d rows, %v; want %d", n, err, want)
		}
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// BenchmarkPollBesidePublished compares a poll that finds three rows in a table of published ones with the same poll on a
// table that has nothing else.
func BenchmarkPollBesidePublished(b *testing.B) {
	rows := benchRows(b)
	for name, database := range map[dialect.Name]func(testing.TB) dialecttest.Database{
		dialect.Postgres: dialecttest.Postgres, dialect.MySQL: dialecttest.MySQL,
	} {
		b.Run(string(name), func(b *testing.B) {
			db := database(b).Migrated(b, dialect.SetOutbox)
			o, err := dialect.OpenOutbox(b.Context(), db, dialect.DefaultPrefix)
			if err != nil {
				b.Fatal(err)
			}
			three := func() {
				for i := range 3 {
					row := dialect.Row{ID: fmt.Sprint("new", time.Now().UnixNano(), i), Topic: "t", Type: "x", Key: "k", Shard: 1}
					if _, err := o.Insert(b.Context(), db, []dialect.Row{row}); err != nil {
						b.Fatal(err)
					}
				}
			}
			three()
			empty := poll(b, o, 3)
			if _, err := db.Exec("DELETE FROM seambus_outbox"); err != nil {
				b.Fatal(err)
			}
			multiply(b, db, rows, int(dialect.Published))
			three()
			var full time.Duration
			for b.Loop() {
				full = poll(b, o, 3)
			}
			b.ReportMetric(float64(full)/float64(empty), "x-empty")
			b.ReportMetric(float64(full.Microseconds()), "us/poll")
			b.ReportMetric(float64(rows), "rows")
			b.ReportMetric(0, "ns/op")
		})
	}
}

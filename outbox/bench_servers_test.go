package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

const (
	benchKeys    = 1000
	benchPayload = 500 // bytes of JSON
)

// sink is a broker that takes its time for each call and counts.
type sink struct {
	*fake
	delay  time.Duration
	single bool // takes one message at a time
	n      atomic.Int64
	want   int64
	done   chan struct{}
}

func newSink(delay time.Duration, single bool, want int) *sink {
	return &sink{fake: newFake(), delay: delay, single: single, want: int64(want), done: make(chan struct{})}
}

func (s *sink) Publisher() message.Publisher { return s }

func (s *sink) Publish(_ string, msgs ...*message.Message) error {
	calls := 1
	if s.single {
		calls = len(msgs)
	}
	if s.delay > 0 {
		for range calls {
			time.Sleep(s.delay)
		}
	}
	if s.n.Add(int64(len(msgs))) >= s.want && s.n.Load()-int64(len(msgs)) < s.want {
		close(s.done)
	}
	return nil
}

func (s *sink) await(b *testing.B) {
	b.Helper()
	select {
	case <-s.done:
	case <-time.After(2 * time.Minute):
		b.Fatalf("%d of %d were published", s.n.Load(), s.want)
	}
}

func benchEvents(from, n int) []event.Event {
	pad := strings.Repeat("x", benchPayload-40)
	events := make([]event.Event, n)
	for i := range events {
		events[i] = note{Key: fmt.Sprint("key-", (from+i)%benchKeys), N: from + i, Pad: pad}
	}
	return events
}

func fill(b *testing.B, db *sql.DB, n int) {
	b.Helper()
	box := newBox(b, db, newFake())
	for from := 0; from < n; from += 1000 {
		record(b, box, benchEvents(from, min(1000, n-from))...)
	}
	analyze(b, db, "seambus_outbox")
}

func analyze(b *testing.B, db *sql.DB, table string) {
	b.Helper()
	text := "ANALYZE TABLE " + table
	if d, _ := dialect.For(db); d.Name() == dialect.Postgres {
		text = "VACUUM ANALYZE " + table
	}
	_, err := db.Exec(text)
	check(b, err)
}

// drainSeambus returns the rate from the start of the relay to the last publish.
func drainSeambus(b *testing.B, d dialecttest.Database, s *sink, opts ...outbox.Option) float64 {
	b.Helper()
	db := d.Migrated(b, dialect.SetOutbox)
	fill(b, db, int(s.want))
	box := newBox(b, db, s, opts...)
	began := time.Now()
	stop := start(b, context.Background(), box)
	s.await(b)
	rate := float64(s.want) / time.Since(began).Seconds()
	check(b, stop())
	if n := count(b, db, "state = 3"); n != int(s.want) {
		b.Fatalf("%d rows are marked, want %d", n, s.want)
	}
	return rate
}

// drainWatermill does the same with Watermill's forwarder over watermill-sql.
func drainWatermill(b *testing.B, d dialecttest.Database, s *sink, batch int, poll time.Duration) float64 {
	b.Helper()
	db := d.Open(b)
	var schema wsql.SchemaAdapter = wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
	var offsets wsql.OffsetsAdapter = wsql.DefaultPostgreSQLOffsetsAdapter{}
	if d.Name == dialect.MySQL {
		schema, offsets = wsql.DefaultMySQLSchema{SubscribeBatchSize: batch}, wsql.DefaultMySQLOffsetsAdapter{}
	}
	pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	check(b, err)
	sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true,
		PollInterval: poll}, nil)
	check(b, err)
	envelopes := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: "events"})
	for from := 0; from < int(s.want); from += 1000 {
		var msgs []*message.Message
		for i, e := range benchEvents(from, min(1000, int(s.want)-from)) {
			env, err := notes.Encode(b.Context(), e)
			check(b, err)
			msgs = append(msgs, message.NewMessage(fmt.Sprint("m", from+i), env.Data))
		}
		check(b, envelopes.Publish("notes", msgs...))
	}
	analyze(b, db, "watermill_events")
	fwd, err := forwarder.NewForwarder(sub, s, nil, forwarder.Config{ForwarderTopic: "events"})
	check(b, err)
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- fwd.Run(context.Background()) }()
	s.await(b)
	rate := float64(s.want) / time.Since(began).Seconds()
	check(b, fwd.Close())
	check(b, <-done)
	return rate
}

// BenchmarkDrainBesideForwarder drains 20,000 rows of 500 bytes over 1,000 keys with the relay and with Watermill's
// forwarder, one after the other, and reports the ratio. The forwarder is given fewer where it would take minutes.
func BenchmarkDrainBesideForwarder(b *testing.B) {
	const rows, few = 20_000, 2000
	for _, c := range []struct {
		name   string
		delay  time.Duration
		single bool
		rows   int // of the forwarder
		batch  map[dialect.Name]int
		poll   time.Duration
	}{
		{"noop", 0, false, rows, map[dialect.Name]int{dialect.Postgres: 1000, dialect.MySQL: 5000}, 10 * time.Millisecond},
		{"2ms-batch", 2 * time.Millisecond, false, few, nil, time.Second},
		{"2ms-single", 2 * time.Millisecond, true, few, nil, time.Second},
	} {
		for name, database := range servers() {
			b.Run(c.name+"/"+string(name), func(b *testing.B) {
				var ratios, rates []float64
				for range b.N {
					theirs := drainWatermill(b, database(b), newSink(c.delay, c.single, c.rows), c.batch[name], c.poll)
					ours := drainSeambus(b, database(b), newSink(c.delay, c.single, rows), outbox.WithBatch(1000))
					ratios, rates = append(ratios, ours/theirs), append(rates, ours)
				}
				b.ReportMetric(median(ratios), "x-forwarder")
				b.ReportMetric(median(rates), "events/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func servers() map[dialect.Name]func(testing.TB) dialecttest.Database {
	return map[dialect.Name]func(testing.TB) dialecttest.Database{
		dialect.Postgres: dialecttest.Postgres, dialect.MySQL: dialecttest.MySQL,
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

var _ transport.Transport = (*sink)(nil)

// BenchmarkLatencyAfterDrain measures commit to publish right after very many rows were drained while another transaction
// is open, so that the database may clean nothing away. SEAMBUS_BENCH_ROWS sets how many.
func BenchmarkLatencyAfterDrain(b *testing.B) {
	rows := benchRows(b, 50_000)
	for name, database := range servers() {
		b.Run(string(name), func(b *testing.B) {
			d := database(b)
			db := d.Migrated(b, dialect.SetOutbox)
			drained(b, db, d.Open(b), rows)
			f := newFake()
			box := newBox(b, db, f)
			stop := start(b, context.Background(), box)
			record(b, box, note{Key: "first"})
			f.await(b, 1)
			var took []time.Duration
			for b.Loop() {
				for range 200 {
					n := len(f.all())
					record(b, box, note{Key: "k"})
					began := time.Now()
					f.await(b, n+1)
					took = append(took, time.Since(began))
					time.Sleep(10 * time.Millisecond) // 100 a second
				}
			}
			check(b, stop())
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// benchRows returns how many rows a benchmark is to have lying about: few, so that running each once is quick, or what
// SEAMBUS_BENCH_ROWS says.
func benchRows(b *testing.B, few int) (rows int) {
	b.Helper()
	s := os.Getenv("SEAMBUS_BENCH_ROWS")
	if s == "" {
		return few
	}
	_, err := fmt.Sscan(s, &rows)
	check(b, err)
	return rows
}

// drained puts rows through the states while a transaction of other watches.
func drained(b *testing.B, db, other *sql.DB, rows int) {
	b.Helper()
	for n := 1; n <= rows; n *= 2 {
		source := "FROM seambus_outbox"
		if n == 1 {
			source = ""
		}
		_, err := db.Exec(fmt.Sprintf(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload, shard)
			SELECT concat('r%d-', %s), 'notes', 'note.taken', 'k', '{}', 1 %s`, n, map[bool]string{true: "'seed'", false: "seq"}[n == 1], source))
		check(b, err)
	}
	watch, err := other.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	check(b, err)
	b.Cleanup(func() { _ = watch.Rollback() })
	var n int
	check(b, watch.QueryRow("SELECT count(*) FROM seambus_outbox").Scan(&n))
	_, err = db.Exec("UPDATE seambus_outbox SET state = 3, published_at = created_at")
	check(b, err)
}

// BenchmarkOrderPath has 16 connections place orders, by turns with Record and with a bare INSERT of the same row, and
// reports which part of the latter's rate is left. No relay runs.
func BenchmarkOrderPath(b *testing.B) {
	for name, database := range servers() {
		b.Run(string(name), func(b *testing.B) {
			db := database(b).Migrated(b, dialect.SetOutbox)
			db.SetMaxOpenConns(16)
			db.SetMaxIdleConns(16)
			_, err := db.Exec("CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, total INTEGER NOT NULL)")
			check(b, err)
			box := newBox(b, db, newFake())
			order, bare := orderTexts(name)
			event1 := benchEvents(0, 1)
			env, err := notes.Encode(b.Context(), event1[0])
			check(b, err)
			place := func(i int64, tx *sql.Tx, withRecord bool) error {
				if _, err := tx.Exec(order, fmt.Sprint("o", i), i); err != nil {
					return err
				}
				if withRecord {
					return box.Record(context.Background(), tx, notes, note{Key: event1[0].PartitionKey(), ID: fmt.Sprint("e", i), Pad: event1[0].(note).Pad})
				}
				_, err := tx.Exec(bare, fmt.Sprint("e", i), "notes", "notes", "note.taken", "", "application/json", event1[0].PartitionKey(), nil,
					env.Data, "", 7)
				return err
			}
			var next atomic.Int64
			var ratios []float64
			for b.Loop() {
				for range 5 {
					with := orderRate(b, db, &next, func(i int64, tx *sql.Tx) error { return place(i, tx, true) })
					without := orderRate(b, db, &next, func(i int64, tx *sql.Tx) error { return place(i, tx, false) })
					ratios = append(ratios, with/without)
				}
			}
			b.ReportMetric(median(ratios), "x-bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func orderTexts(name dialect.Name) (order, bare string) {
	const columns = "INSERT INTO seambus_outbox (event_id, source, topic, type, schema_version, content_type, partition_key, aggregate_version, payload, metadata, shard) VALUES "
	if name == dialect.Postgres {
		return "INSERT INTO orders VALUES ($1, $2)", columns + "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
	}
	return "INSERT INTO orders VALUES (?, ?)", columns + "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
}

// orderRate runs transactions on 16 connections for a second.
func orderRate(b *testing.B, db *sql.DB, next *atomic.Int64, place func(i int64, tx *sql.Tx) error) float64 {
	b.Helper()
	var done atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range 16 {
		wg.Go(func() {
			for time.Since(began) < time.Second {
				tx, err := db.Begin()
				if err == nil {
					err = place(next.Add(1), tx)
				}
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// BenchmarkBehindAFailingKey compares the rate of keys in the shard of a failing key, which has very many rows, with their rate
// where the same rows went out. A claim rests on SEAMBUS_BENCH_ROWS=100000 and several runs.
func BenchmarkBehindAFailingKey(b *testing.B) {
	const others = 10_000
	queue := benchRows(b, 10_000)
	for name, database := range servers() {
		b.Run(string(name), func(b *testing.B) {
			keys := sameShard("bad", 50)
			measure := func(failing bool) time.Duration {
				db := database(b).Migrated(b, dialect.SetOutbox)
				f := newFake()
				f.onOne = func(msg *message.Message) error {
					if failing && transport.Key(msg) == "bad" {
						return errors.New("not now")
					}
					return nil
				}
				box := newBox(b, db, f)
				pile(b, box, "bad", queue)
				stop := start(b, context.Background(), box)
				eventually(b, "the queue has left the head", func() bool { return count(b, db, "state = 0") == 0 })
				took := neighbours(b, box, f, keys, others)
				check(b, stop())
				return took
			}
			var ratios []float64
			for b.Loop() {
				ratios = append(ratios, measure(false).Seconds()/measure(true).Seconds())
			}
			b.ReportMetric(median(ratios), "x-healthy")
			b.ReportMetric(0, "ns/op")
		})
	}
}

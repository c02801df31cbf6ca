package inbox_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

const benchUpsert = `INSERT INTO orders (id, version, status) VALUES (?, ?, 'placed')
ON CONFLICT DO UPDATE SET version = excluded.version, status = excluded.status`

// BenchmarkHandle measures one event with a handler of one upsert: in a transaction of its own, and with the inbox.
func BenchmarkHandle(b *testing.B) {
	for name, keyed := range map[string]bool{"id": false, "id and version": true} {
		b.Run(name, func(b *testing.B) { benchmarkInbox(b, keyed) })
	}
	b.Run("without inbox", benchmarkBare)
}

func benchmarkInbox(b *testing.B, keyed bool) {
	bu := newBundle(b, 1)
	mustExec(b, bu.db, `CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER, status TEXT)`)
	upsert, err := bu.db.Prepare(benchUpsert)
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	h := bu.in.Middleware(group)(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		_, err := inbox.Tx(ctx).StmtContext(ctx, upsert).ExecContext(ctx, i%1000, i)
		return nil, err
	})
	b.ReportAllocs()
	for b.Loop() {
		env := event.Envelope{ID: event.NewID(), Source: "shop"}
		if keyed {
			env = versioned(env.ID, strconv.Itoa(i%1000), uint64(i))
		}
		msg := deliver(env)
		ctx, cancel := context.WithCancel(msg.Context()) // as every transport's messages have
		msg.SetContext(ctx)
		if _, err := h(msg); err != nil {
			b.Fatal(err)
		}
		cancel()
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	if n := bu.in.Stats().Handled; n != int64(i) {
		b.Fatalf("%d of %d events were handled", n, i)
	}
}

func benchmarkBare(b *testing.B) {
	bu := newBundle(b, 1)
	mustExec(b, bu.db, `CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER, status TEXT)`)
	upsert, err := bu.db.Prepare(benchUpsert)
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		tx, err := bu.db.BeginTx(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.StmtContext(ctx, upsert).ExecContext(ctx, i%1000, i); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

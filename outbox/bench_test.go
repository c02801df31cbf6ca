package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/seambus/seambus/outbox"
)

func benchRecord(b *testing.B, box *outbox.Outbox, n int) {
	ctx := context.Background()
	for i := range n {
		err := box.InTx(ctx, func(tx *sql.Tx) error {
			return box.Record(ctx, tx, notes, note{Key: fmt.Sprint(i % 1000), N: i})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	db := openDB(b)
	db.SetMaxOpenConns(1)
	box := newBox(b, db, newFake())
	b.ReportAllocs()
	b.ResetTimer()
	benchRecord(b, box, b.N)
}

func BenchmarkDrain(b *testing.B) {
	db := openDB(b)
	f := newFake()
	box := newBox(b, db, f)
	benchRecord(b, box, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	stop := start(b, context.Background(), box)
	f.await(b, b.N)
	check(b, stop())
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkRecordAndPublish has one transaction per event while the relay runs.
func BenchmarkRecordAndPublish(b *testing.B) {
	for _, conns := range []int{1, 4} {
		b.Run(fmt.Sprint("conns=", conns), func(b *testing.B) {
			db := openDB(b)
			db.SetMaxOpenConns(conns)
			f := newFake()
			box := newBox(b, db, f)
			stop := start(b, context.Background(), box)
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			benchRecord(b, box, b.N)
			f.await(b, b.N)
			check(b, stop())
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
		})
	}
}

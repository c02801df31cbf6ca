package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
)

func TestDroppedConnectionsInMidBatchLoseNothing(t *testing.T) {
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox)
		f := newFake()
		f.onCall = func(context.Context, string, []*message.Message) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}
		box := newBox(t, db, f, outbox.WithBatch(20), outbox.WithInFlight(100), outbox.WithWorkers(4), outbox.WithLeaseTTL(time.Second))
		const keys, n = 20, 50
		for k := range keys {
			record(t, box, keyed(fmt.Sprint("k", k), n)...)
		}
		admin := d.Open(t)
		admin.SetMaxOpenConns(1)
		start(t, t.Context(), box)
		dropped := 0
		for step := 1; step <= 5; step++ {
			f.await(t, step*keys*n/6)
			dropped += drop(t, admin, d)
		}
		if dropped == 0 {
			t.Fatal("no connection was dropped")
		}
		f.await(t, keys*n)
		eventually(t, "all rows are marked", func() bool {
			var marked int
			err := admin.QueryRow("SELECT count(*) FROM seambus_outbox WHERE state = 3").Scan(&marked)
			return err == nil && marked == keys*n
		})
		ids := perKey(f.all())
		for k := range keys {
			key := fmt.Sprint("k", k)
			wantOrder(t, ids[key], key, n)
		}
	})
}

// drop ends every connection of the test's database but admin's, as a failover does.
func drop(t *testing.T, admin *sql.DB, d dialecttest.Database) (n int) {
	t.Helper()
	if d.Name == dialect.Postgres {
		check(t, admin.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()`).Scan(&n))
		return n
	}
	rows, err := admin.Query("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
	check(t, err)
	var ids []int64
	for rows.Next() {
		var id int64
		check(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	check(t, rows.Err())
	for _, id := range ids {
		if _, err := admin.Exec(fmt.Sprint("KILL ", id)); err == nil { // it may be gone already
			n++
		}
	}
	return n
}

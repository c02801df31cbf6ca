package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

func TestALongTransactionElsewhereDelaysOnlyItsOwnRows(t *testing.T) {
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox)
		f := newFake()
		box := newBox(t, db, f)
		_, err := db.Exec("CREATE TABLE elsewhere (x INTEGER)")
		check(t, err)
		long := begin(t, d.Open(t)) // holds a transaction number, a snapshot, and a row of the outbox itself
		_, err = long.Exec("INSERT INTO elsewhere VALUES (1)")
		check(t, err)
		var n int
		check(t, long.QueryRow("SELECT count(*) FROM seambus_outbox").Scan(&n))
		check(t, box.Record(t.Context(), long, notes, note{Key: "long", ID: "long"}))
		start(t, t.Context(), box)
		for i := range 10 {
			record(t, box, keyed(fmt.Sprint("k", i), 10)...)
		}
		f.await(t, 100)
		eventually(t, "all others are marked", func() bool { return count(t, db, "state = 3") == 100 })
		check(t, long.Commit())
		f.await(t, 101)
		if last := f.ids()[100]; last != "long" || len(f.all()) != 101 {
			t.Errorf("the last of %d is %s, want the long transaction's after 100", len(f.all()), last)
		}
	})
}

func TestTwoOutboxesOnOneServer(t *testing.T) { // C10
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Open(t)
		of, err := dialect.For(db)
		check(t, err)
		fakes, boxes := make(map[string]*fake), make(map[string]*outbox.Outbox)
		for _, prefix := range []string{"shop_", "mail_"} {
			check(t, of.MigrateAs(t.Context(), db, dialect.SetOutbox, prefix))
			fakes[prefix] = newFake()
			boxes[prefix] = newBox(t, db, fakes[prefix], outbox.WithTablePrefix(prefix))
			start(t, t.Context(), boxes[prefix])
		}
		check(t, boxes["shop_"].InTx(t.Context(), func(tx *sql.Tx) error {
			return errors.Join(boxes["shop_"].Record(t.Context(), tx, notes, keyed("a", 1)...),
				boxes["mail_"].Record(t.Context(), tx, notes, keyed("b", 1)...))
		}))
		fakes["shop_"].await(t, 1)
		fakes["mail_"].await(t, 1)
		if a, b := fakes["shop_"].ids(), fakes["mail_"].ids(); a[0] != "a-1" || b[0] != "b-1" || len(a)+len(b) != 2 {
			t.Errorf("got %v and %v", a, b)
		}
	})
}

// sameShard returns n keys whose rows are leased together with those of key.
func sameShard(key string, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if k := fmt.Sprint("n", i); partition.Shard(k) == partition.Shard(key) {
			keys = append(keys, k)
		}
	}
	return keys
}

// pile records n rows of one key.
func pile(tb testing.TB, box *outbox.Outbox, key string, n int) {
	tb.Helper()
	const step = 5000
	for from := 0; from < n; from += step {
		events := make([]event.Event, min(step, n-from))
		for i := range events {
			events[i] = note{Key: key, N: from + i}
		}
		record(tb, box, events...)
	}
}

// neighbours records rows of the keys one by one and returns how long it took until all were published.
func neighbours(tb testing.TB, box *outbox.Outbox, f *fake, keys []string, n int) time.Duration {
	tb.Helper()
	before := len(f.all())
	began := time.Now()
	for i := 0; i < n; i += 100 {
		events := make([]event.Event, 100)
		for j := range events {
			events[j] = note{Key: keys[j%len(keys)], N: i + j}
		}
		record(tb, box, events...)
	}
	f.await(tb, before+n)
	return time.Since(began)
}

func TestALongQueueBehindAFailingKeyCostsOthersNothing(t *testing.T) {
	t.Parallel()
	const queue, others = 20_000, 5000 // BenchmarkBehindAFailingKey measures with more
	eachServer(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		f.onOne = func(msg *message.Message) error {
			if transport.Key(msg) == "bad" {
				return errors.New("not now")
			}
			return nil
		}
		box := newBox(t, db, f, outbox.WithBackoff(50*time.Millisecond, 200*time.Millisecond))
		pile(t, box, "bad", queue)
		start(t, t.Context(), box)
		eventually(t, "the key has left the head", func() bool { return count(t, db, "state = 0") == 0 })
		took := neighbours(t, box, f, sameShard("bad", 10), others)
		if took > 20*time.Second {
			t.Errorf("%d rows of the same shard took %v", others, took)
		}
		if n := count(t, db, "state = 1"); n != queue {
			t.Errorf("%d rows are held, want %d", n, queue)
		}
	})
}

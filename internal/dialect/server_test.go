package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
)

func serverOutbox(t *testing.T, d dialecttest.Database) (*sql.DB, dialect.Outbox) {
	t.Helper()
	db := d.Migrated(t, dialect.SetOutbox)
	o, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix)
	check(t, err)
	return db, o
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// published fills the outbox with n rows that were published long ago.
func published(t *testing.T, db *sql.DB, o dialect.Outbox, n int) {
	t.Helper()
	const step = 2000
	for from := 0; from < n; from += step {
		rows := make([]dialect.Row, min(step, n-from))
		for i := range rows {
			rows[i] = dialect.Row{ID: fmt.Sprint("old-", from+i), Topic: "t", Type: "x", Key: fmt.Sprint(i), Shard: i % 1024}
		}
		_, err := o.Insert(t.Context(), db, rows)
		check(t, err)
	}
	_, err := db.Exec("UPDATE seambus_outbox SET state = 3, published_at = '2020-01-01'")
	check(t, err)
}

func TestSweepersAreNeverInAWritersWay(t *testing.T) { // C09
	t.Parallel()
	const rows, limit = 200_000, 1000
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db, o := serverOutbox(t, d)
		published(t, db, o, rows)
		writers := impatient(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var written, deleted atomic.Int64
		for w := range 4 { // 50 a second each
			wg.Go(func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for i := 0; ctx.Err() == nil; i++ {
					<-tick.C
					if err := write(writers, o, fmt.Sprintf("new-%d-%d", w, i)); err != nil {
						t.Errorf("a writer was stopped: %v", err)
						return
					}
					written.Add(1)
				}
			})
		}
		var sweeping sync.WaitGroup
		for range 3 {
			sweeping.Go(func() {
				after := int64(0)
				for deleted.Load() < rows {
					s, err := o.Sweep(ctx, after, time.Now().Add(-time.Hour), limit)
					if err != nil {
						t.Errorf("a sweeper failed: %v", err)
						return
					}
					if s.Deleted > limit {
						t.Errorf("a batch of %d, want at most %d", s.Deleted, limit)
					}
					deleted.Add(s.Deleted)
					if after = s.Next; !s.More {
						after = 0
					}
				}
			})
		}
		sweeping.Wait()
		cancel()
		wg.Wait()
		if deleted.Load() != rows || written.Load() == 0 {
			t.Errorf("%d rows deleted, want %d; %d written meanwhile", deleted.Load(), rows, written.Load())
		}
		var left int64
		check(t, db.QueryRow("SELECT count(*) FROM seambus_outbox").Scan(&left))
		if left != written.Load() {
			t.Errorf("%d rows are left, want the %d that were written", left, written.Load())
		}
	})
}

// impatient returns connections that give up a lock after 200 ms, or the least that the server knows.
func impatient(t *testing.T, d dialecttest.Database) *sql.DB {
	t.Helper()
	if d.Name == dialect.Postgres {
		d.DSN += "&lock_timeout=200"
	} else {
		d.DSN += "&innodb_lock_wait_timeout=1"
	}
	return d.Open(t)
}

func write(db *sql.DB, o dialect.Outbox, id string) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	_, err = o.Insert(context.Background(), tx, []dialect.Row{{ID: id, Topic: "t", Type: "x", Key: "k", Shard: 1}})
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func TestOneSweeperAtATime(t *testing.T) { // C09
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db, o := serverOutbox(t, d)
		published(t, db, o, 10)
		tx, err := db.Begin() // another sweeper at work
		check(t, err)
		var name string
		check(t, tx.QueryRow("SELECT name FROM seambus_outbox_locks WHERE name = 'sweep' FOR UPDATE").Scan(&name))
		s, err := o.Sweep(t.Context(), 0, time.Now(), 100)
		if err != nil || s.Deleted != 0 {
			t.Errorf("swept %d rows beside another sweeper, %v", s.Deleted, err)
		}
		check(t, tx.Rollback())
		if s, err = o.Sweep(t.Context(), 0, time.Now(), 100); err != nil || s.Deleted != 10 {
			t.Errorf("swept %d rows alone, %v; want 10", s.Deleted, err)
		}
	})
}

func TestAFenceHoldsOffTheNextClaim(t *testing.T) { // C06
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db, o := serverOutbox(t, d)
		check(t, insertOne(t, db, o))
		a, err := o.Renew(t.Context(), "a", time.Time{}, 100*time.Millisecond)
		check(t, err)
		if len(a.Tokens) != dialect.Ranges || a.Share != dialect.Ranges {
			t.Fatalf("the first relay has %+v, want all ranges", a)
		}
		if b, err := o.Renew(t.Context(), "b", time.Time{}, time.Minute); err != nil || len(b.Tokens) != 0 {
			t.Fatalf("the second relay took %d ranges of a live one, %v", len(b.Tokens), err)
		}
		var b dialect.Claim
		for deadline := time.Now().Add(10 * time.Second); len(b.Tokens) < dialect.Ranges && time.Now().Before(deadline); {
			b, err = o.Renew(t.Context(), "b", time.Time{}, time.Minute)
			check(t, err)
		}
		for _, c := range []struct {
			owner string
			token int64
			want  int64
		}{{"a", a.Tokens[0], 0}, {"b", a.Tokens[0], 0}, {"b", b.Tokens[0], 1}} {
			f := dialect.Fence{Owner: c.owner, Token: c.token}
			if err := o.Hold(t.Context(), f, []int64{99}); err != nil {
				t.Error(err)
			}
			n, err := o.Mark(t.Context(), f, []int64{1}, time.Time{}, false)
			if err != nil || n != c.want {
				t.Errorf("mark by %s under %d changed %d rows, %v; want %d", c.owner, c.token, n, err, c.want)
			}
		}
	})
}

func insertOne(t *testing.T, db *sql.DB, o dialect.Outbox) error {
	t.Helper()
	_, err := o.Insert(t.Context(), db, []dialect.Row{{ID: "1", Topic: "t", Type: "x", Key: "k", Shard: 1}})
	return err
}

func TestServersMigrateConcurrentlyAndOnce(t *testing.T) {
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Open(t)
		of, err := dialect.For(db)
		check(t, err)
		if _, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix); !errors.Is(err, dialect.ErrSchema) ||
			!strings.Contains(err.Error(), "seambus migrate up") {
			t.Errorf("without tables: %v, want ErrSchema and what to do", err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := of.Migrate(context.Background(), db, dialect.SetOutbox); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		steps, err := of.Migrations(dialect.SetOutbox, dialect.DefaultPrefix)
		check(t, err)
		var n int
		if err := db.QueryRow("SELECT count(*) FROM seambus_migrations").Scan(&n); err != nil || n != len(steps) {
			t.Errorf("applied %d steps, %v; want %d", n, err, len(steps))
		}
		if _, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix); err != nil {
			t.Error(err)
		}
		check(t, of.MigrateAs(t.Context(), db, dialect.SetOutbox, "shop_"))
		if _, err := db.Exec("SELECT event_id FROM shop_outbox"); err != nil {
			t.Error(err)
		}
	})
}

// TestThisReleaseRunsOnANewerSchema adds what a later release may add, which is columns, indexes and tables.
func TestThisReleaseRunsOnANewerSchema(t *testing.T) {
	t.Parallel()
	dialecttest.Each(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox)
		insert := "INSERT INTO seambus_migrations (set_name, version, name) VALUES ('outbox', 99, '0099_later')"
		if d.Name == dialect.SQLite {
			insert = "INSERT INTO seambus_migrations (set_name, version, name, applied_at) VALUES ('outbox', 99, '0099_later', 0)"
		}
		for _, statement := range []string{
			"ALTER TABLE seambus_outbox ADD COLUMN later VARCHAR(10) NOT NULL DEFAULT 'x'",
			"ALTER TABLE seambus_outbox_leases ADD COLUMN later INTEGER",
			"CREATE INDEX seambus_outbox_later ON seambus_outbox (later, seq)",
			"CREATE TABLE seambus_later (x INTEGER)", insert,
		} {
			if d.Name == dialect.SQLite {
				statement = strings.ReplaceAll(statement, "VARCHAR(10)", "TEXT")
			}
			_, err := db.Exec(statement)
			check(t, err)
		}
		of, err := dialect.For(db)
		check(t, err)
		check(t, of.Migrate(t.Context(), db, dialect.SetOutbox))
		o, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix)
		check(t, err)
		check(t, insertOne(t, db, o))
		c, err := o.Renew(t.Context(), "a", time.Now(), time.Minute)
		check(t, err)
		n := 0
		check(t, o.Heads(t.Context(), 0, -1, 10, func(*dialect.Row) bool { n++; return true }))
		marked, err := o.Mark(t.Context(), dialect.Fence{Owner: "a", Token: c.Tokens[0]}, []int64{1}, time.Now(), false)
		if err != nil || n != 1 || marked != 1 {
			t.Errorf("%d rows read, %d marked, %v; want one of each", n, marked, err)
		}
		if v, err := of.Applied(t.Context(), db, dialect.SetOutbox, dialect.DefaultPrefix); err != nil || v != 99 {
			t.Errorf("version %d, %v; a newer schema must be left alone", v, err)
		}
	})
}

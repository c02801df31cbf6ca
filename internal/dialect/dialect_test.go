package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/seambus/seambus/internal/dialect"
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "x.db") +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestMigrateConcurrentlyAppliesEachStepOnce(t *testing.T) {
	t.Parallel()
	db := open(t)
	d, err := dialect.For(db)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := d.Migrate(context.Background(), db, dialect.SetOutbox); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	steps, err := d.Migrations(dialect.SetOutbox, dialect.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM seambus_migrations").Scan(&n); err != nil || n != len(steps) {
		t.Fatalf("applied %d steps, %v; want %d", n, err, len(steps))
	}
}

func TestMigrateAsNamesTables(t *testing.T) {
	t.Parallel()
	db := open(t)
	d, err := dialect.For(db)
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"shop_", "mail_"} {
		if err := d.MigrateAs(context.Background(), db, dialect.SetOutbox, prefix); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("SELECT * FROM " + prefix + "outbox"); err != nil {
			t.Error(err)
		}
	}
}

func TestMigrateRefusesPrefixes(t *testing.T) {
	t.Parallel()
	d, err := dialect.For(open(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"", "a;DROP TABLE x", "A", "1a", "a b", "a\n"} {
		if _, err := d.Migrations(dialect.SetOutbox, prefix); !errors.Is(err, dialect.ErrIdentifier) {
			t.Errorf("prefix %q: %v, want ErrIdentifier", prefix, err)
		}
	}
}

func TestForRefusesUnknownDriver(t *testing.T) {
	t.Parallel()
	if _, err := dialect.For(nil); err == nil {
		t.Error("nil database: no error")
	}
}

// Package dialecttest gives a test a database of its own on every server there is.
package dialecttest

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver pgx
	_ "modernc.org/sqlite"             // registers the driver sqlite

	"github.com/seambus/seambus/internal/dialect"
)

// The variables by which tests find servers; `scripts/services env` sets them.
const (
	PostgresVariable = "SEAMBUS_TEST_POSTGRES_URL"
	MySQLVariable    = "SEAMBUS_TEST_MYSQL_DSN"
)

// Database is a database that nobody else uses, empty. It is dropped at the end of the test.
type Database struct {
	Name   dialect.Name
	Driver string
	DSN    string
}

// Open returns a pool of connections, closed at the end of the test.
func (d Database) Open(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := sql.Open(d.Driver, d.DSN)
	check(tb, err)
	db.SetMaxIdleConns(20) // the default of 2 makes a new connection for every other statement under load
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// Migrated is Open with the tables of some sets.
func (d Database) Migrated(tb testing.TB, sets ...string) *sql.DB {
	tb.Helper()
	db := d.Open(tb)
	of, err := dialect.For(db)
	check(tb, err)
	for _, set := range sets {
		check(tb, of.Migrate(context.Background(), db, set))
	}
	return db
}

// Each runs a test on SQLite and as [EachServer] does, in parallel.
func Each(t *testing.T, fn func(t *testing.T, d Database)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		fn(t, SQLite(t))
	})
	EachServer(t, fn)
}

// EachServer runs a test on PostgreSQL and MySQL, in parallel.
func EachServer(t *testing.T, fn func(t *testing.T, d Database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		fn(t, Postgres(t))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		fn(t, MySQL(t))
	})
}

// SQLite returns a file.
func SQLite(tb testing.TB) Database {
	tb.Helper()
	return Database{dialect.SQLite, "sqlite", "file:" + filepath.Join(tb.TempDir(), "x.db") +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate"}
}

// Postgres returns a schema.
func Postgres(tb testing.TB) Database {
	tb.Helper()
	base := server(tb, PostgresVariable)
	name := scratchName()
	admin(tb, "pgx", base, "CREATE SCHEMA "+name, "DROP SCHEMA "+name+" CASCADE")
	u, err := url.Parse(base)
	check(tb, err)
	q := u.Query()
	q.Set("search_path", name)
	q.Set("application_name", name) // tells this test's connections in pg_stat_activity
	u.RawQuery = q.Encode()
	return Database{dialect.Postgres, "pgx", u.String()}
}

// MySQL returns a database.
func MySQL(tb testing.TB) Database {
	tb.Helper()
	base := server(tb, MySQLVariable)
	name := scratchName()
	admin(tb, "mysql", base, "CREATE DATABASE "+name, "DROP DATABASE "+name)
	cfg, err := mysql.ParseDSN(base)
	check(tb, err)
	cfg.DBName = name
	return Database{dialect.MySQL, "mysql", cfg.FormatDSN()}
}

// server returns the variable's value. Without one the test is skipped, or fails where nothing may be skipped.
func server(tb testing.TB, variable string) string {
	tb.Helper()
	dsn := os.Getenv(variable)
	const remedy = "%s is not set: run scripts/services up, then eval \"$(scripts/services env)\""
	switch {
	case dsn != "":
	case os.Getenv("CI") == "true":
		tb.Fatalf(remedy, variable)
	default:
		tb.Skipf(remedy, variable)
	}
	return dsn
}

func scratchName() string { return fmt.Sprintf("seambus_test_%016x", rand.Uint64()) }

// admin runs one statement now and the other at the end of the test.
func admin(tb testing.TB, driver, dsn, before, after string) {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	check(tb, err)
	tb.Cleanup(func() {
		if _, err := db.ExecContext(context.Background(), after); err != nil {
			tb.Error(err)
		}
		_ = db.Close()
	})
	_, err = db.ExecContext(tb.Context(), before)
	check(tb, err)
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Package dbtest gives tests databases of their own: SQLite in a file, and PostgreSQL and MySQL where servers are told of.
package dbtest

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
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	_ "modernc.org/sqlite"             // the driver

	"github.com/seambus/seambus/internal/dialect"
)

// The variables by which tests find servers; `scripts/services env` sets them.
const (
	postgresVariable = "SEAMBUS_TEST_POSTGRES_URL"
	mysqlVariable    = "SEAMBUS_TEST_MYSQL_DSN"
)

// EachDialect runs a test on a database of its own on SQLite, PostgreSQL and MySQL, with the tables of the sets in it. Without
// a server's variable its part is skipped, or fails where nothing may be skipped (CI).
func EachDialect(t *testing.T, sets []string, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		fn(t, SQLite(t, sets...))
	})
	EachServer(t, sets, fn)
}

// EachServer is EachDialect without SQLite.
func EachServer(t *testing.T, sets []string, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		driver, dsn := postgres(t)
		fn(t, open(t, driver, dsn, 16, sets))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		driver, dsn := mariadb(t)
		fn(t, open(t, driver, dsn, 16, sets))
	})
}

// SQLite returns a database in a file of the test's own.
func SQLite(tb testing.TB, sets ...string) *sql.DB {
	tb.Helper()
	dsn := "file:" + filepath.Join(tb.TempDir(), "test.db") +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate"
	return open(tb, "sqlite", dsn, 4, sets)
}

func open(tb testing.TB, driver, dsn string, conns int, sets []string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	check(tb, err)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	tb.Cleanup(func() { _ = db.Close() })
	d, err := dialect.For(db)
	check(tb, err)
	for _, set := range sets {
		check(tb, d.Migrate(context.Background(), db, set))
	}
	return db
}

// server returns the variable's value.
func server(tb testing.TB, variable string) string {
	tb.Helper()
	const remedy = `%s is not set: run scripts/services up, then eval "$(scripts/services env)"`
	dsn := os.Getenv(variable)
	switch {
	case dsn != "":
	case os.Getenv("CI") == "true":
		tb.Fatalf(remedy, variable)
	default:
		tb.Skipf(remedy, variable)
	}
	return dsn
}

// postgres makes a schema for this test alone.
func postgres(tb testing.TB) (driver, dsn string) {
	tb.Helper()
	base, name := server(tb, postgresVariable), scratchName()
	admin(tb, "pgx", base, "CREATE SCHEMA "+name, "DROP SCHEMA "+name+" CASCADE")
	u, err := url.Parse(base)
	check(tb, err)
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return "pgx", u.String()
}

// mariadb makes a database for this test alone.
func mariadb(tb testing.TB) (driver, dsn string) {
	tb.Helper()
	base, name := server(tb, mysqlVariable), scratchName()
	admin(tb, "mysql", base, "CREATE DATABASE "+name, "DROP DATABASE "+name)
	cfg, err := mysql.ParseDSN(base)
	check(tb, err)
	cfg.DBName = name
	return "mysql", cfg.FormatDSN()
}

func scratchName() string { return fmt.Sprintf("seambus_test_%016x", rand.Uint64()) }

// admin runs one statement now and the other at the end of the test.
func admin(tb testing.TB, driver, dsn, before, after string) {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	check(tb, err)
	tb.Cleanup(func() {
		if _, err := db.Exec(after); err != nil {
			tb.Error(err)
		}
		_ = db.Close()
	})
	_, err = db.Exec(before)
	check(tb, err)
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Bind returns a statement with its question marks as db wants them, for tests that write SQL of their own.
func Bind(tb testing.TB, db *sql.DB, statement string) string {
	tb.Helper()
	d, err := dialect.For(db)
	check(tb, err)
	return d.Bind(statement)
}

package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/seambus/seambus/internal/dialect"
)

// The variables by which tests find servers; `scripts/services env` sets them.
const (
	postgresVariable = "SEAMBUS_TEST_POSTGRES_URL"
	mysqlVariable    = "SEAMBUS_TEST_MYSQL_DSN"
)

// eachDialect runs a test on a database of its own on SQLite, PostgreSQL and MySQL.
func eachDialect(t *testing.T, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db := openDB(t)
		migrated(t, db)
		fn(t, db)
	})
	eachServer(t, fn)
}

// eachServer is eachDialect without SQLite.
func eachServer(t *testing.T, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		driver, dsn := postgresDSN(t)
		fn(t, openServer(t, driver, dsn))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		driver, dsn := mysqlDSN(t)
		fn(t, openServer(t, driver, dsn))
	})
}

func openServer(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	check(tb, err)
	db.SetMaxIdleConns(20)
	tb.Cleanup(func() { _ = db.Close() })
	migrated(tb, db)
	return db
}

func migrated(tb testing.TB, db *sql.DB) {
	tb.Helper()
	d, err := dialect.For(db)
	check(tb, err)
	check(tb, d.Migrate(context.Background(), db, dialect.SetOutbox))
}

// server returns the variable's value. Without one the test is skipped, or fails where nothing may be skipped.
func server(tb testing.TB, variable string) string {
	tb.Helper()
	dsn := os.Getenv(variable)
	switch {
	case dsn != "":
	case os.Getenv("CI") == "true":
		tb.Fatalf("%s is not set: run scripts/services up, then eval \"$(scripts/services env)\"", variable)
	default:
		tb.Skipf("%s is not set: run scripts/services up, then eval \"$(scripts/services env)\"", variable)
	}
	return dsn
}

func scratchName() string { return fmt.Sprintf("seambus_test_%016x", rand.Uint64()) }

// postgresDSN makes a schema for this test alone.
func postgresDSN(tb testing.TB) (driver, dsn string) {
	tb.Helper()
	base := server(tb, postgresVariable)
	name := scratchName()
	admin(tb, "pgx", base, "CREATE SCHEMA "+name, "DROP SCHEMA "+name+" CASCADE")
	u, err := url.Parse(base)
	check(tb, err)
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return "pgx", u.String()
}

// mysqlDSN makes a database for this test alone.
func mysqlDSN(tb testing.TB) (driver, dsn string) {
	tb.Helper()
	base := server(tb, mysqlVariable)
	name := scratchName()
	admin(tb, "mysql", base, "CREATE DATABASE "+name, "DROP DATABASE "+name)
	cfg, err := mysql.ParseDSN(base)
	check(tb, err)
	cfg.DBName = name
	return "mysql", cfg.FormatDSN()
}

// admin runs one statement now and the other at the end of the test.
func admin(tb testing.TB, driver, dsn, before, after string) {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	check(tb, err)
	tb.Cleanup(func() {
		_, err := db.Exec(after)
		if err != nil {
			tb.Error(err)
		}
		_ = db.Close()
	})
	_, err = db.Exec(before)
	check(tb, err)
}

func nameOf(tb testing.TB, db *sql.DB) dialect.Name {
	tb.Helper()
	d, err := dialect.For(db)
	check(tb, err)
	return d.Name()
}

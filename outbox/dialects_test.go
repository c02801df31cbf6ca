package outbox_test

import (
	"database/sql"
	"testing"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
)

// eachDialect runs a test on a database of its own on SQLite, PostgreSQL and MySQL.
func eachDialect(t *testing.T, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	dialecttest.Each(t, func(t *testing.T, d dialecttest.Database) { fn(t, d.Migrated(t, dialect.SetOutbox)) })
}

// eachServer is eachDialect without SQLite.
func eachServer(t *testing.T, fn func(t *testing.T, db *sql.DB)) {
	t.Helper()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) { fn(t, d.Migrated(t, dialect.SetOutbox)) })
}

package dialect

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// Sets of tables that migrate together.
const (
	SetOutbox = "outbox"
	SetInbox  = "inbox"
)

//go:embed schema
var schema embed.FS

// Migration is one step of a set's schema. Steps are numbered from 1 and never change once released.
type Migration struct {
	Version int
	Name    string
	SQL     string
}

// Migrations returns the steps of a set in order, with tables named by prefix. It is what `seambus migrate` prints.
func (d Dialect) Migrations(set, prefix string) ([]Migration, error) {
	if err := CheckPrefix(prefix); err != nil {
		return nil, err
	}
	dir := path.Join("schema", string(d.name), set)
	files, err := fs.ReadDir(schema, dir) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("dialect: migrations of %q on %s: %w", set, d.name, err)
	}
	steps := make([]Migration, 0, len(files))
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("dialect: migration %q of %q: name must begin with a number: %w", f.Name(), set, err)
		}
		text, err := fs.ReadFile(schema, path.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("dialect: migration %q of %q: %w", f.Name(), set, err)
		}
		steps = append(steps, Migration{Version: version, Name: strings.TrimSuffix(f.Name(), ".sql"), SQL: named(string(text), prefix)})
	}
	return steps, nil
}

// Sets returns the names of the sets of tables that d has migrations for.
func (d Dialect) Sets() ([]string, error) {
	dirs, err := fs.ReadDir(schema, path.Join("schema", string(d.name)))
	if err != nil {
		return nil, fmt.Errorf("dialect: migrations on %q: %w", d.name, err)
	}
	sets := make([]string, len(dirs))
	for i, dir := range dirs {
		sets[i] = dir.Name()
	}
	return sets, nil
}

// Applied returns the version of a set's tables in db: zero where there are none.
func (d Dialect) Applied(ctx context.Context, db *sql.DB, set, prefix string) (latest int, err error) {
	if err := CheckPrefix(prefix); err != nil {
		return 0, err
	}
	text := named(migrationsLatest, prefix)
	if d.Shared() {
		text = d.text(serverLatest, prefix)
	}
	err = db.QueryRowContext(ctx, text, set).Scan(&latest)
	if noTable(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("dialect: version of %q: %w", set, err)
	}
	return latest, nil
}

// noTable reports whether a statement failed because its table is not there.
func noTable(err error) bool {
	if err == nil {
		return false
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "42P01"
	}
	text := err.Error()
	return strings.Contains(text, "Error 1146") || strings.Contains(text, "no such table")
}

// Migrate brings the tables of a set, named with the default prefix, up to this release. It may be called by any number
// of processes at once; all but one find nothing to do. A schema newer than this release is left alone.
func (d Dialect) Migrate(ctx context.Context, db *sql.DB, set string) error {
	return d.MigrateAs(ctx, db, set, DefaultPrefix)
}

// MigrateAs is Migrate for tables whose names begin with prefix.
func (d Dialect) MigrateAs(ctx context.Context, db *sql.DB, set, prefix string) error {
	steps, err := d.Migrations(set, prefix)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("dialect: migrate %q: %w", set, err)
	}
	run := migrateServer
	if d.name == SQLite {
		run = migrate
	}
	if err := errors.Join(run(ctx, conn, d, steps, set, prefix), conn.Close()); err != nil {
		return fmt.Errorf("dialect: migrate %q: %w", set, err)
	}
	return nil
}

const (
	migrationsTable = `CREATE TABLE IF NOT EXISTS seambus_migrations (
	set_name TEXT NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL, applied_at INTEGER NOT NULL,
	PRIMARY KEY (set_name, version)) WITHOUT ROWID`
	migrationsLatest = `SELECT coalesce(max(version), 0) FROM seambus_migrations WHERE set_name = ?`
	migrationsInsert = `INSERT INTO seambus_migrations (set_name, version, name, applied_at) VALUES (?, ?, ?, ?)`
)

// migrate takes the database's write lock before it looks, so that two processes do not both find a step missing.
func migrate(ctx context.Context, conn *sql.Conn, _ Dialect, steps []Migration, set, prefix string) error {
	var latest int
	if conn.QueryRowContext(ctx, named(migrationsLatest, prefix), set).Scan(&latest) == nil && latest >= len(steps) {
		return nil // the usual start takes no lock
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := apply(ctx, conn, steps, set, prefix)
	end := "COMMIT"
	if err != nil {
		end = "ROLLBACK"
	}
	_, endErr := conn.ExecContext(context.WithoutCancel(ctx), end)
	return errors.Join(err, endErr)
}

func apply(ctx context.Context, conn *sql.Conn, steps []Migration, set, prefix string) error {
	if _, err := conn.ExecContext(ctx, named(migrationsTable, prefix)); err != nil {
		return err
	}
	var latest int
	if err := conn.QueryRowContext(ctx, named(migrationsLatest, prefix), set).Scan(&latest); err != nil {
		return err
	}
	for _, step := range steps {
		if step.Version <= latest {
			continue
		}
		if _, err := conn.ExecContext(ctx, step.SQL); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		if _, err := conn.ExecContext(ctx, named(migrationsInsert, prefix), set, step.Version, step.Name, Micros(time.Now())); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
	}
	return nil
}

// Micros returns t as the databases keep it: microseconds since 1970, zero for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Time is the reverse of [Micros].
func Time(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

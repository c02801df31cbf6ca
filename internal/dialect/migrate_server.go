package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
)

const (
	serverMigrations = `CREATE TABLE IF NOT EXISTS seambus_migrations (
	set_name VARCHAR(64) NOT NULL, version INTEGER NOT NULL, name VARCHAR(255) NOT NULL,
	applied_at {timestamp} NOT NULL DEFAULT ({now}), PRIMARY KEY (set_name, version))`
	serverLatest = `SELECT coalesce(max(version), 0) FROM seambus_migrations WHERE set_name = ?`
	serverInsert = `INSERT INTO seambus_migrations (set_name, version, name) VALUES (?, ?, ?)`

	// MySQL's named locks are the server's, so the name says which database is meant; it may have 64 characters.
	mysqlLock   = `SELECT GET_LOCK(sha1(concat('seambus', database(), ?)), 60)`
	mysqlUnlock = `SELECT RELEASE_LOCK(sha1(concat('seambus', database(), ?)))`
)

var errMigrationLock = errors.New("another process holds the migration lock for more than 60 s")

// migrateServer applies the steps that are missing under a lock that all processes share. PostgreSQL runs them in one
// transaction. MySQL commits each statement of a step by itself: they are written so that they can be run again.
func migrateServer(ctx context.Context, conn *sql.Conn, d Dialect, steps []Migration, set, prefix string) error {
	if latest, err := serverVersion(ctx, conn, d, set, prefix); err == nil && latest >= len(steps) {
		return nil // the usual start takes no lock
	}
	if d.name == MySQL {
		return mysqlLocked(ctx, conn, prefix, func() error { return applyServer(ctx, conn, d, steps, set, prefix) })
	}
	return inServerTx(ctx, conn, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, lockNumber(prefix)); err != nil {
			return err
		}
		return applyServer(ctx, tx, d, steps, set, prefix)
	})
}

func lockNumber(prefix string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("seambus migrate " + prefix)) // never fails
	return int64(h.Sum64())
}

func mysqlLocked(ctx context.Context, conn *sql.Conn, prefix string, fn func() error) error {
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, mysqlLock, prefix).Scan(&got); err != nil {
		return err
	}
	if got.Int64 != 1 {
		return errMigrationLock
	}
	err := fn()
	return errors.Join(err, conn.QueryRowContext(context.WithoutCancel(ctx), mysqlUnlock, prefix).Scan(&got))
}

// querier is a connection or a transaction.
type querier interface {
	Execer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func serverVersion(ctx context.Context, q querier, d Dialect, set, prefix string) (latest int, err error) {
	err = q.QueryRowContext(ctx, d.text(serverLatest, prefix), set).Scan(&latest)
	return latest, err
}

func applyServer(ctx context.Context, q querier, d Dialect, steps []Migration, set, prefix string) error {
	if _, err := q.ExecContext(ctx, d.text(serverMigrations, prefix)); err != nil {
		return err
	}
	latest, err := serverVersion(ctx, q, d, set, prefix)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if step.Version <= latest {
			continue
		}
		for _, statement := range statements(step.SQL) {
			if _, err := q.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", step.Name, err)
			}
		}
		if _, err := q.ExecContext(ctx, d.text(serverInsert, prefix), set, step.Version, step.Name); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
	}
	return nil
}

// statements parts a migration file: a statement ends with a semicolon at the end of a line. Comments are lines of their own.
func statements(text string) (all []string) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "--") {
			continue
		}
		b.WriteString(line)
		if strings.HasSuffix(trimmed, ";") {
			all = append(all, strings.TrimSuffix(strings.TrimSpace(b.String()), ";"))
			b.Reset()
		}
	}
	if rest := strings.TrimSpace(b.String()); rest != "" {
		all = append(all, rest)
	}
	return all
}

// inServerTx runs fn in a transaction of its own isolation, whatever the session's default is.
func inServerTx(ctx context.Context, db interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}, fn func(*sql.Tx) error,
) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		if rbErr := tx.Rollback(); rbErr != nil && !errors.Is(rbErr, sql.ErrTxDone) {
			err = errors.Join(err, rbErr)
		}
		return err
	}
	return tx.Commit()
}

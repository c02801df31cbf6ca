package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
)

// connection is where a command finds its database.
type connection struct {
	dialect string
	dsnEnv  string
}

func (f *connection) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.dialect, "dialect", "", "postgres, mysql (MariaDB too) or sqlite")
	flags.StringVar(&f.dsnEnv, "dsn-env", "SEAMBUS_DSN", "environment variable with the data source name, as the Go driver takes it; it is never a flag, since flags are seen by others")
}

func (f *connection) named() (dialect.Dialect, error) {
	d, err := dialect.Named(f.dialect)
	if err != nil {
		return d, fmt.Errorf("%w: --dialect: %w", errUsage, err)
	}
	return d, nil
}

// open connects. The driver's name is not the dialect's.
func (f *connection) open(ctx context.Context, d dialect.Dialect) (*sql.DB, error) {
	dsn := os.Getenv(f.dsnEnv)
	if dsn == "" {
		return nil, fmt.Errorf("%w: environment variable %s is empty: put the data source name there or name another by --dsn-env",
			errUsage, f.dsnEnv)
	}
	driver := map[dialect.Name]string{dialect.Postgres: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite"}[d.Name()]
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, fmt.Errorf("open the database in %s: %w", f.dsnEnv, err)
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("reach the database in %s: %w", f.dsnEnv, err), db.Close())
	}
	return db, nil
}

// withInbox runs fn on the inbox of the database.
func (f *connection) withInbox(ctx context.Context, fn func(*inbox.Inbox) error) error {
	return f.withDB(ctx, func(db *sql.DB) error {
		in, err := inbox.New(db)
		if err != nil {
			return err
		}
		return fn(in)
	})
}

// withDB runs fn on the database.
func (f *connection) withDB(ctx context.Context, fn func(*sql.DB) error) (err error) {
	d, err := f.named()
	if err != nil {
		return err
	}
	db, err := f.open(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return fn(db)
}

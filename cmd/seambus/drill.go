package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/drill"
)

var errBroken = errors.New("a promise was broken")

type drillFlags struct {
	connection
	orders, scale int
	length        time.Duration
	asJSON        bool
}

func drillCommand() *cobra.Command {
	f := new(drillFlags)
	what := append(drill.Names(), "all")
	c := &cobra.Command{
		Use: "drill " + strings.Join(what, "|"), Short: "Let one thing go wrong on purpose, and prove that the promises hold",
		Long: `Runs the whole path, from an order's transaction over outbox, relay, a broker in the process, and inbox to the consumer's
effect, lets one thing go wrong, and asks the tables what became of every order:

  rollback        orders are rolled back after their event was recorded
  outage          the broker is away while orders come in
  relay-crash     the relay is killed between publish and mark
  consumer-crash  the consumer is killed between commit and acknowledgement

Without --dialect it uses an SQLite file of its own. On a server it makes a schema (PostgreSQL) or a database (MySQL,
MariaDB) of its own called seambus_drill_ and a number, and drops it at the end: it needs the right to do so, and nothing
else on the server is touched. On SQLite the file of the data source is not touched either.

The exit code is 5 if a promise was broken.`,
		Args: usage(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)), ValidArgs: what,
		RunE: f.run,
	}
	f.bind(c.Flags())
	c.Flags().IntVar(&f.orders, "orders", 500, "how many orders")
	c.Flags().DurationVar(&f.length, "for", 30*time.Second, "how long the outage lasts; the orders are spread over it")
	c.Flags().IntVar(&f.scale, "scale", 1, "divide all times by this")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	return c
}

func (f *drillFlags) run(c *cobra.Command, args []string) error {
	var errs []error
	if f.orders < 10 || f.orders > 10_000_000 {
		errs = append(errs, fmt.Errorf("--orders is %d, want 10 to 10000000", f.orders))
	}
	if f.scale < 1 || f.scale > 10_000 {
		errs = append(errs, fmt.Errorf("--scale is %d, want 1 to 10000", f.scale))
	}
	if f.length <= 0 {
		errs = append(errs, fmt.Errorf("--for is %v, want more than zero", f.length))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	names := args
	if args[0] == "all" {
		names = drill.Names()
	}
	var results []*drill.Result
	for _, name := range names {
		r, err := f.one(c.Context(), drill.Config{Name: name, Orders: f.orders, For: f.length, Scale: f.scale})
		if err != nil {
			return err
		}
		results = append(results, r)
		if !f.asJSON {
			sayf(c.OutOrStdout(), "%s\n", r)
		}
	}
	if f.asJSON {
		if err := printJSON(c.OutOrStdout(), results); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(results, func(r *drill.Result) bool { return len(r.Broken) > 0 }) {
		return errBroken
	}
	return nil
}

// one carries out a drill in a place of its own.
func (f *drillFlags) one(ctx context.Context, cfg drill.Config) (r *drill.Result, err error) {
	db, drop, err := f.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	return drill.Run(ctx, db, cfg)
}

// scratch makes a place that nobody else uses.
func (f *drillFlags) scratch(ctx context.Context) (db *sql.DB, drop func() error, err error) {
	if f.dialect == "" {
		f.dialect = string(dialect.SQLite)
	}
	d, err := f.named()
	if err != nil {
		return nil, nil, err
	}
	if d.Name() == dialect.SQLite {
		return scratchFile()
	}
	server, err := f.open(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	name := fmt.Sprintf("seambus_drill_%016x", rand.Uint64())
	create, remove, err := d.Scratch(name)
	if err == nil {
		_, err = server.ExecContext(ctx, create)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make %s for the drill: %w", name, err), server.Close())
	}
	db, err = within(d, os.Getenv(f.dsnEnv), name)
	drop = func() error {
		var closeErr error
		if db != nil {
			closeErr = db.Close()
		}
		_, err := server.ExecContext(context.WithoutCancel(ctx), remove)
		if err != nil {
			err = fmt.Errorf("drop %s: %w", name, err)
		}
		return errors.Join(closeErr, err, server.Close())
	}
	if err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	db.SetMaxIdleConns(20)
	return db, drop, nil
}

func scratchFile() (*sql.DB, func() error, error) {
	dir, err := os.MkdirTemp("", "seambus-drill-")
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "drill.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return db, func() error { return errors.Join(db.Close(), remove()) }, nil
}

// within opens the server's schema, or database, of that name.
func within(d dialect.Dialect, dsn, name string) (*sql.DB, error) {
	if d.Name() == dialect.Postgres {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		cfg.RuntimeParams["search_path"] = name
		return stdlib.OpenDB(*cfg), nil
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	cfg.DBName = name
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

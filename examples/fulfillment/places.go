package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver

	"github.com/seambus/seambus/examples/fulfillment/monolith"
	"github.com/seambus/seambus/examples/fulfillment/report"
	"github.com/seambus/seambus/examples/fulfillment/service"
)

// places are the two databases: files of SQLite, schemas of PostgreSQL, or databases of MySQL or MariaDB.
type places struct {
	kind, url, monolith, service string
}

// newPlaces chooses where they are: where the user wants to keep them, or where they go with the program.
func newPlaces(ctx context.Context, o options) (places, func(), error) {
	kind, rest, _ := strings.Cut(o.db, "://")
	switch kind {
	case "", report.SQLite:
		if rest == "" {
			rest = o.keep
		}
		return newFiles(rest)
	case report.Postgres, "postgresql":
		kind = report.Postgres
	case report.MySQL, "mariadb":
		kind = report.MySQL
	default:
		return places{}, nil, fmt.Errorf("--db: %.20q is none of sqlite://, postgres:// and mysql://", kind)
	}
	name := o.keep
	if name == "" {
		name = fmt.Sprintf("fulfillment_%08x", rand.Uint32())
	}
	if !regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`).MatchString(name) {
		return places{}, nil, fmt.Errorf("--keep: %.60q names schemas here, want [a-z_][a-z0-9_]{0,39}", name)
	}
	return newSchemas(ctx, places{kind: kind, url: o.db, monolith: name + "_monolith", service: name + "_service"}, o.keep == "")
}

func newFiles(dir string) (places, func(), error) {
	remove := func() {}
	if dir == "" {
		tmp, err := os.MkdirTemp("", "fulfillment-")
		if err != nil {
			return places{}, nil, fmt.Errorf("databases: %w", err)
		}
		dir, remove = tmp, func() { _ = os.RemoveAll(tmp) } // what is left of it is the system's to clean
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return places{}, nil, fmt.Errorf("--keep: %w", err)
	}
	return places{kind: report.SQLite, monolith: filepath.Join(dir, "monolith.db"), service: filepath.Join(dir, "service.db")}, remove, nil
}

// newSchemas makes both on the server, and drops them at the end if they are only for this run.
func newSchemas(ctx context.Context, p places, drop bool) (places, func(), error) {
	create, remove := "CREATE SCHEMA IF NOT EXISTS %s", "DROP SCHEMA IF EXISTS %s CASCADE"
	if p.kind == report.MySQL {
		create, remove = "CREATE DATABASE IF NOT EXISTS %s", "DROP DATABASE IF EXISTS %s"
	}
	server, err := connect(p, "")
	if err != nil {
		return p, nil, fmt.Errorf("--db: %w", err)
	}
	each := func(ctx context.Context, statement string) (err error) {
		for _, name := range []string{p.monolith, p.service} {
			_, execErr := server.ExecContext(ctx, fmt.Sprintf(statement, name))
			err = errors.Join(err, execErr)
		}
		return err
	}
	closeAll := func() {
		if drop {
			_ = each(context.WithoutCancel(ctx), remove) // what is left of it has a name of its own
		}
		_ = server.Close()
	}
	if err := each(ctx, create); err != nil {
		closeAll()
		return p, nil, fmt.Errorf("--db: %w", err)
	}
	return p, closeAll, nil
}

// open opens an SQLite file. It has one writer at a time whatever is done, and one connection waits better than many.
func open(path string) (*sql.DB, func(), error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"+
		"&_pragma=busy_timeout(10000)&_pragma=wal_autocheckpoint(4000)&_txlock=immediate")
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return db, func() { _ = db.Close() }, nil
}

// connections is how many each side may have: what is idle is kept, since a new one costs more than a transaction.
const connections = 20

// connect opens a schema of the server; an empty name is the URL's own.
func connect(p places, name string) (*sql.DB, error) {
	open := openPostgres
	if p.kind == report.MySQL {
		open = openMySQL
	}
	db, err := open(p.url, name)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

func openPostgres(link, schema string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(link)
	if err != nil {
		return nil, err
	}
	if schema != "" {
		cfg.RuntimeParams["search_path"] = schema
	}
	return stdlib.OpenDB(*cfg), nil
}

func openMySQL(link, database string) (*sql.DB, error) {
	u, err := url.Parse(link)
	if err != nil {
		return nil, errors.New("not a URL, want mysql://user:password@host:port/")
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.InterpolateParams = "tcp", u.Host, u.User.Username(), true
	cfg.Passwd, _ = u.User.Password()
	if cfg.DBName = database; database == "" {
		cfg.DBName = strings.TrimPrefix(u.Path, "/")
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (p places) open(name string) (*sql.DB, func(), error) {
	if p.kind == report.SQLite {
		return open(name)
	}
	db, err := connect(p, name)
	if err != nil {
		return nil, nil, err
	}
	return db, func() { _ = db.Close() }, nil
}

func newMonolithDB(p places) (monolith.DB, func(), error) {
	db, closeDB, err := p.open(p.monolith)
	return monolith.DB{DB: db, Kind: p.kind}, closeDB, err
}

func newServiceDB(p places) (service.DB, func(), error) {
	db, closeDB, err := p.open(p.service)
	return service.DB{DB: db, Kind: p.kind}, closeDB, err
}

// Package dialect is the only place with SQL text: it knows which database it talks to, keeps the schemas as embedded,
// versioned files, and runs the statements of the outbox and the inbox.
package dialect

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// Name names a database product.
type Name string

// The databases that statements exist for. MySQL is MariaDB too.
const (
	SQLite   Name = "sqlite"
	Postgres Name = "postgres"
	MySQL    Name = "mysql"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrUnknown holds for a database whose driver is not recognised.
	ErrUnknown = errors.New("no dialect for this database driver")
	// ErrSchema holds for a database whose tables are missing or older than this release needs.
	ErrSchema = errors.New("run `seambus migrate up`")
	// ErrIdentifier holds for a table prefix that is no plain identifier.
	ErrIdentifier = errors.New("identifier must match [a-z_][a-z0-9_]{0,39}")
)

// DefaultPrefix begins the name of every table unless another prefix is chosen.
const DefaultPrefix = "seambus_"

// Dialect is one database product's way of saying things. The zero value is of no use; see [For].
type Dialect struct{ name Name }

// For returns the dialect of db, by the package of its driver. It does not talk to the database.
func For(db *sql.DB) (Dialect, error) {
	if db == nil {
		return Dialect{}, errors.New("dialect: database is nil")
	}
	t := reflect.TypeOf(db.Driver())
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	driver := strings.ToLower(t.PkgPath() + "." + t.Name())
	for _, known := range []struct {
		part string
		name Name
	}{{"sqlite", SQLite}, {"pgx", Postgres}, {"lib/pq", Postgres}, {"mysql", MySQL}} {
		if strings.Contains(driver, known.part) {
			return Dialect{name: known.name}, nil
		}
	}
	return Dialect{}, fmt.Errorf("dialect: driver %s.%s: %w", t.PkgPath(), t.Name(), ErrUnknown)
}

// Named returns the dialect of that name.
func Named(name string) (Dialect, error) {
	switch n := Name(name); n {
	case SQLite, Postgres, MySQL:
		return Dialect{name: n}, nil
	default:
		return Dialect{}, fmt.Errorf("dialect: %.40q is none of sqlite, postgres, mysql: %w", name, ErrUnknown)
	}
}

// Name returns the database product's name.
func (d Dialect) Name() Name { return d.name }

// Shared reports whether the database is a server's, which other processes use too and which has a clock for all of them.
func (d Dialect) Shared() bool { return d.name != SQLite }

// CreatesTables reports whether the library creates its tables by itself when it starts. Elsewhere `seambus migrate` does.
func (d Dialect) CreatesTables() bool { return d.name == SQLite }

// CheckPrefix reports whether prefix may begin a table's name: it is put into SQL text, so nothing else must pass.
func CheckPrefix(prefix string) error {
	if !regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`).MatchString(prefix) {
		return fmt.Errorf("dialect: table prefix %.80q: %w", prefix, ErrIdentifier)
	}
	return nil
}

// named returns the statement with prefix in place of the default one. The text is written with the default prefix, so
// that it can be read and tried as it stands.
func named(statement, prefix string) string {
	if prefix == DefaultPrefix {
		return statement
	}
	return strings.ReplaceAll(statement, DefaultPrefix, prefix)
}

package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// errFoundRows holds for a MySQL connection on which nobody can tell a row that was there from one that was changed.
var errFoundRows = errors.New("the connection counts found rows as affected: leave out clientFoundRows")

const serverNoChange = `UPDATE seambus_migrations SET name = name WHERE set_name = ?`

// Check reports whether the tables of a set are there and as this release needs them ([ErrSchema] holds otherwise), and, on
// MySQL, whether the connection tells what a statement changed. On SQLite it finds nothing to check: the tables were created.
func (d Dialect) Check(ctx context.Context, db *sql.DB, set string) error {
	if d.CreatesTables() {
		return nil
	}
	steps, err := d.Migrations(set, DefaultPrefix)
	if err != nil {
		return err
	}
	have, err := serverVersion(ctx, db, d, set, DefaultPrefix)
	switch {
	case err != nil && ctx.Err() == nil && db.PingContext(ctx) == nil:
		return fmt.Errorf("dialect: %s tables are not there: %w: %w", set, ErrSchema, err)
	case err != nil:
		return fmt.Errorf("dialect: %s: %w", set, err)
	case have < len(steps):
		return fmt.Errorf("dialect: %s tables are at version %d, want %d: %w", set, have, len(steps), ErrSchema)
	case d.name != MySQL:
		return nil
	}
	res, err := db.ExecContext(ctx, d.text(serverNoChange, DefaultPrefix), set)
	if err != nil {
		return fmt.Errorf("dialect: %s: %w", set, err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 0 {
		return errors.Join(fmt.Errorf("dialect: %s: %w", set, errFoundRows), err)
	}
	return nil
}

// ReadsCommitted reports whether the connections' transactions read what is committed unless told otherwise. Asking for it anew
// costs MySQL a round trip for every transaction.
func (d Dialect) ReadsCommitted(ctx context.Context, db *sql.DB) bool {
	if d.name != MySQL {
		return false
	}
	for _, variable := range []string{"@@transaction_isolation", "@@tx_isolation"} { // MySQL's name, MariaDB's
		var level string
		if db.QueryRowContext(ctx, "SELECT "+variable).Scan(&level) == nil {
			return level == "READ-COMMITTED"
		}
	}
	return false
}

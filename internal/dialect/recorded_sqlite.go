package dialect

import (
	"context"
	"database/sql"
)

const sqliteRecorded = `SELECT ` + sqliteColumns + ` FROM seambus_outbox ORDER BY seq`

// Recorded returns every row of the outbox in db whose tables have the default names, in their order, whatever became of
// it: for tests. Only SQLite is known to it.
func Recorded(ctx context.Context, db *sql.DB) (all []*Row, err error) {
	rows, err := db.QueryContext(ctx, sqliteRecorded)
	err = scanRows(rows, err, func(r *Row) bool {
		all = append(all, r)
		return true
	})
	return all, err
}

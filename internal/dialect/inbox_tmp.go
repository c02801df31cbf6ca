package dialect

import (
	"context"
	"database/sql"
	_ "embed"
	"strings"
)

//go:embed schema/sqlite/inbox/0001_init.sql
var tmpInit string

func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	s := strings.NewReplacer("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", "CREATE INDEX", "CREATE INDEX IF NOT EXISTS").Replace(tmpInit)
	_, err := db.ExecContext(ctx, s)
	return sqliteInbox(), err
}

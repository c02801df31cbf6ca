package dialect

import (
	"strconv"
	"strings"
)

// The statements of the servers are written once. What the two say differently stands in braces:
//
//	{now}          the server's clock, in UTC
//	{later}        now plus ? microseconds, {ago} now less them
//	{epoch c}      microseconds from 1970 to column c
//	{age c}        microseconds from column c to now
//	{ids}          seq is among the list that ids gives
//	{this key}     the row is blocked and of topic ? and key ?
//	{share}        lock the rows that are read against change, not against each other
var serverWords = map[Name]*strings.Replacer{
	Postgres: strings.NewReplacer(
		"{timestamp}", "timestamptz",
		"{now}", "clock_timestamp()",
		"{later}", "clock_timestamp() + CAST(? AS bigint) * interval '1 microsecond'",
		"{ago}", "clock_timestamp() - CAST(? AS bigint) * interval '1 microsecond'",
		"{epoch created_at}", "CAST(extract(epoch FROM created_at) * 1000000 AS bigint)",
		"{age available_at}", "CAST(extract(epoch FROM clock_timestamp() - available_at) * 1000000 AS bigint)",
		"{age published_at}", "CAST(extract(epoch FROM clock_timestamp() - published_at) * 1000000 AS bigint)",
		"{age created_at}", "CAST(extract(epoch FROM clock_timestamp() - created_at) * 1000000 AS bigint)",
		"{bits}", "CAST(? AS bigint)",
		"{ids}", "seq = ANY (CAST(? AS bigint[]))",
		"{by seq}", "",
		"{delete by seq}", "DELETE FROM seambus_outbox",
		"{head}", "",
		"{blocked}", "",
		"{is blocked}", "state IN (1, 2)",
		"{this key}", "topic = ? AND partition_key = ?",
		"{block}", "",
		"{unblock}", "",
		"{share}", "FOR SHARE",
		"{skip duplicates}", "ON CONFLICT (event_id) DO NOTHING",
		"{or renew}", "ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at",
	),
	MySQL: strings.NewReplacer(
		"{timestamp}", "DATETIME(6)",
		"{now}", "UTC_TIMESTAMP(6)",
		"{later}", "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
		"{ago}", "UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND",
		"{epoch created_at}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)",
		"{age available_at}", "TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6))",
		"{age published_at}", "TIMESTAMPDIFF(MICROSECOND, published_at, UTC_TIMESTAMP(6))",
		"{age created_at}", "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))",
		"{bits}", "?",
		"{by seq}", "FORCE INDEX (PRIMARY)",
		"{delete by seq}", "DELETE seambus_outbox FROM seambus_outbox FORCE INDEX (PRIMARY)",
		"{head}", "FORCE INDEX (seambus_outbox_head)",
		"{blocked}", "FORCE INDEX (seambus_outbox_blocked)",
		"{is blocked}", "blocked_key IS NOT NULL AND state IN (1, 2)",
		"{this key}", "blocked_key = CONCAT(?, 0x00, ?)",
		"{block}", ", blocked_key = CONCAT(topic, 0x00, partition_key)",
		"{unblock}", ", blocked_key = NULL",
		"{share}", "LOCK IN SHARE MODE",
		// not INSERT IGNORE, which would make a warning of every other error too
		"{skip duplicates}", "ON DUPLICATE KEY UPDATE seq = seq",
		"{or renew}", "ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)",
	),
}

// text returns a statement as d says it, for tables named by prefix. {ids} is left to [Dialect.among] on MySQL.
func (d Dialect) text(statement, prefix string) string {
	return d.bind(named(serverWords[d.name].Replace(statement), prefix))
}

// Bind returns a statement with its parameters as the database wants them written.
func (d Dialect) Bind(statement string) string { return d.bind(statement) }

// bind numbers the parameters where the database wants that. No statement has a question mark that is none.
func (d Dialect) bind(statement string) string {
	if d.name != Postgres {
		return statement
	}
	var b strings.Builder
	n := 0
	for {
		before, after, found := strings.Cut(statement, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n++
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		statement = after
	}
}

// among completes a statement that ends with {ids}: one parameter holds the list on PostgreSQL, so that the text is always
// the same and its plan is kept; MySQL has no arrays, and numbers need no quoting.
func (d Dialect) among(text string, seqs []int64, args ...any) (string, []any) {
	inside := strings.Trim(list(seqs), "[]")
	if d.name == Postgres {
		return text, append(args, "{"+inside+"}")
	}
	return strings.Replace(text, "{ids}", "seq IN ("+inside+")", 1), args
}

package dialect

// Inbox is the SQL of package inbox. Every field is one statement; the comments name its arguments in order. Times are
// as [Micros] gives them.
type Inbox struct {
	// Claim inserts a handled id unless it is there: group, source, id, topic, key, handled at. No row affected means that
	// the id was handled before. It is the transaction's first statement, so that it takes the write lock.
	Claim string
	// Advance raises the version of a key: group, topic, key, version (see Version). No row affected means that the
	// version held is not older.
	Advance string
	// MarkStale marks a claimed id as stale: group, source, id.
	MarkStale string

	// BeginAttempt counts one more attempt and returns the count: group, source, id, now.
	BeginAttempt string
	// GiveBackAttempt takes one back, down to none: group, source, id.
	GiveBackAttempt string
	// ForgetAttempts deletes the count: group, source, id.
	ForgetAttempts string

	// Park inserts or renews a parked event: group, topic, key, source, id, handler, message uuid, metadata, payload,
	// state, attempts, class, reason, not before, first attempt, parked at. The first known first attempt stays.
	Park string
	// ListParked reads parked events in their order: group, topic, key, state (each empty for any), after sequence, limit.
	// Columns: seq, then as in Park.
	ListParked string
	// CountParked counts them: group, topic, key, state.
	CountParked string

	// SweepIDs deletes the ids that were handled before a time among the oldest of the table: limit, time.
	SweepIDs string
	// SweepAttempts deletes attempt counts last written before a time: time, limit.
	SweepAttempts string

	// Version converts an aggregate version to an argument that the database orders as unsigned numbers are ordered.
	Version func(uint64) any
}

// Inbox returns the statements of package inbox, for tables with the default prefix.
func (d Dialect) Inbox() *Inbox { return sqliteInbox() }

package dialect

// Inbox is the SQL of package inbox. Every field is one statement; the comments name its arguments in order. Times are
// as [Micros] gives them.
type Inbox struct {
	// Claim inserts a handled id unless it is there or its key is held: group, source, id, topic, key, handled at. It is the
	// transaction's first statement, so that it takes the write lock. When no row is affected, Known tells why.
	Claim string
	// ClaimReplayed is Claim for a parked event, whose key is held.
	ClaimReplayed string
	// Known finds the id among the handled ones: group, source, id.
	Known string
	// LockHeld finds the key among the held ones, and keeps it so until the transaction ends: group, topic, key.
	LockHeld string
	// Advance raises the version of a key: group, topic, key, version (see Version). No row affected means that the
	// version held is not older.
	Advance string
	// MarkStale marks a claimed id as stale: group, source, id.
	MarkStale string

	// BeginAttempt counts one more attempt and returns the count: group, source, id, now.
	BeginAttempt string
	// GiveBackAttempt takes one back, down to none: group, source, id.
	GiveBackAttempt string
	// AttemptHistory reads an event's history, JSON, and when its first attempt began: group, source, id.
	AttemptHistory string
	// NoteAttempt writes its history: history, group, source, id.
	NoteAttempt string
	// ForgetAttempts deletes the count: group, source, id.
	ForgetAttempts string

	// Park inserts or renews a parked event, unless its id was handled: group, topic, key, source, id, handler, message uuid,
	// metadata, payload, state, holds, attempts, class, reason, not before, first attempt, parked at, type, history. The first known first
	// attempt stays, and the place among the others.
	Park string
	// Append parks an event behind the others of its key, unless it is there: as Park.
	Append string
	// Hold marks a key as held: group, topic, key, since.
	Hold string

	// DueKeys lists the keys whose replay is due: group, topic, now, limit. Columns: key, not before.
	DueKeys string
	// NextDue is when the next one is due, or NULL: group, topic.
	NextDue string
	// LeaseKey postpones a due key, if nobody has meanwhile: until, group, topic, key, not before as listed.
	LeaseKey string
	// Postpone sets when a key's replay is due: when, group, topic, key.
	Postpone string
	// Head reads the first event that its key waits for: group, topic, key. Columns as ListParked, and holds.
	Head string
	// Take deletes a parked event that is being handled: seq. No row affected means that somebody else has.
	Take string
	// Block ends a key's replay, because its head is a dead letter: group, topic, key.
	Block string
	// Open ends the holding of a key behind which nothing is parked: group, topic, key.
	Open string
	// Ready makes a dead letter one to be handled again: seq.
	Ready string
	// Replay makes a key's replay due: group, topic, key, since.
	Replay string
	// Unblock makes the replay of a held key due: group, topic, key.
	Unblock string
	// Discard makes a dead letter one that nobody waits for: seq.
	Discard string
	// Erase empties a discarded letter's payload and metadata: seq.
	Erase string
	// Overtaken tells whether a later event of a key was applied: group, topic, key, version or NULL, parked at.
	Overtaken string
	// Audit notes what was done to an event: at, who, why, action, group, topic, key, source, id.
	Audit string
	// ListAudit reads the notes: after sequence, limit. Columns: seq, then as Audit.
	ListAudit string

	// ListParked reads parked events in their order: group, topic, key, state, class, type, id, since, until (each empty or zero
	// for any), after sequence, limit. Columns: seq, then as in Park, without holds.
	ListParked string
	// CountParked counts them: as ListParked, up to until.
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

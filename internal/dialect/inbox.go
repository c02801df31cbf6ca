package dialect

import (
	"database/sql"
	"strings"
	"time"
)

// Inbox is the SQL of package inbox. Every string is one statement; the comments name its arguments in order. "Timed" ones
// begin with what Now returns. Times are read as [Micros] gives them, and durations are microseconds.
type Inbox struct {
	// Now returns the arguments that a timed statement begins with: the process's time on SQLite, so that virtual time works;
	// nothing where the server's own clock counts.
	Now func() []any
	// Isolation is what a handler's transaction asks for.
	Isolation sql.IsolationLevel

	// Claim inserts a handled id unless it is there or its key is held. Timed: group, source, id, topic, key, and group,
	// topic, key once more. It is the transaction's first statement, so that it takes the write lock. When no row is
	// affected, Known tells why.
	Claim string
	// ClaimAndAdvance is Claim and Advance at once, where the database can say that, or empty. Timed: as Claim, and then group,
	// topic, key, version. It returns how many rows each affected.
	ClaimAndAdvance string
	// ClaimAlways is Claim whether or not the key is held. Timed: group, source, id, topic, key.
	ClaimAlways string
	// Known finds the id among the handled ones: group, source, id.
	Known string
	// Advance raises the version of a key: group, topic, key, version (see Version). No row affected means that the
	// version held is not older.
	Advance string
	// MarkStale marks a claimed id as stale: group, source, id.
	MarkStale string

	// BeginAttempt counts one more attempt. Timed: group, source, id. It returns the count, or ReadAttempt does: group,
	// source, id.
	BeginAttempt, ReadAttempt string
	// GiveBackAttempt takes one back, down to none: group, source, id.
	GiveBackAttempt string
	// AttemptHistory reads an event's history, JSON, and when its first attempt began: group, source, id.
	AttemptHistory string
	// NoteAttempt writes its history: history, group, source, id.
	NoteAttempt string
	// ForgetAttempts deletes the count: group, source, id.
	ForgetAttempts string

	// Park inserts or renews a parked event: group, topic, key, source, id, type, handler, message uuid, metadata, payload,
	// state, holds, attempts, class, reason, history, first attempt, parked at. The first known first attempt stays, and the
	// place among the others.
	Park string
	// Append parks an event behind the others of its key, unless it is there: as Park.
	Append string
	// Hold marks a key as held. Timed: group, topic, key.
	Hold string
	// LockHeld finds the key among the held ones, and keeps it so until the transaction ends: group, topic, key. No row
	// affected means that it is not held.
	LockHeld string

	// DueKeys lists the keys whose replay is due. Timed: group, topic, limit.
	DueKeys string
	// NextDue is how long until the next one is due, or NULL. Timed: group, topic.
	NextDue string
	// LeaseKey postpones a due key. Timed: how long, group, topic, key. No row affected means that somebody else has.
	LeaseKey string
	// Postpone sets when a key's replay is due. Timed: in how long, group, topic, key.
	Postpone string
	// Head reads the first event that its key waits for: group, topic, key. Columns as ListParked.
	Head string
	// Take deletes a parked event that is being handled: seq, revision. No row affected means that somebody else has, or has
	// decided anew about it.
	Take string
	// Block ends a key's replay if its head is a dead letter still: group, topic, key, seq.
	Block string
	// Open ends the holding of a key behind which nothing is parked: group, topic, key, and once more.
	Open string

	// Ready makes a dead letter one to be handled again: seq.
	Ready string
	// Replay makes a key's replay due. Timed: group, topic, key.
	Replay string
	// Unblock makes the replay of a held key due: group, topic, key.
	Unblock string
	// Discard makes a dead letter one that nobody waits for: seq.
	Discard string
	// Erase empties a discarded letter's payload and metadata: seq.
	Erase string
	// VersionOf reads the version that a key has: group, topic, key.
	VersionOf string
	// Later tells whether an event of a key was applied after a time: group, topic, key, time.
	Later string
	// Audit notes what was done to an event. Timed: who, why, action, group, topic, key, source, id.
	Audit string
	// ListAudit reads the notes: after sequence, limit. Columns: seq, at, then as Audit.
	ListAudit string

	// Backlog counts what is parked, but for the discarded, by state and class. Columns: state, class, count, oldest parked at.
	Backlog string
	// HeldKeys counts the keys that are held or replayed.
	HeldKeys string
	// CountIDs counts the handled ids of a group that are to be forgotten: group, key or empty for any, key again, since.
	CountIDs string
	// ForgetVersions deletes the versions of the keys of such ids, and ForgetIDs the ids: as CountIDs.
	ForgetVersions, ForgetIDs string

	// SweepIDs deletes ids among the oldest that were handled longer ago than the retention. Timed: limit, retention; see
	// SweepArgs.
	SweepIDs string
	// SweepAttempts deletes attempt counts last written longer ago. Timed: retention, limit.
	SweepAttempts string

	// Version converts an aggregate version to an argument that the database orders as unsigned numbers are ordered.
	Version func(uint64) any

	listParked string
	bind       func(string) string
}

// Inbox returns the statements of package inbox, for tables with the default prefix.
func (d Dialect) Inbox() *Inbox {
	if d.name == SQLite {
		return sqliteInbox()
	}
	return d.serverInbox()
}

// ParkedFilter chooses parked events; empty and zero fields choose all.
type ParkedFilter struct {
	Group, Topic, Key, State, Class, Type, ID string
	Since, Until                              time.Time
}

// where returns the conditions that f names, so that the database sees only what restricts anything.
func (f *ParkedFilter) where() (conditions string, args []any) {
	var b strings.Builder
	add := func(condition string, arg any, given bool) {
		if given {
			b.WriteString(" AND " + condition)
			args = append(args, arg)
		}
	}
	add("grp = ?", f.Group, f.Group != "")
	add("topic = ?", f.Topic, f.Topic != "")
	add("partition_key = ?", f.Key, f.Key != "")
	add("state = ?", f.State, f.State != "")
	add("class = ?", f.Class, f.Class != "")
	add("event_type = ?", f.Type, f.Type != "")
	add("event_id = ?", f.ID, f.ID != "")
	add("parked_at >= ?", Micros(f.Since), !f.Since.IsZero())
	add("parked_at < ?", Micros(f.Until), !f.Until.IsZero())
	return b.String(), args
}

// ListParked reads the parked events that f chooses, in their order, after a sequence. Columns: seq, then as in Park, and revision.
func (i *Inbox) ListParked(f *ParkedFilter, after int64, limit int) (query string, args []any) {
	where, args := f.where()
	query = i.listParked + " WHERE seq > ?" + where + " ORDER BY seq LIMIT ?"
	return i.bind(query), append(append([]any{after}, args...), limit)
}

// CountParked counts them.
func (i *Inbox) CountParked(f *ParkedFilter) (query string, args []any) {
	where, args := f.where()
	return i.bind(`SELECT count(*) FROM seambus_parked WHERE seq > 0` + where), args
}

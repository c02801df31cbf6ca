package inbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
)

// States of parked events.
const (
	// StateDead is given up: an operator decides.
	StateDead = "dead"
	// StateHeld waits behind another parked event of its key.
	StateHeld = "held"
	// StateReady is to be handled again, after what is parked before it.
	StateReady = "ready"
	// StateDiscarded is given up for good, and kept for the record.
	StateDiscarded = "discarded"
)

// Parked is an event that the inbox keeps outside the stream.
type Parked struct {
	event.DeadLetter
	// Type is the event's wire name, where the message says it.
	Type string
	// Sequence orders parked events as they were first parked.
	Sequence int64
	// State says why the event is parked: one of the State constants.
	State string
	// Revision grows with every decision about the event.
	Revision int
	// Holds says that the rest of the key waits for this dead letter.
	Holds bool
}

// Filter chooses parked events. An empty field chooses all; the zero Filter chooses everything.
type Filter struct {
	Group, Topic, Key, State string
	// Class is an error class, Type an event's wire name, ID an event's id.
	Class, Type, ID string
	// Since and Until bound when the event was parked; Until is excluded.
	Since, Until time.Time
	// After skips the events up to this sequence, to read on where a list ended.
	After int64
	// Limit is the longest list wanted; zero means 100: payloads are read too.
	Limit int
}

const defaultLimit = 100

func (f *Filter) parked() *dialect.ParkedFilter {
	return &dialect.ParkedFilter{
		Group: f.Group, Topic: f.Topic, Key: f.Key, State: f.State, Class: f.Class, Type: f.Type, ID: f.ID,
		Since: f.Since, Until: f.Until,
	}
}

// Put keeps letter, with its bytes and metadata as they were delivered, until an operator redrives or discards it. The
// same event put again, by its group, source and id, renews its letter; one that was handled meanwhile is not kept. A letter
// without an id is kept by its message's UUID, or by a new id if that is empty too. It returns once the letter is committed,
// and refuses to run inside an inbox transaction ([ErrNested]), whose rollback would lose it.
func (in *Inbox) Put(ctx context.Context, letter *event.DeadLetter) error {
	return in.put(ctx, letter, false)
}

func (in *Inbox) put(ctx context.Context, letter *event.DeadLetter, holds bool) error {
	if err := outside(ctx, "park", letter.ID); err != nil {
		return err
	}
	if letter.Message == nil {
		return fmt.Errorf("inbox: park %.80q: the letter has no message", letter.ID)
	}
	letter = tidy(letter)
	args, err := parkArgs(letter, StateDead, holds)
	if err == nil {
		err = in.transact(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, in.sql.LockHeld, letter.Group, letter.Topic, letter.Key); err != nil {
				return err
			}
			var known bool
			err := tx.QueryRowContext(ctx, in.sql.Known, letter.Group, letter.Source, args[parkedID]).Scan(&known)
			if err == nil && !known {
				_, err = tx.ExecContext(ctx, in.sql.Park, args...)
			}
			if err != nil || known || !holds {
				return err
			}
			_, err = tx.ExecContext(ctx, in.sql.Hold, append(in.sql.Now(), letter.Group, letter.Topic, letter.Key)...)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("inbox: park %.80q: %w", letter.ID, err)
	}
	return nil
}

// transact runs fn in a transaction of its own.
func (in *Inbox) transact(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := in.db.BeginTx(ctx, &sql.TxOptions{Isolation: in.sql.Isolation})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Where among the arguments of the statements that park the event's id and type are.
const parkedID, parkedType = 4, 5

// parkArgs returns the arguments of the statements that park.
func parkArgs(letter *event.DeadLetter, state string, holds bool) ([]any, error) {
	msg, id, at := letter.Message, letter.ID, letter.Time
	if id == "" {
		id = msg.UUID
	}
	if id == "" {
		id = event.NewID()
	}
	if at.IsZero() {
		at = time.Now()
	}
	metadata, err := encodeMetadata(msg.Metadata)
	if err != nil {
		return nil, err
	}
	history, err := encodeHistory(letter.History)
	if err != nil {
		return nil, err
	}
	holding := 0
	if holds {
		holding = 1
	}
	return []any{
		letter.Group, letter.Topic, letter.Key, letter.Source, column(id, nameBytes), column(msg.Metadata[event.MetaType], nameBytes),
		letter.Handler, column(msg.UUID, longBytes),
		metadata, notNil(msg.Payload), state, holding, letter.Attempts, letter.Class, letter.Reason, history,
		dialect.Micros(letter.FirstAttempt), dialect.Micros(at),
	}, nil
}

// Parked returns the parked events that f chooses, in the order in which they were first parked.
func (in *Inbox) Parked(ctx context.Context, f Filter) (all []Parked, err error) {
	if f.Limit <= 0 {
		f.Limit = defaultLimit
	}
	query, args := in.sql.ListParked(f.parked(), f.After, f.Limit)
	rows, err := in.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("inbox: list parked: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		p, err := scanParked(rows)
		if err != nil {
			return nil, fmt.Errorf("inbox: list parked: %w", err)
		}
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox: list parked: %w", err)
	}
	return all, nil
}

// CountParked returns how many parked events f chooses, whatever its After and Limit.
func (in *Inbox) CountParked(ctx context.Context, f Filter) (int, error) {
	var n int
	query, args := in.sql.CountParked(f.parked())
	err := in.db.QueryRowContext(ctx, query, args...).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("inbox: count parked: %w", err)
	}
	return n, nil
}

func scanParked(row interface{ Scan(dest ...any) error }) (p Parked, err error) {
	var (
		uuid, metadata, history string
		payload                 []byte
		first, parked           int64
	)
	err = row.Scan(&p.Sequence, &p.Group, &p.Topic, &p.Key, &p.Source, &p.ID, &p.Type, &p.Handler, &uuid, &metadata, &payload,
		&p.State, &p.Holds, &p.Attempts, &p.Class, &p.Reason, &history, &first, &parked, &p.Revision)
	if err != nil {
		return p, err
	}
	p.Message = message.NewMessage(uuid, payload)
	if p.Message.Metadata, err = decodeMetadata(metadata); err != nil {
		return p, fmt.Errorf("sequence %d: metadata: %w", p.Sequence, err)
	}
	if err := json.Unmarshal([]byte(history), &p.History); err != nil {
		return p, fmt.Errorf("sequence %d: history: %w", p.Sequence, err)
	}
	p.FirstAttempt, p.Time = dialect.Time(first), dialect.Time(parked)
	return p, nil
}

// encodeHistory returns a history as a JSON array.
func encodeHistory(h []event.Failure) (string, error) {
	if len(h) == 0 {
		return "[]", nil
	}
	text, err := json.Marshal(h)
	return string(text), err
}

// notNil returns payload as a value that the driver does not take for NULL.
func notNil(payload message.Payload) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}

// encodeMetadata returns md as a JSON object. JSON cannot hold invalid UTF-8: metadata that has any becomes an array of
// pairs of base64, name and value, so that nothing of what was delivered is lost.
func encodeMetadata(md message.Metadata) (string, error) {
	plain := true
	for k, v := range md {
		plain = plain && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if plain {
		if md == nil {
			md = message.Metadata{}
		}
		text, err := json.Marshal(md)
		return string(text), err
	}
	pairs := make([][2][]byte, 0, len(md))
	for k, v := range md {
		pairs = append(pairs, [2][]byte{[]byte(k), []byte(v)})
	}
	text, err := json.Marshal(pairs)
	return string(text), err
}

func decodeMetadata(text string) (message.Metadata, error) {
	md := message.Metadata{}
	if text == "" || text[0] != '[' {
		err := json.Unmarshal([]byte(text), &md)
		return md, err
	}
	var pairs [][2][]byte
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return nil, err
	}
	for _, p := range pairs {
		md[string(p[0])] = string(p[1])
	}
	return md, nil
}

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

// StateDead is the state of a parked event that was given up.
const StateDead = "dead"

// Parked is an event that the inbox keeps outside the stream.
type Parked struct {
	event.DeadLetter
	// Sequence orders parked events as they were first parked.
	Sequence int64
	// State says why the event is parked: [StateDead].
	State string
	// NotBefore is when the event may be delivered again; zero means that nothing but an operator decides.
	NotBefore time.Time
}

// Filter chooses parked events. An empty field chooses all; the zero Filter chooses everything.
type Filter struct {
	Group, Topic, Key, State string
	// After skips the events up to this sequence, to read on where a list ended.
	After int64
	// Limit is the longest list wanted; zero means 100: payloads are read too.
	Limit int
}

const defaultLimit = 100

// Put keeps letter, with its bytes and metadata as they were delivered, until an operator redrives or discards it. The
// same event put again, by its group, source and id, renews its letter. A letter without an id is kept by its message's
// UUID, or by a new id if that is empty too. It returns once the letter is committed, and refuses to run inside an inbox
// transaction ([ErrNested]), whose rollback would lose it.
func (in *Inbox) Put(ctx context.Context, letter *event.DeadLetter) error {
	if err := outside(ctx, "park", letter.ID); err != nil {
		return err
	}
	msg := letter.Message
	if msg == nil {
		return fmt.Errorf("inbox: park %.80q: the letter has no message", letter.ID)
	}
	id := letter.ID
	if id == "" {
		id = msg.UUID
	}
	if id == "" {
		id = event.NewID()
	}
	metadata, err := encodeMetadata(msg.Metadata)
	if err != nil {
		return fmt.Errorf("inbox: park %.80q: %w", id, err)
	}
	at := letter.Time
	if at.IsZero() {
		at = time.Now()
	}
	_, err = in.db.ExecContext(ctx, in.sql.Park, letter.Group, letter.Topic, letter.Key, letter.Source, id, letter.Handler,
		msg.UUID, metadata, notNil(msg.Payload), StateDead, letter.Attempts, letter.Class, letter.Reason,
		0, dialect.Micros(letter.FirstAttempt), dialect.Micros(at))
	if err != nil {
		return fmt.Errorf("inbox: park %.80q: %w", id, err)
	}
	return nil
}

// Parked returns the parked events that f chooses, in the order in which they were first parked.
func (in *Inbox) Parked(ctx context.Context, f Filter) (all []Parked, err error) {
	if f.Limit <= 0 {
		f.Limit = defaultLimit
	}
	rows, err := in.db.QueryContext(ctx, in.sql.ListParked, f.Group, f.Topic, f.Key, f.State, f.After, f.Limit)
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
	err := in.db.QueryRowContext(ctx, in.sql.CountParked, f.Group, f.Topic, f.Key, f.State).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("inbox: count parked: %w", err)
	}
	return n, nil
}

func scanParked(rows *sql.Rows) (p Parked, err error) {
	var (
		uuid, metadata           string
		payload                  []byte
		notBefore, first, parked int64
	)
	err = rows.Scan(&p.Sequence, &p.Group, &p.Topic, &p.Key, &p.Source, &p.ID, &p.Handler, &uuid, &metadata, &payload,
		&p.State, &p.Attempts, &p.Class, &p.Reason, &notBefore, &first, &parked)
	if err != nil {
		return p, err
	}
	p.Message = message.NewMessage(uuid, payload)
	if p.Message.Metadata, err = decodeMetadata(metadata); err != nil {
		return p, fmt.Errorf("sequence %d: metadata: %w", p.Sequence, err)
	}
	p.NotBefore, p.FirstAttempt, p.Time = dialect.Time(notBefore), dialect.Time(first), dialect.Time(parked)
	return p, nil
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

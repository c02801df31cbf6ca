package event

import (
	"time"

	"github.com/google/uuid"
)

// Event is a past fact, sent as a value. Implementations are plain structs whose wire name never changes with the Go
// name; the methods must return the same result for the same value and must not block.
type Event interface {
	// EventType returns the wire name, for example "order.placed". It must be a constant that does not depend on the
	// value: [NewTopic] calls it on a zero value.
	EventType() string
	// PartitionKey returns the key whose events keep their order, usually the aggregate's id. An empty key means that
	// the event has no order relative to any other.
	PartitionKey() string
}

// Versioned is implemented by events that carry the version of their aggregate. An inbox acknowledges an event that is
// not newer than what it has applied for the same key without calling the handler.
type Versioned interface {
	// AggregateVersion returns a number that grows with every change of the aggregate. Gaps are allowed.
	AggregateVersion() uint64
}

// Identified is implemented by events whose id is made elsewhere: by a foreign producer, or from a request's idempotency
// key. The id stays verbatim through recording, relay, retry, replay and redrive.
type Identified interface {
	// EventID returns the id, at most [MaxIDBytes] long. Empty means that a new one is made.
	EventID() string
}

// Schematic is implemented by events that name the version of their own schema, for consumers that must tell old
// payloads from new ones.
type Schematic interface {
	// SchemaVersion returns the version, for example "2".
	SchemaVersion() string
}

// Validator is implemented by events that check themselves after decoding. A failed check is a contract break: the
// event is dead-lettered at once and never retried.
type Validator interface {
	// Validate returns an error that names the field, the value and what would be right.
	Validate() error
}

// NewID returns a new UUIDv7: unique, and sorted by the time it was made. It is safe for concurrent use.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// now is the process's clock, in UTC and without a monotonic reading, so that it survives encoding unchanged.
func now() time.Time { return time.Now().UTC().Round(0) }

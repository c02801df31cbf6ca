package event

import (
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Metadata keys that a dead letter adds to the message it is about.
const (
	MetaDeadReason   = "seambus_dead_reason"
	MetaDeadClass    = "seambus_dead_class"
	MetaDeadAttempts = "seambus_dead_attempts"
	MetaDeadTopic    = "seambus_dead_topic"
	MetaDeadGroup    = "seambus_dead_group"
	MetaDeadHandler  = "seambus_dead_handler"
	MetaDeadFirst    = "seambus_dead_first_attempt"
	MetaDeadTime     = "seambus_dead_time"
)

// DeadLetter is an event that was given up, and why. Message is a copy of what was delivered, bytes and metadata
// untouched; nothing here aliases the live message except the payload, which must be treated as read-only.
type DeadLetter struct {
	Message *message.Message
	Topic   string
	Group   string
	Handler string
	// ID, Source and Key are empty where the message could not be read as an envelope; ID is then the message's UUID.
	ID     string
	Source string
	Key    string
	// Class is one of the Class constants; Reason is the cleaned, cut text of the last error.
	Class    string
	Reason   string
	Attempts int
	// FirstAttempt is zero where it is not known.
	FirstAttempt time.Time
	Time         time.Time
	// History tells of the failed attempts, oldest first, as far as they are known: the newest 50 at most.
	History []Failure
}

// Failure is one failed attempt.
type Failure struct {
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
	// Node is where it failed: the host's name and the process's number.
	Node string `json:"node,omitempty"`
	// Class is one of the Class constants; Reason is the error's text, cleaned and cut.
	Class  string `json:"class"`
	Reason string `json:"reason"`
	// TraceID is that of the attempt's span, empty where there is none.
	TraceID string `json:"traceId,omitempty"`
}

// MaxHistory is how many failures a history keeps: the newest.
const MaxHistory = 50

// Remember returns history with f at its end, and no longer than [MaxHistory].
func Remember(history []Failure, f Failure) []Failure {
	history = append(history, f)
	if over := len(history) - MaxHistory; over > 0 {
		history = append(history[:0:0], history[over:]...)
	}
	return history
}

// DeadLetters keeps what was given up: a topic on the broker, or a table beside the inbox. Put must be safe for
// concurrent use, must not return before the letter is durable, and must accept the same letter twice.
type DeadLetters interface {
	Put(ctx context.Context, letter *DeadLetter) error
}

// Annotated returns a copy of the letter's message whose metadata says what happened, for stores that keep messages.
func (d *DeadLetter) Annotated() *message.Message {
	msg := d.Message.Copy()
	for k, v := range map[string]string{
		MetaDeadReason: d.Reason, MetaDeadClass: d.Class, MetaDeadAttempts: strconv.Itoa(d.Attempts),
		MetaDeadTopic: d.Topic, MetaDeadGroup: d.Group, MetaDeadHandler: d.Handler,
		MetaDeadFirst: formatTime(d.FirstAttempt), MetaDeadTime: formatTime(d.Time),
	} {
		if delete(msg.Metadata, k); v != "" { // nothing may be left of an earlier death
			msg.Metadata[k] = v
		}
	}
	if d.Key != "" && msg.Metadata[MetaPartitionKey] == "" {
		msg.Metadata[MetaPartitionKey] = d.Key
	}
	return msg
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

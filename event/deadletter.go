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

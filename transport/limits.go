package transport

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
)

// Limits bounds what a broker accepts. A zero field means no limit. It is checked before a message is recorded, while
// the transaction can still say no.
type Limits struct {
	// MessageBytes bounds what Size says of a message.
	MessageBytes int
	// Size returns how many bytes a message takes as the broker counts them, in the form in which it is sent: packed, encoded,
	// with names and types. It must be safe for concurrent use and must not keep the message. Nil means payload plus
	// metadata names and values.
	Size func(msg *message.Message) int `json:"-"`
	// Headers bounds the number of metadata entries.
	Headers int
	// KeyBytes bounds the partition key.
	KeyBytes int
}

// LimitError says which limit a message breaks. errors.Is holds for [ErrTooLarge]: no retry can help.
type LimitError struct {
	ID    string
	Limit string
	Max   int
	Got   int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("transport: message %.80q: %s is %d, the limit is %d", e.ID, e.Limit, e.Got, e.Max)
}

// Is makes a LimitError match [ErrTooLarge].
func (e *LimitError) Is(target error) bool { return target == ErrTooLarge }

// Bytes returns what MessageBytes bounds: how many bytes msg takes as the broker counts them.
func (l Limits) Bytes(msg *message.Message) int {
	if l.Size != nil {
		return l.Size(msg)
	}
	size := len(msg.Payload)
	for k, v := range msg.Metadata {
		size += len(k) + len(v)
	}
	return size
}

// Check returns every limit that msg breaks, as joined [LimitError] values, or nil.
func (l Limits) Check(msg *message.Message) error {
	var errs []error
	check := func(limit string, most, got int) {
		if most > 0 && got > most {
			errs = append(errs, &LimitError{ID: msg.UUID, Limit: limit, Max: most, Got: got})
		}
	}
	if l.MessageBytes > 0 { // counting may cost as much as encoding
		check("message bytes", l.MessageBytes, l.Bytes(msg))
	}
	check("headers", l.Headers, len(msg.Metadata))
	check("partition key bytes", l.KeyBytes, len(Key(msg)))
	return errors.Join(errs...)
}

// Key returns the partition key of msg. Empty means no order promise.
func Key(msg *message.Message) string { return msg.Metadata[event.MetaPartitionKey] }

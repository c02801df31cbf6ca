package event

import (
	"fmt"
	"unicode/utf8"
)

const unlimited = 1<<31 - 1

// check holds the limits that no transport and no database may have to refuse later, for events that leave and for
// events that arrive: text that a column refuses would fail every attempt, and its dead letter too.
func (e *Envelope) check() error {
	for _, f := range [...]struct {
		name, value string
		least, most int
	}{
		{"id", e.ID, 1, MaxIDBytes},
		{"type", e.Type, 0, MaxTypeBytes},
		{"partition key", e.PartitionKey, 0, MaxKeyBytes},
		{"schema version", e.SchemaVersion, 0, MaxIDBytes},
		{"source", e.Source, 0, unlimited},
		{"subject", e.Subject, 0, unlimited},
		{"correlation id", e.CorrelationID, 0, unlimited},
		{"causation id", e.CausationID, 0, unlimited},
	} {
		if len(f.value) < f.least || len(f.value) > f.most {
			return fmt.Errorf("%s has %d bytes, want %d to %d: %w", f.name, len(f.value), f.least, f.most, ErrInvalid)
		}
		if !printable(f.value) {
			return fmt.Errorf("%s %.80q has control characters or invalid UTF-8: %w", f.name, f.value, ErrInvalid)
		}
	}
	return nil
}

func printable(s string) bool {
	ascii := true
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return false
		}
		ascii = ascii && s[i] < utf8.RuneSelf
	}
	return ascii || utf8.ValidString(s)
}

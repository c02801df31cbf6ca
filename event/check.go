package event

import (
	"fmt"
	"unicode/utf8"
)

// check holds the limits that no transport and no database may have to refuse later.
func (e *Envelope) check() error {
	for _, f := range []struct {
		name, value string
		least, most int
	}{
		{"id", e.ID, 1, MaxIDBytes},
		{"type", e.Type, 1, MaxTypeBytes},
		{"partition key", e.PartitionKey, 0, MaxKeyBytes},
		{"schema version", e.SchemaVersion, 0, MaxIDBytes},
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
	for _, r := range s {
		if r < 0x20 || r == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

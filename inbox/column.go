package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/seambus/seambus/event"
)

// The longest texts that every database's columns take, in bytes.
const (
	nameBytes = 255
	longBytes = 1024
)

// tidy returns letter with names that every database can keep. Producers who keep no contract write what they like, and a
// letter that cannot be written would come back for ever. What was delivered is untouched in the message.
func tidy(letter *event.DeadLetter) *event.DeadLetter {
	l := *letter
	l.Group, l.Topic, l.Key = column(l.Group, nameBytes), column(l.Topic, nameBytes), column(l.Key, nameBytes)
	l.ID, l.Handler, l.Source = column(l.ID, nameBytes), column(l.Handler, nameBytes), column(l.Source, longBytes)
	l.Class, l.Reason = column(l.Class, 64), column(l.Reason, 4*longBytes)
	return &l
}

// column returns s, or where a column cannot keep it as it is, what can be read of it and a digest that tells it from others.
func column(s string, most int) string {
	if len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	digest := "#" + hex.EncodeToString(sum[:8])
	readable := strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), most)], "?"), "\x00", "?")
	if room := most - len(digest); len(readable) > room {
		readable = strings.ToValidUTF8(readable[:room], "")
	}
	return readable + digest
}

package bustest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Entry is one thing that happened to an event.
type Entry struct {
	// Topic, Type, Key and ID are the event's.
	Topic, Type, Key, ID string
	// Group is who handled it; empty for what was recorded or published.
	Group string
	// Attempt is which handler call it was, from 1; for a dead letter how many there were; 0 where there was none.
	Attempt int
	// Err is what the attempt failed with, or why the event was given up.
	Err error
	// At is when it happened; when the event was recorded, for a recorded one.
	At time.Time
	// Data is the payload.
	Data []byte

	metadata message.Metadata
	origin   int // which of the watched outboxes it was recorded in, from 1
}

func (e Entry) String() string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "%s %s", e.Topic, e.Type)
	for _, f := range []struct{ name, value string }{{"key", e.Key}, {"group", e.Group}, {"id", e.ID}} {
		if f.value != "" {
			fmt.Fprintf(b, " %s=%s", f.name, f.value)
		}
	}
	if e.Attempt > 0 {
		fmt.Fprintf(b, " attempt=%d", e.Attempt)
	}
	if e.Err != nil {
		fmt.Fprintf(b, " error=%q", e.Err)
	}
	return b.String()
}

// Events is a list of what happened, in its order, as it was when the kit was asked. Type, Key, Topic and Group choose from
// it; Want and WantIDs fail the test with the whole list if it is not as wanted.
type Events struct {
	tb   testing.TB
	what string
	all  []Entry // before anything was chosen
	list []Entry
}

// Type chooses the events of this wire name.
func (e Events) Type(name string) Events {
	return e.choose("of type "+name, func(x Entry) bool { return x.Type == name })
}

// Key chooses the events with this partition key.
func (e Events) Key(key string) Events {
	return e.choose("with key "+key, func(x Entry) bool { return x.Key == key })
}

// Topic chooses the events of this topic.
func (e Events) Topic(name string) Events {
	return e.choose("on topic "+name, func(x Entry) bool { return x.Topic == name })
}

// Group chooses what this group did.
func (e Events) Group(name string) Events {
	return e.choose("by group "+name, func(x Entry) bool { return x.Group == name })
}

func (e Events) choose(how string, fits func(Entry) bool) Events {
	var list []Entry
	for _, x := range e.list {
		if fits(x) {
			list = append(list, x)
		}
	}
	e.list, e.what = list, e.what+" "+how
	return e
}

// All returns the entries.
func (e Events) All() []Entry { return slices.Clone(e.list) }

// Len returns how many there are.
func (e Events) Len() int { return len(e.list) }

// IDs returns the events' ids.
func (e Events) IDs() []string {
	ids := make([]string, len(e.list))
	for i, x := range e.list {
		ids[i] = x.ID
	}
	return ids
}

// Want fails the test, which goes on, unless there are n, and returns the list.
func (e Events) Want(n int) Events {
	e.tb.Helper()
	if len(e.list) != n {
		e.tb.Errorf("%s: %d, want %d\n%s", e.what, len(e.list), n, e.happened())
	}
	return e
}

// WantIDs fails the test, which goes on, unless the ids are these in this order, and returns the list.
func (e Events) WantIDs(ids ...string) Events {
	e.tb.Helper()
	if got := e.IDs(); !slices.Equal(got, ids) {
		e.tb.Errorf("%s: ids %v, want %v\n%s", e.what, got, ids, e.happened())
	}
	return e
}

// String lists the entries, one a line.
func (e Events) String() string { return lines(e.list) }

// longest is how many entries a failure shows.
const longest = 20

func (e Events) happened() string {
	kind, _, _ := strings.Cut(e.what, " ")
	if len(e.all) == 0 {
		return "  nothing was " + kind
	}
	text := fmt.Sprintf("  %s in all:\n", kind)
	if n := len(e.all) - longest; n > 0 {
		return text + lines(e.all[:longest]) + fmt.Sprintf("    and %d more", n)
	}
	return text + strings.TrimSuffix(lines(e.all), "\n")
}

func lines(list []Entry) string {
	b := new(strings.Builder)
	for _, x := range list {
		fmt.Fprintf(b, "    %s\n", x)
	}
	return b.String()
}

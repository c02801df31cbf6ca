package inbox_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

func TestStaleEventIsAcknowledgedWithoutHandler(t *testing.T) {
	t.Parallel()
	plain := func(id, key string) event.Envelope { return event.Envelope{ID: id, Source: "shop", PartitionKey: key} }
	for _, c := range []struct {
		name string
		envs []event.Envelope
		want inbox.Stats
	}{
		{"ascending", []event.Envelope{versioned("a", "k", 1), versioned("b", "k", 2)}, inbox.Stats{Handled: 2}},
		{"gap", []event.Envelope{versioned("a", "k", 1), versioned("b", "k", 9)}, inbox.Stats{Handled: 2}},
		{"older", []event.Envelope{versioned("a", "k", 2), versioned("b", "k", 1)}, inbox.Stats{Handled: 1, Stale: 1}},
		{"same version, other id", []event.Envelope{versioned("a", "k", 2), versioned("b", "k", 2)}, inbox.Stats{Handled: 1, Stale: 1}},
		{"first is zero", []event.Envelope{versioned("a", "k", 0), versioned("b", "k", 0)}, inbox.Stats{Handled: 1, Stale: 1}},
		{"first is large", []event.Envelope{versioned("a", "k", 1<<40)}, inbox.Stats{Handled: 1}},
		{"over int64", []event.Envelope{
			versioned("a", "k", math.MaxInt64), versioned("b", "k", math.MaxInt64+1), versioned("c", "k", math.MaxUint64),
			versioned("d", "k", math.MaxUint64-1), versioned("e", "k", 7),
		}, inbox.Stats{Handled: 3, Stale: 2}},
		{"other key", []event.Envelope{versioned("a", "k", 2), versioned("b", "l", 1)}, inbox.Stats{Handled: 2}},
		{"no key", []event.Envelope{versioned("a", "", 2), versioned("b", "", 1)}, inbox.Stats{Handled: 2}},
		{"no version", []event.Envelope{versioned("a", "k", 2), plain("b", "k")}, inbox.Stats{Handled: 2}},
		{"duplicate before stale", []event.Envelope{
			versioned("a", "k", 1), versioned("b", "k", 2), versioned("a", "k", 1),
		}, inbox.Stats{Handled: 2, Duplicates: 1}},
		{"stale, then its duplicate", []event.Envelope{
			versioned("a", "k", 2), versioned("b", "k", 1), versioned("b", "k", 1),
		}, inbox.Stats{Handled: 1, Duplicates: 1, Stale: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, 1)
			for _, env := range c.envs {
				if err := b.handle(deliver(env), apply); err != nil {
					t.Fatal(err)
				}
			}
			wantStats(t, b.in, c.want)
			if n := b.effects(t); int64(n) != c.want.Handled {
				t.Errorf("%d effects, want %d", n, c.want.Handled)
			}
			stale := one[int64](t, b.db, `SELECT count(*) FROM seambus_inbox WHERE stale = 1`)
			if all := int64(b.ids(t)); stale != c.want.Stale || all != c.want.Handled+c.want.Stale {
				t.Errorf("%d ids, %d of them stale, want %+v", all, stale, c.want)
			}
		})
	}
}

func TestVersionsAreKeptApartByGroupAndTopic(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	if err := b.handle(deliver(versioned("a", "k", 2)), apply); err != nil {
		t.Fatal(err)
	}
	if _, err := b.in.Middleware("billing")(apply)(deliver(versioned("b", "k", 1))); err != nil {
		t.Fatal(err)
	}
	other := versioned("c", "k", 1)
	msg := other.Message() // no delivery, so another topic
	if err := b.handle(msg, apply); err != nil {
		t.Fatal(err)
	}
	wantStats(t, b.in, inbox.Stats{Handled: 3})
}

func TestOrderOfApplicationCanBeReadFromSQL(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	for _, id := range []string{"c", "a", "b"} {
		if err := b.handle(deliver(event.Envelope{ID: id}), apply); err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, b.db, `VACUUM`)
	got := one[string](t, b.db, `SELECT group_concat(event_id, '' ORDER BY seq) FROM seambus_inbox`)
	if got != "cab" {
		t.Errorf("order is %q, want %q", got, "cab")
	}
}

// Whatever is delivered how often, in which order and with which failures: an id has at most one effect, no older version
// of a key is applied after a newer one, and what is neither repeated, failed nor outdated is applied.
func TestAnyScheduleAppliesEachIDOnceAndNoOlderVersion(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		seen, newest := map[string]bool{}, map[string]uint64{}
		for range rapid.IntRange(1, 30).Draw(rt, "deliveries") {
			key := fmt.Sprintf("%d-%d", round, rapid.IntRange(0, 2).Draw(rt, "key"))
			version := rapid.Uint64Range(0, 6).Draw(rt, "version")
			fail := rapid.Bool().Draw(rt, "fail")
			id := fmt.Sprintf("%s-%d", key, version)

			held, known := newest[key]
			wantCall := !seen[id] && (!known || version > held)
			called := false
			err := b.handle(deliver(versioned(id, key, version)), func(msg *message.Message) ([]*message.Message, error) {
				called = true
				if fail {
					return nil, errBoom
				}
				return apply(msg)
			})
			if called != wantCall || errors.Is(err, errBoom) != (called && fail) {
				rt.Fatalf("id %s: called %v, want %v; %v", id, called, wantCall, err)
			}
			if err == nil {
				seen[id] = true
				if called {
					newest[key] = version
				}
			}
		}
	})
	if n := one[int](t, b.db, `SELECT count(*) - count(DISTINCT id) FROM effects`); n != 0 {
		t.Errorf("%d effects are repeated", n)
	}
}

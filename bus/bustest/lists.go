package bustest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
)

func (k *Kit) events(what string, list []Entry) Events {
	return Events{tb: k.tb, what: what, all: list, list: list}
}

// Recorded lists the events whose rows are committed, in the order of the outbox: the kit's own, and then those that
// [Kit.NewDB] and [Kit.Watch] added.
func (k *Kit) Recorded() Events {
	k.tb.Helper()
	var list []Entry
	for i, d := range k.watched() {
		rows, err := dialect.Recorded(context.Background(), d.db)
		if err != nil {
			k.tb.Fatalf("bustest: list recorded events: %v", err)
		}
		for _, r := range rows {
			list = append(list, Entry{
				Topic: r.Topic, Type: r.Type, Key: r.Key, ID: r.ID, At: r.Created, Data: r.Payload, origin: i + 1,
			})
		}
	}
	return k.events("recorded", list)
}

// Published lists what the transport accepted, by relays and from [bus.Bus.Publish] alike, dead letters aside. A row that is
// sent twice is listed twice; copies that [Kit.Duplicate] adds are not.
func (k *Kit) Published() Events {
	return k.events("published", k.sent(func(e Entry) bool { return e.metadata[event.MetaDeadReason] == "" }))
}

func (k *Kit) sent(fits func(Entry) bool) (list []Entry) {
	k.seen.mu.Lock()
	defer k.seen.mu.Unlock()
	for _, e := range k.seen.sent {
		if fits(e) {
			list = append(list, e)
		}
	}
	return list
}

// Handled lists the handler calls that succeeded, with the inbox's transaction if there is one.
func (k *Kit) Handled() Events { return k.attempts("handled", &k.seen.handled) }

// Skipped lists the events that were acknowledged without a handler call, because they were handled before or are older than
// what was.
func (k *Kit) Skipped() Events { return k.attempts("skipped", &k.seen.skipped) }

func (k *Kit) attempts(what string, list *[]Entry) Events {
	k.seen.mu.Lock()
	defer k.seen.mu.Unlock()
	return k.events(what, slices.Clone(*list))
}

// Retried lists the attempts that failed and are made again, each with its error.
func (k *Kit) Retried() Events {
	k.tb.Helper()
	type last struct {
		group, id string
		attempt   int
	}
	given := make(map[last]bool)
	for _, e := range k.DeadLettered().list {
		given[last{e.Group, e.ID, e.Attempt}] = true
	}
	failed := k.attempts("retried", &k.seen.failed).list
	return k.events("retried", slices.DeleteFunc(failed, func(e Entry) bool {
		return given[last{e.Group, e.ID, e.Attempt}]
	}))
}

// DeadLettered lists what was given up, in the kit's inbox or by publishing it to a dead-letter topic: Topic and Group are
// where the event came from, Attempt is how many there were.
func (k *Kit) DeadLettered() Events {
	k.tb.Helper()
	parked, err := k.in.Parked(context.Background(), inbox.Filter{State: inbox.StateDead, Limit: math.MaxInt32})
	if err != nil {
		k.tb.Fatalf("bustest: list dead letters: %v", err)
	}
	var list []Entry
	for _, p := range parked {
		e := entryOf(p.Topic, p.Message)
		e.ID, e.Key, e.Group, e.Attempt, e.Err, e.At = p.ID, p.Key, p.Group, p.Attempts, errors.New(p.Reason), p.Time
		list = append(list, e)
	}
	for _, e := range k.sent(func(e Entry) bool { return e.metadata[event.MetaDeadReason] != "" }) {
		md := e.metadata
		e.Topic, e.Group, e.Err = md[event.MetaDeadTopic], md[event.MetaDeadGroup], errors.New(md[event.MetaDeadReason])
		if e.Attempt, err = strconv.Atoi(md[event.MetaDeadAttempts]); err != nil {
			k.tb.Errorf("bustest: dead letter %s: attempts: %v", e.ID, err)
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b Entry) int { return a.At.Compare(b.At) })
	return k.events("dead-lettered", list)
}

func (k *Kit) watched() []database {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.databases)
}

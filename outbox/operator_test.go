package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

func newOperator(t *testing.T, db *sql.DB, opts ...outbox.Option) *outbox.Operator {
	t.Helper()
	op, err := outbox.NewOperator(db, opts...)
	check(t, err)
	return op
}

func order(f outbox.Filter) outbox.Order { return outbox.Order{Filter: f, By: "ann", Why: "ticket 7"} }

// refusing makes a fake refuse some ids until healed.
func refusing(f *fake, ids ...string) (healed *atomic.Bool) {
	healed = new(atomic.Bool)
	f.onOne = func(msg *message.Message) error {
		if slices.Contains(ids, msg.UUID) && !healed.Load() {
			return fmt.Errorf("no: %w", transport.ErrRefused)
		}
		return nil
	}
	return healed
}

func TestRetryOfABlockerReleasesItsKeyInOrder(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		healed := refusing(f, "a-2")
		box := newBox(t, db, f, outbox.WithPoll(50*time.Millisecond), outbox.WithBatch(20))
		start(t, t.Context(), box)
		record(t, box, keyed("a", 100)...)
		eventually(t, "the rest is held", func() bool { return count(t, db, "state = 1") == 98 && count(t, db, "state = 2") == 1 })

		op := newOperator(t, db) // of another process: it does not wake the relay
		dry := order(outbox.Filter{Key: "a"})
		dry.DryRun = true
		if n, err := op.Retry(t.Context(), dry); err != nil || n != 99 {
			t.Errorf("dry run: %d, %v, want 99", n, err)
		}
		if n, err := op.Retry(t.Context(), order(outbox.Filter{ID: "a-50"})); err != nil || n != 1 {
			t.Errorf("retry of a held row: %d, %v", n, err)
		}
		healed.Store(true)
		if n, err := op.Retry(t.Context(), order(outbox.Filter{ID: "a-2"})); err != nil || n != 1 {
			t.Errorf("retry: %d, %v", n, err)
		}
		f.await(t, 100)
		wantOrder(t, perKey(f.all())["a"], "a", 100)
		eventually(t, "all is published", func() bool { return count(t, db, "state = 3") == 100 })
		if _, err := op.Retry(t.Context(), order(outbox.Filter{ID: "a-2"})); !errors.Is(err, outbox.ErrNoRow) {
			t.Errorf("retry of what is published: %v, want ErrNoRow", err)
		}
		notes, err := op.Audit(t.Context(), 0, 10)
		check(t, err)
		if len(notes) != 2 || notes[1].By != "ann" || notes[1].Why != "ticket 7" || notes[1].Action != "retry" || notes[1].ID != "a-2" ||
			notes[1].Chosen != `{"id":"a-2"}` || time.Since(notes[1].Time).Abs() > time.Minute {
			t.Errorf("audit %+v", notes)
		}
	})
}

func TestDiscardReleasesItsKey(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		refusing(f, "a-2", "b-1", "-1")
		box := newBox(t, db, f, outbox.WithPoll(50*time.Millisecond))
		start(t, t.Context(), box)
		record(t, box, keyed("a", 5)...)
		record(t, box, keyed("b", 1)...)                     // nothing is held behind it
		record(t, box, note{ID: "-1"}, note{ID: "-2", N: 2}) // no key
		eventually(t, "all is refused or held", func() bool { return count(t, db, "state = 1") == 3 && count(t, db, "state = 2") == 3 })
		op, err := box.Operator()
		check(t, err)
		o := order(outbox.Filter{Topic: "notes"})
		if n, err := op.Discard(t.Context(), o); err != nil || n != 3 {
			t.Fatalf("discard: %d, %v, want 3", n, err)
		}
		f.await(t, 5)
		record(t, box, note{Key: "b", ID: "b-2", N: 2})
		f.await(t, 6)
		if got := perKey(f.all())["b"]; len(got) != 1 {
			t.Errorf("of b: %v, want what came after the discarded row", got)
		}
		if got := strings.Join(perKey(f.all())["a"], " "); got != "a-1 a-3 a-4 a-5" {
			t.Errorf("of a: %q", got)
		}
		rows, err := op.Rows(t.Context(), outbox.Filter{State: outbox.StateDiscarded})
		check(t, err)
		if len(rows) != 3 || rows[0].ID != "a-2" || rows[0].Class != "permanent" || rows[0].Attempts != 1 || rows[0].Payload != nil {
			t.Errorf("rows %+v", rows)
		}
		eventually(t, "nothing waits", func() bool {
			s, err := op.Status(t.Context())
			check(t, err)
			return s == outbox.Status{}
		})
	})
}

func TestDiscardErases(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		refusing(f, "a-1")
		box := newBox(t, db, f)
		start(t, t.Context(), box)
		record(t, box, keyed("a", 1)...)
		eventually(t, "it is refused", func() bool { return count(t, db, "state = 2") == 1 })
		op := newOperator(t, db)
		look := outbox.Filter{ID: "a-1", Payload: true}
		rows, err := op.Rows(t.Context(), look)
		check(t, err)
		if len(rows) != 1 || len(rows[0].Payload) == 0 {
			t.Fatalf("rows %+v, want one with its payload", rows)
		}
		o := order(outbox.Filter{ID: "a-1"})
		o.Erase = true
		_, err = op.Discard(t.Context(), o)
		check(t, err)
		if rows, err = op.Rows(t.Context(), look); err != nil || len(rows) != 1 || len(rows[0].Payload) != 0 || len(rows[0].Metadata) != 0 {
			t.Errorf("rows %+v, %v, want nothing left of the payload", rows, err)
		}
	})
}

// A retry of a row that waits for its next attempt does not wait for it.
func TestRetryHurriesWhatBacksOff(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		var healed atomic.Bool
		f.onOne = func(*message.Message) error {
			if !healed.Load() {
				return &transport.PublishError{Topic: "notes", Failures: []transport.Failure{{Err: errors.New("not now")}}}
			}
			return nil
		}
		box := newBox(t, db, f, outbox.WithPoll(50*time.Millisecond), outbox.WithBackoff(time.Hour, time.Hour))
		start(t, t.Context(), box)
		record(t, box, keyed("a", 5)...)
		record(t, box, note{ID: "free"})
		eventually(t, "all is held", func() bool { return count(t, db, "state = 1") == 6 && count(t, db, "attempts = 1") == 2 })
		healed.Store(true)
		o := order(outbox.Filter{})
		op := newOperator(t, db)
		if _, err := op.Retry(t.Context(), o); err == nil || errors.Is(err, outbox.ErrNoRow) {
			t.Errorf("an order for everything by mistake: %v", err)
		}
		o.All = true
		if n, err := op.Retry(t.Context(), o); err != nil || n != 6 {
			t.Errorf("retry: %d, %v, want 6", n, err)
		}
		f.await(t, 6)
		wantOrder(t, perKey(f.all())["a"], "a", 5)
	})
}

func TestReplayKeepsOrderWhileTheRelayRuns(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		const keys, each, fresh = 5, 240, 60 // more than a batch of the operator's
		f := newFake()
		box := newBox(t, db, f, outbox.WithPoll(20*time.Millisecond), outbox.WithBatch(50), outbox.WithInFlight(120))
		start(t, t.Context(), box)
		for i := range each {
			var events []event.Event
			for k := range keys {
				events = append(events, note{Key: fmt.Sprint("k", k), N: i + 1, ID: fmt.Sprintf("k%d-%d", k, i+1)})
			}
			record(t, box, events...)
		}
		eventually(t, "all is published", func() bool { return count(t, db, "state = 3") == keys*each })
		until := time.Now().Add(time.Minute)
		done := make(chan error, 1)
		op := newOperator(t, db)
		go func() {
			n, err := op.Replay(t.Context(), order(outbox.Filter{Topic: "notes", Until: until}))
			if err == nil && n < keys*each {
				err = fmt.Errorf("replayed %d, want %d and more", n, keys*each)
			}
			done <- err
		}()
		for i := range fresh {
			for k := range keys {
				record(t, box, note{Key: fmt.Sprint("k", k), N: each + i + 1, ID: fmt.Sprintf("k%d-%d", k, each+i+1)})
			}
		}
		check(t, <-done)
		eventually(t, "all is published", func() bool { return count(t, db, "state = 3") == keys*(each+fresh) })

		byGeneration := make(map[string][]string)
		for _, s := range f.all() {
			g := s.md.Get(event.MetaGeneration)
			byGeneration[g+"/"+s.key] = append(byGeneration[g+"/"+s.key], s.id)
		}
		for k := range keys {
			key := fmt.Sprint("k", k)
			wantOrder(t, byGeneration["/"+key], key, each+fresh)
			again := byGeneration["1/"+key]
			if !slices.Equal(again, byGeneration["/"+key][:len(again)]) {
				t.Errorf("%s: sent again as %v", key, again)
			}
			if len(again) < each {
				t.Errorf("%s: %d were sent again, want %d at least", key, len(again), each)
			}
		}
	})
}

func TestReplayChoosesAndDoesNotAlarm(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f)
		stop := start(t, t.Context(), box)
		record(t, box, keyed("a", 3)...)
		record(t, box, keyed("b", 3)...)
		eventually(t, "all is published", func() bool { return count(t, db, "state = 3") == 6 })
		check(t, stop())
		op := newOperator(t, db)
		for _, c := range []struct {
			f    outbox.Filter
			want int64
		}{
			{outbox.Filter{Key: "a"}, 3}, {outbox.Filter{Type: "note.taken"}, 6}, {outbox.Filter{ID: "b-2"}, 1}, {outbox.Filter{After: 4}, 2},
			{outbox.Filter{Topic: "notes", Key: "b"}, 3}, {outbox.Filter{Since: time.Now().Add(-time.Minute)}, 6},
		} {
			o := order(c.f)
			o.DryRun = true
			if n, err := op.Replay(t.Context(), o); err != nil || n != c.want {
				t.Errorf("%+v: %d, %v, want %d", c.f, n, err, c.want)
			}
		}
		o := order(outbox.Filter{Until: time.Now().Add(-time.Minute)})
		if _, err := op.Replay(t.Context(), o); !errors.Is(err, outbox.ErrNoRow) {
			t.Errorf("nothing is that old: %v, want ErrNoRow", err)
		}
		_, err := op.Replay(t.Context(), order(outbox.Filter{Key: "a"}))
		check(t, err)
		s, err := op.Status(t.Context())
		check(t, err)
		if s.Pending != 3 || s.Oldest <= 0 || s.Oldest > time.Minute {
			t.Errorf("status %+v, want 3 that wait since a moment ago", s)
		}
	})
}

func TestSweepNow(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		box := newBox(t, db, newFake())
		stop := start(t, t.Context(), box)
		record(t, box, keyed("a", 9)...)
		eventually(t, "all is published", func() bool { return count(t, db, "state = 3") == 9 })
		check(t, stop())
		record(t, box, note{Key: "a", ID: "waits", N: 10})
		op := newOperator(t, db, outbox.WithRetention(time.Nanosecond))
		o := order(outbox.Filter{})
		o.DryRun = true
		if n, err := op.Sweep(t.Context(), o); err != nil || n != 9 {
			t.Errorf("dry run: %d, %v, want 9", n, err)
		}
		o.DryRun = false
		if n, err := op.Sweep(t.Context(), o); err != nil || n != 9 || count(t, db, "1 = 1") != 1 {
			t.Errorf("sweep: %d, %v, want 9", n, err)
		}
		notes, err := op.Audit(t.Context(), 0, 10)
		check(t, err)
		if len(notes) != 1 || notes[0].Action != "sweep" || notes[0].Rows != 9 {
			t.Errorf("audit %+v", notes)
		}
	})
}

func TestOrdersNeedSomebodyAndAReason(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	if _, err := outbox.NewOperator(db); err == nil {
		t.Error("an operator for tables that are not there")
	}
	newBox(t, db, newFake())
	op := newOperator(t, db)
	_, err := op.Discard(t.Context(), outbox.Order{})
	if err == nil || !strings.Contains(err.Error(), "by is") || !strings.Contains(err.Error(), "filter is empty") {
		t.Errorf("got %v, want both named", err)
	}
	if _, err := op.Rows(t.Context(), outbox.Filter{State: "lost"}); err == nil {
		t.Error("a state that is none was accepted")
	}
}

func TestWithMigrateMakesTheTables(t *testing.T) {
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Open(t)
		if _, err := outbox.New(db, newFake(), outbox.WithTablePrefix("shop_")); err == nil {
			t.Error("tables were made without being asked for")
		}
		for range 2 {
			_, err := outbox.New(db, newFake(), outbox.WithTablePrefix("shop_"), outbox.WithMigrate())
			check(t, err)
		}
	})
}

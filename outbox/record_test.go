package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/txhook"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	box := newBox(t, db, newFake())
	want := errors.New("no")
	err := box.InTx(context.Background(), func(tx *sql.Tx) error {
		if err := box.Record(context.Background(), tx, notes, keyed("a", 3)...); err != nil {
			t.Fatal(err)
		}
		return want
	})
	if !errors.Is(err, want) {
		t.Errorf("InTx returned %v, want %v", err, want)
	}
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestInTxRollsBackOnPanic(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	db.SetMaxOpenConns(1) // a transaction left open would hang the count
	box := newBox(t, db, newFake())
	func() {
		defer func() { _ = recover() }()
		_ = box.InTx(context.Background(), func(tx *sql.Tx) error {
			_ = box.Record(context.Background(), tx, notes, keyed("a", 1)...)
			panic("boom")
		})
	}()
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestSameIDTwiceIsOneEvent(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	f := newFake()
	box := newBox(t, db, f)
	record(t, box, note{Key: "a", N: 1, ID: "x"}, note{Key: "a", N: 2, ID: "x"})
	record(t, box, note{Key: "a", N: 3, ID: "x"}, note{Key: "a", N: 4, ID: "y"})
	if got := box.Stats().Recorded; got != 2 {
		t.Errorf("recorded %d, want 2", got)
	}
	start(t, context.Background(), box)
	f.await(t, 2)
	if got := strings.Join(f.ids(), " "); got != "x y" {
		t.Errorf("sent %q, want x y", got)
	}
}

func TestRecordRefusesWhatTheTransportWouldRefuse(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	f := newFake()
	f.limits = transport.Limits{MessageBytes: 1000}
	box := newBox(t, db, f)
	err := box.InTx(context.Background(), func(tx *sql.Tx) error {
		return box.Record(context.Background(), tx, notes, note{Key: "a"}, note{Key: "a", Pad: strings.Repeat("x", 2000)})
	})
	if !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestRecordKeepsTheEnvelope(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	f := newFake()
	box := newBox(t, db, f, outbox.WithSource("/shop"))
	record(t, box, note{Key: "a", N: 1, ID: "x"})
	start(t, context.Background(), box)
	f.await(t, 1)
	got := f.all()[0]
	for key, want := range map[string]string{
		event.MetaID: "x", event.MetaSource: "/shop", event.MetaType: "note.taken", event.MetaPartitionKey: "a",
		event.MetaContentType: "application/json", event.MetaCorrelationID: "x", event.MetaSpecVersion: "1.0",
	} {
		if got.md[key] != want {
			t.Errorf("%s is %q, want %q", key, got.md[key], want)
		}
	}
	if got.payload != `{"key":"a","n":1}` || got.topic != "notes" {
		t.Errorf("payload %s on %s", got.payload, got.topic)
	}
}

func TestEveryWayOfCommittingWakesTheRelay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, commit := range map[string]func(*testing.T, *sql.DB, *outbox.Outbox){
		"InTx": func(t *testing.T, _ *sql.DB, box *outbox.Outbox) { record(t, box, note{Key: "a"}) },
		"Committed": func(t *testing.T, db *sql.DB, box *outbox.Outbox) {
			tx := begin(t, db)
			check(t, box.Record(ctx, tx, notes, note{Key: "a"}))
			check(t, tx.Commit())
			box.Committed()
		},
		"bare": func(t *testing.T, db *sql.DB, box *outbox.Outbox) {
			tx := begin(t, db)
			check(t, box.Record(ctx, tx, notes, note{Key: "a"}))
			check(t, tx.Commit())
		},
		"hook": func(t *testing.T, db *sql.DB, box *outbox.Outbox) {
			ctx, hooks := txhook.With(ctx)
			tx := begin(t, db)
			check(t, box.Record(ctx, tx, notes, note{Key: "a"}))
			check(t, tx.Commit())
			hooks.Fire()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openDB(t)
			f := newFake()
			box := newBox(t, db, f)
			start(t, ctx, box)
			commit(t, db, box)
			f.await(t, 1)
		})
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := outbox.New(nil, nil, outbox.WithBatch(0), outbox.WithWorkers(-1), outbox.WithTablePrefix("a b"),
		outbox.WithLeaseTTL(1), outbox.WithRetention(-1), outbox.WithPoll(1), outbox.WithBackoff(0, 0),
		outbox.WithInFlight(0), outbox.WithFailurePolicy(7), outbox.WithLogger(nil))
	for _, want := range []string{"database", "transport", "batch", "workers", "prefix", "lease", "retention", "poll", "backoff",
		"in flight", "policy", "logger"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	check(t, err)
	return tx
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

package inbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/inbox"
)

// fill writes n handled ids of that age without handling them.
func (b *bundle) fill(t testing.TB, n int, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age).UnixMicro()
	mustExec(t, b.db, `WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < ?)
		INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at)
		SELECT ?, '', ? || i, 'orders', '', ? FROM s`, n, group, fmt.Sprintf("%v-", age), at)
}

func TestSweepDeletesWhatIsPastItsRetention(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1, inbox.WithRetention(time.Hour))
	b.fill(t, 1, -24*time.Hour) // from a clock that was ahead
	b.fill(t, 1777, 2*time.Hour)
	b.fill(t, 700, time.Minute)
	if err := b.handle(deliver(versioned("e1", "k", 1)), apply); err != nil {
		t.Fatal(err)
	}
	put(t, b.in, letter("dead", nil))
	mustExec(t, b.db, `INSERT INTO seambus_attempts (grp, source, event_id, attempts, began_at, updated_at) VALUES
		('g', '', 'old', 1, 0, 0), ('g', '', 'new', 1, 1, 1 << 60)`)

	for _, want := range []int64{1777, 0} {
		n, err := b.in.Sweep(t.Context())
		if err != nil || n != want {
			t.Fatalf("swept %d, %v, want %d", n, err, want)
		}
	}
	if n := b.ids(t); n != 702 {
		t.Errorf("%d ids are left, want 702", n)
	}
	if id := one[string](t, b.db, `SELECT group_concat(event_id) FROM seambus_attempts`); id != "new" {
		t.Errorf("attempts of %q are left, want those of \"new\"", id)
	}
	if n := one[int](t, b.db, `SELECT count(*) FROM seambus_versions`); n != 1 || len(parked(t, b.in, inbox.Filter{})) != 1 {
		t.Error("versions or parked events were swept")
	}
}

func TestRunSweepsAtEveryIntervalUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inbox.db")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		db := openDB(t, path+pragmas, 1)
		in, err := inbox.New(db, inbox.WithRetention(36*time.Hour), inbox.WithSweepInterval(24*time.Hour),
			inbox.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		b := &bundle{db: db, in: in}
		b.fill(t, 3, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- in.Run(ctx) }()
		for day, want := range []int{3, 3, 0} {
			time.Sleep(time.Hour) // virtual: past the tick
			synctest.Wait()
			if n := b.ids(t); n != want {
				t.Errorf("day %d: %d ids, want %d", day, n, want)
			}
			time.Sleep(23 * time.Hour)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if !strings.Contains(log.String(), "ids=3") {
			t.Errorf("log does not tell of the sweep: %s", log.String())
		}
		_ = db.Close()
	})
}

func TestRunOutlivesASweepThatFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inbox.db")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		db := openDB(t, path+pragmas, 1)
		in, err := inbox.New(db, inbox.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, db, `ALTER TABLE seambus_inbox RENAME TO elsewhere`)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- in.Run(ctx) }()
		time.Sleep(time.Minute)
		mustExec(t, db, `ALTER TABLE elsewhere RENAME TO seambus_inbox`)
		b := &bundle{db: db, in: in}
		b.fill(t, 3, 2*inbox.DefaultRetention)
		time.Sleep(inbox.DefaultSweepInterval)
		synctest.Wait()
		if n := b.ids(t); n != 0 {
			t.Errorf("%d ids are left", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if !strings.Contains(log.String(), "inbox sweep failed") {
			t.Errorf("log does not tell of the failure: %s", log.String())
		}
		_ = db.Close()
	})
}

func TestRunIsSilentAboutASweepThatItsOwnEndInterrupted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	b := newBundle(t, 1, inbox.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.in.Run(ctx); err != nil || log.Len() > 0 {
		t.Errorf("Run: %v, log %q, want neither", err, log.String())
	}
}

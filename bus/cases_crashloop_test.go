package bus_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

// What the process that dies is told by its parent.
const (
	crashDriver = "SEAMBUS_TEST_CRASH_DRIVER"
	crashDSN    = "SEAMBUS_TEST_CRASH_DSN"
	crashMode   = "SEAMBUS_TEST_CRASH_MODE"
)

const (
	crashAttempts = 3
	killed        = 137 // as the kernel's out-of-memory killer leaves it
)

// crashFlow is outbox, bus and inbox on one database, as a process of the service has them.
func crashFlow(t *testing.T, db *sql.DB, mode memory.Mode) (*flow, *bus.Bus) {
	t.Helper()
	var err error
	f := &flow{db: db, tr: newMemory(t, memory.WithStrict(mode)), topic: orders()}
	if f.box, err = outbox.New(db, f.tr, outbox.WithLeaseTTL(100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if f.in, err = inbox.New(db); err != nil {
		t.Fatal(err)
	}
	b := newBus(t, f.tr, bus.WithOutbox(f.box), bus.WithInbox(f.in), bus.WithDurableAttempts(),
		bus.WithRetry(middleware.RetryPolicy{MaxAttempts: crashAttempts, InitialDelay: time.Millisecond}))
	return f, b
}

// C36: a handler that kills its process is given up after as many attempts as any other, because each was written before the
// call.
func TestHandlerThatKillsItsProcessIsGivenUp(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	for name, mode := range map[string]memory.Mode{"default": 0, "strict SQS": memory.SQS, "strict Kafka": memory.Kafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crashLoop(t, dialecttest.SQLite(t), mode)
		})
	}
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) { crashLoop(t, d, 0) })
}

func crashLoop(t *testing.T, d dialecttest.Database, mode memory.Mode) {
	t.Helper()
	f, _ := crashFlow(t, d.Migrated(t, dialect.SetOutbox, dialect.SetInbox), mode)
	if err := f.record(t.Context(), placed{OrderID: 1, ID: "kills"}); err != nil {
		t.Fatal(err)
	}
	deaths := 0
	for deaths <= crashAttempts { // a supervisor that starts it again whenever it dies
		code := runCrashing(t, d, mode)
		if code == 0 {
			break
		}
		if code != killed {
			t.Fatalf("the process ended with %d", code)
		}
		deaths++
	}
	if deaths != crashAttempts {
		t.Errorf("the process died %d times, want %d", deaths, crashAttempts)
	}
	parked, err := f.in.Parked(t.Context(), inbox.Filter{})
	if err != nil || len(parked) != 1 || parked[0].ID != "kills" || parked[0].Attempts != crashAttempts {
		t.Errorf("parked %+v, %v; want the event after %d attempts", parked, err, crashAttempts)
	}
}

// runCrashing runs the process until it ends, and returns its code.
func runCrashing(t *testing.T, d dialecttest.Database, mode memory.Mode) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProcessThatDiesInItsHandler$", "-test.count=1")
	cmd.Env = append(os.Environ(), crashDriver+"="+d.Driver, crashDSN+"="+d.DSN, crashMode+"="+string(rune('0'+mode)))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != killed {
		t.Fatalf("%v: %s", err, out)
	}
	return exit.ExitCode()
}

// TestProcessThatDiesInItsHandler is the process of the test above.
func TestProcessThatDiesInItsHandler(t *testing.T) {
	driver := os.Getenv(crashDriver)
	if driver == "" {
		t.Skip("run by TestHandlerThatKillsItsProcessIsGivenUp")
	}
	db, err := sql.Open(driver, os.Getenv(crashDSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f, b := crashFlow(t, db, memory.Mode(os.Getenv(crashMode)[0]-'0'))
	bus.Handle(b, f.topic, "fulfillment", func(context.Context, placed) error {
		os.Exit(killed)
		return nil
	}, bus.Ignore[delivered]())
	r := start(t, b)
	for { // until the event is parked and its row is marked
		d, err := f.box.Depth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.Pending+d.Held == 0 && f.tr.Held() == 0 {
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatal("nothing settled")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

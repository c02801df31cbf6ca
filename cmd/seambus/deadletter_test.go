package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type shipped struct {
	Order string `json:"order"`
	N     uint64 `json:"n"`
}

func (shipped) EventType() string          { return "order.shipped" }
func (e shipped) PartitionKey() string     { return e.Order }
func (e shipped) AggregateVersion() uint64 { return e.N }
func (e shipped) EventID() string          { return fmt.Sprintf("%s-%d", e.Order, e.N) }

// incident is a service that runs while an operator has to decide.
type incident struct {
	t      *testing.T
	name   string
	db     *sql.DB
	bus    *bus.Bus
	topic  *event.Topic
	broken atomic.Bool
}

func newIncident(t *testing.T, d dialecttest.Database) *incident {
	t.Helper()
	t.Setenv(variable, d.DSN)
	i := &incident{t: t, name: string(d.Name), db: d.Migrated(t, dialect.SetInbox), topic: event.NewTopic("orders", shipped{})}
	if _, err := i.db.Exec(`CREATE TABLE shipments (id VARCHAR(255) PRIMARY KEY, at VARCHAR(64))`); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(i.db)
	if err != nil {
		t.Fatal(err)
	}
	tr := memory.New()
	i.bus, err = bus.New(tr, bus.WithInbox(in), bus.WithOnDead(bus.HoldKey), bus.WithDurableAttempts())
	if err != nil {
		t.Fatal(err)
	}
	bus.Handle(i.bus, i.topic, "shipping", func(ctx context.Context, e shipped) error {
		if i.broken.Load() && e.Order == "41" {
			return bus.Permanent(errors.New("no such warehouse"))
		}
		_, err := inbox.Tx(ctx).ExecContext(ctx, fmt.Sprintf(`INSERT INTO shipments VALUES ('%s', '%s')`, e.EventID(), time.Now().Format(time.RFC3339Nano)))
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.bus.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, tr.Close()); err != nil {
			t.Error(err)
		}
	})
	<-i.bus.Ready()
	return i
}

func (i *incident) publish(events ...event.Event) {
	i.t.Helper()
	if err := i.bus.Publish(i.t.Context(), i.topic, events...); err != nil {
		i.t.Fatal(err)
	}
}

// command runs one as an operator would, shows it, and returns what it printed.
func (i *incident) command(want int, args ...string) string {
	i.t.Helper()
	code, out, errOut := call(i.t, append(args, "--dialect", i.name, "--dsn-env", variable)...)
	i.t.Logf("$ seambus %s\n%s%s", strings.Join(args, " "), out, errOut)
	if code != want {
		i.t.Fatalf("exit %d, want %d", code, want)
	}
	return out + errOut
}

func (i *incident) await(want int, query string) {
	i.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var n int
		if err := i.db.QueryRow(query).Scan(&n); err != nil {
			i.t.Fatal(err)
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			i.t.Fatalf("%s: %d, want %d", query, n, want)
		}
	}
}

// An incident from the first failure to the opened key; go test -v shows the transcript.
func TestIncident(t *testing.T) {
	for name, database := range map[string]func(testing.TB) dialecttest.Database{
		"sqlite": dialecttest.SQLite, "postgres": dialecttest.Postgres, "mysql": dialecttest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			i := newIncident(t, database(t))
			i.publish(shipped{"41", 1}, shipped{"42", 1})
			i.await(2, `SELECT count(*) FROM shipments`)
			i.broken.Store(true)
			i.publish(shipped{"41", 2}, shipped{"41", 3}, shipped{"42", 2}, shipped{"41", 4})
			i.await(3, `SELECT count(*) FROM seambus_parked`)
			i.await(3, `SELECT count(*) FROM shipments`)

			if out := i.command(exitOK, "deadletter", "list"); !strings.Contains(out, "41-2") || strings.Contains(out, "41-3") || !strings.Contains(out, "no such warehouse") {
				t.Error("the list does not tell")
			}
			if out := i.command(exitOK, "deadletter", "list", "--all", "--key", "41"); strings.Count(out, "held") != 2 {
				t.Error("the list does not tell what is held")
			}
			var shown []letter
			if err := json.Unmarshal([]byte(i.command(exitOK, "deadletter", "show", "--id", "41-2")), &shown); err != nil || len(shown) != 1 ||
				len(shown[0].History) != 1 || shown[0].History[0].Reason != "no such warehouse" || shown[0].History[0].Node == "" || shown[0].Payload != nil {
				t.Errorf("%+v, %v", shown, err)
			}
			by := []string{"--by", "ada", "--why", "warehouse is back"}
			i.command(exitFailed, append([]string{"deadletter", "redrive", "--id", "nobody"}, by...)...)
			i.command(exitUsage, "deadletter", "redrive")
			i.command(exitOK, append([]string{"deadletter", "redrive", "--group", "shipping", "--dry-run"}, by...)...)
			i.broken.Store(false)
			i.command(exitOK, append([]string{"deadletter", "redrive", "--group", "shipping", "--rate", "100"}, by...)...)
			i.await(0, `SELECT count(*) FROM seambus_held`)
			i.publish(shipped{"41", 5})
			i.await(7, `SELECT count(*) FROM shipments`)
			var order string
			rows, err := i.db.Query(`SELECT event_id FROM seambus_inbox WHERE partition_key = '41' ORDER BY seq`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				order += id + " "
			}
			if order != "41-1 41-2 41-3 41-4 41-5 " {
				t.Errorf("key 41 was handled in the order %s", order)
			}
			i.await(1, `SELECT count(*) FROM seambus_audit WHERE who = 'ada' AND action = 'redrive' AND event_id = '41-2'`)
			if out := i.command(exitOK, append([]string{"inbox", "forget", "--group", "shipping", "--key", "41", "--dry-run"}, by...)...); !strings.Contains(out, "would be forgotten: 5") {
				t.Error("forget does not count")
			}
		})
	}
}

func TestWrongFlagsAreAllNamed(t *testing.T) {
	code, _, errOut := call(t, "deadletter", "list", "--dialect", "sqlite", "--since", "yesterday", "--until", "x", "--limit", "-1", "--rate", "1")
	if code != exitUsage || !strings.Contains(errOut, "rate") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	code, _, errOut = call(t, "deadletter", "list", "--dialect", "sqlite", "--since", "yesterday", "--until", "x", "--limit", "-1")
	for _, want := range []string{"--since", "yesterday", "--until", "--limit is -1"} {
		if code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("exit %d, lacks %q: %s", code, want, errOut)
		}
	}
}

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// picky is a broker that refuses some events for good.
type picky struct {
	*memory.Transport
	healed atomic.Bool
	sent   chan string
}

func (p *picky) Publisher() message.Publisher { return p }

// Capabilities say that what was accepted is kept: no group takes it here.
func (p *picky) Capabilities() transport.Capabilities {
	c := p.Transport.Capabilities()
	c.Durable = true
	return c
}

func (p *picky) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) > 1 {
		failures := make([]transport.Failure, 0, len(msgs))
		for i, m := range msgs {
			if err := p.Publish(topic, m); err != nil {
				failures = append(failures, transport.Failure{Index: i, ID: m.UUID, Err: err})
				for j := i + 1; j < len(msgs); j++ {
					failures = append(failures, transport.Failure{Index: j, ID: msgs[j].UUID, Err: transport.ErrSkipped})
				}
				return &transport.PublishError{Topic: topic, Failures: failures}
			}
		}
		return nil
	}
	if msgs[0].UUID == "41-2" && !p.healed.Load() {
		return fmt.Errorf("no such field: %w", transport.ErrRefused)
	}
	p.sent <- msgs[0].UUID + "/" + msgs[0].Metadata.Get(event.MetaGeneration)
	return nil
}

// An outbox from the first refused row to the replay; go test -v shows the transcript.
func TestOutboxCommands(t *testing.T) {
	for name, database := range map[string]func(testing.TB) dialecttest.Database{
		"sqlite": dialecttest.SQLite, "postgres": dialecttest.Postgres, "mysql": dialecttest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			d := database(t)
			t.Setenv(variable, d.DSN)
			outboxDay(t, &incident{t: t, name: name, db: d.Migrated(t, dialect.SetOutbox), topic: event.NewTopic("orders", shipped{})})
		})
	}
}

func outboxDay(t *testing.T, i *incident) {
	t.Helper()
	broker := &picky{Transport: memory.New(), sent: make(chan string, 100)}
	box, err := outbox.New(i.db, broker, outbox.WithPoll(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	status := func(want string) {
		t.Helper()
		var all []standing
		if err := json.Unmarshal([]byte(i.command(exitOK, "outbox", "status", "--json")), &all); err != nil || len(all) != 1 {
			t.Fatalf("%v in %+v", err, all)
		}
		s := all[0]
		if got := fmt.Sprint(s.Pending, s.Held, s.Failed, s.OldestUnpublishedSeconds > 0); got != want {
			t.Errorf("status %s, want %s", got, want)
		}
	}
	status("0 0 0 false")
	i.record(box, shipped{"41", 1}, shipped{"41", 2}, shipped{"41", 3}, shipped{"42", 1})
	status("4 0 0 true") // no relay runs

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- box.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-done, broker.Close()); err != nil {
			t.Error(err)
		}
	}()
	i.await(1, "SELECT count(*) FROM seambus_outbox WHERE state = 2")
	i.await(1, "SELECT count(*) FROM seambus_outbox WHERE state = 1")
	i.await(2, "SELECT count(*) FROM seambus_outbox WHERE state = 3")
	status("0 1 1 true")
	figures := i.command(exitOK, "metrics")
	for _, want := range []string{`seambus_outbox_unpublished{outbox="seambus"} 1`, `seambus_outbox_failed{outbox="seambus"} 1`} {
		if !strings.Contains(figures, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	checkMetrics(t, figures)

	if out := i.command(exitOK, "outbox", "list", "--state", "failed"); !strings.Contains(out, "41-2") || !strings.Contains(out, "no such field") {
		t.Error("the failed row or its reason is not listed")
	}
	if out := i.command(exitOK, "outbox", "show", "--id", "41-2"); strings.Contains(out, "payload") {
		t.Error("a payload is shown without being asked for")
	}
	if out := i.command(exitOK, "outbox", "show", "--id", "41-2", "--payload"); !strings.Contains(out, "payload") {
		t.Error("no payload is shown")
	}
	i.command(exitNoRow, "outbox", "show", "--id", "43-1")
	i.command(exitUsage, "outbox", "show")
	i.command(exitUsage, "outbox", "retry", "--id", "41-2")
	i.command(exitUsage, "outbox", "discard", "--by", "ann", "--why", "by mistake")
	i.command(exitUsage, "outbox", "list", "--state", "lost", "--limit", "-1", "--since", "noon")
	i.command(exitFailed, "outbox", "status", "--prefix", "no_such_")
	i.command(exitNoRow, "outbox", "retry", "--by", "ann", "--why", "ticket 7", "--id", "41-1")
	if out := i.command(exitOK, "outbox", "retry", "--by", "ann", "--why", "ticket 7", "--id", "41-2", "--dry-run"); !strings.Contains(out, "would be done: 1") {
		t.Errorf("dry run: %s", out)
	}
	status("0 1 1 true")
	broker.healed.Store(true)
	i.command(exitOK, "outbox", "retry", "--by", "ann", "--why", "ticket 7", "--id", "41-2")
	i.await(4, "SELECT count(*) FROM seambus_outbox WHERE state = 3")
	i.command(exitOK, "outbox", "replay", "--by", "ann", "--why", "shipping lost a day", "--key", "41", "--since", "1h", "--dry-run")
	i.command(exitOK, "outbox", "replay", "--by", "ann", "--why", "shipping lost a day", "--key", "41", "--since", "1h")
	var of41 []string
	for len(of41) < 6 {
		select {
		case id := <-broker.sent:
			if strings.HasPrefix(id, "41-") {
				of41 = append(of41, id)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("sent %v, want 6", of41)
		}
	}
	if got := strings.Join(of41, " "); got != "41-1/ 41-2/ 41-3/ 41-1/1 41-2/1 41-3/1" {
		t.Errorf("sent %s", got)
	}
	i.await(4, "SELECT count(*) FROM seambus_outbox WHERE state = 3")

	broker.healed.Store(false)
	i.command(exitOK, "outbox", "replay", "--by", "ann", "--why", "again", "--id", "41-2")
	i.await(1, "SELECT count(*) FROM seambus_outbox WHERE state = 2")
	i.command(exitOK, "outbox", "discard", "--by", "bob", "--why", "never valid", "--id", "41-2", "--payload")
	status("0 0 0 false")
	i.command(exitOK, "outbox", "sweep", "--by", "bob", "--why", "full disk", "--retention", "1ns", "--dry-run")
	i.command(exitOK, "outbox", "sweep", "--by", "bob", "--why", "full disk", "--retention", "1ns")
	out := i.command(exitOK, "outbox", "audit")
	for _, want := range []string{"ticket 7", "shipping lost a day", "erase", "full disk"} {
		if !strings.Contains(out, want) {
			t.Errorf("the audit does not say %q", want)
		}
	}
}

func (i *incident) record(box *outbox.Outbox, events ...event.Event) {
	i.t.Helper()
	err := box.InTx(i.t.Context(), func(tx *sql.Tx) error { return box.Record(i.t.Context(), tx, i.topic, events...) })
	if err != nil {
		i.t.Fatal(err)
	}
}

// checkMetrics has Prometheus's own tool read the figures, where there is one.
func checkMetrics(t *testing.T, figures string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not there: the format is not checked")
		return
	}
	c := exec.CommandContext(t.Context(), tool, "check", "metrics")
	c.Stdin = strings.NewReader(figures)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, figures)
	}
}

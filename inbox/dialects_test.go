package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/transport"
)

// onEach runs a test with an inbox on each database, beside one table of effects.
func onEach(t *testing.T, fn func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	dialecttest.Each(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetInbox)
		mustExec(t, db, `CREATE TABLE effects (id VARCHAR(255) NOT NULL)`)
		in, err := inbox.New(db, inbox.WithRetention(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		fn(t, &bundle{db: db, in: in})
	})
}

// effect is apply for every database.
func (b *bundle) effect(t *testing.T) message.HandlerFunc {
	t.Helper()
	d, err := dialect.For(b.db)
	if err != nil {
		t.Fatal(err)
	}
	insert := d.Bind(`INSERT INTO effects (id) VALUES (?)`)
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), insert, msg.UUID)
		return nil, err
	}
}

func TestEachIDTakesEffectOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		for _, source := range []string{"shop", "shop", "app", "shop"} {
			if err := b.handle(deliver(event.Envelope{ID: "e1", Source: source}), b.effect(t)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // a failed attempt leaves nothing seen
			err := b.handle(deliver(event.Envelope{ID: "e2", Source: "shop"}), func(msg *message.Message) ([]*message.Message, error) {
				_, err := b.effect(t)(msg)
				return nil, errors.Join(err, errBoom)
			})
			if !errors.Is(err, errBoom) {
				t.Fatalf("got %v", err)
			}
		}
		if err := b.handle(deliver(event.Envelope{ID: "e2", Source: "shop"}), b.effect(t)); err != nil {
			t.Fatal(err)
		}
		if n := b.effects(t); n != 3 {
			t.Errorf("%d effects, want 3", n)
		}
		wantStats(t, b.in, inbox.Stats{Handled: 3, Duplicates: 2})
	})
}

// Two copies of one id at the same time: the later waits for what becomes of the earlier, and has no effect of its own.
func TestConcurrentCopiesTakeEffectOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		const copies = 6
		effect, inside := b.effect(t), make(chan struct{}, copies)
		var wg sync.WaitGroup
		errs := make([]error, copies)
		for i := range copies {
			wg.Go(func() {
				errs[i] = b.handle(deliver(event.Envelope{ID: "e1", Source: "shop"}), func(msg *message.Message) ([]*message.Message, error) {
					inside <- struct{}{}
					return effect(msg)
				})
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil || len(inside) != 1 || b.effects(t) != 1 {
			t.Errorf("%d handlers, %d effects, %v", len(inside), b.effects(t), err)
		}
		wantStats(t, b.in, inbox.Stats{Handled: 1, Duplicates: copies - 1})
	})
}

func TestOlderVersionsAreStale(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		for i, v := range []uint64{0, 2, 1, 2, 7, 3, math.MaxInt64, math.MaxUint64, math.MaxInt64 + 1} {
			if err := b.handle(deliver(versioned(fmt.Sprint("e", i), "k", v)), b.effect(t)); err != nil {
				t.Fatal(err)
			}
		}
		wantStats(t, b.in, inbox.Stats{Handled: 5, Stale: 4})
	})
}

func TestAttemptsAndTheirFailuresAreKept(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		ctx := t.Context()
		for want := range 3 {
			n, err := b.in.BeginAttempt(ctx, group, "shop", "e1")
			if err != nil || n != want+1 {
				t.Fatalf("attempt %d, %v, want %d", n, err, want+1)
			}
			f := event.Failure{Attempt: n, Time: time.Now().UTC().Truncate(time.Microsecond), Class: event.ClassTransient, Reason: "nö"}
			if err := b.in.NoteFailure(ctx, group, "shop", "e1", f); err != nil {
				t.Fatal(err)
			}
		}
		h, began, err := b.in.AttemptHistory(ctx, group, "shop", "e1")
		if err != nil || len(h) != 3 || h[2].Reason != "nö" || time.Since(began) > time.Minute || time.Since(began) < -time.Minute {
			t.Errorf("%+v, began %v, %v", h, began, err)
		}
		if err := b.in.GiveBackAttempt(ctx, group, "shop", "e1"); err != nil {
			t.Fatal(err)
		}
		if n, err := b.in.BeginAttempt(ctx, group, "shop", "e1"); err != nil || n != 3 {
			t.Errorf("after giving back: %d, %v", n, err)
		}
		if err := b.in.ForgetAttempts(ctx, group, "shop", "e1"); err != nil {
			t.Fatal(err)
		}
		if n, err := b.in.BeginAttempt(ctx, group, "shop", "e1"); err != nil || n != 1 {
			t.Errorf("after forgetting: %d, %v", n, err)
		}
	})
}

func TestLettersKeepEverything(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		for i, payload := range [][]byte{{}, {0x00, 0xff, 0xfe}, make([]byte, 1<<16)} {
			l := letter(fmt.Sprint("e", i), payload)
			l.Message.Metadata["raw"] = "\xff\x00"
			l.History = []event.Failure{{Attempt: 1, Time: l.Time, Node: "host/1", Class: event.ClassTransient, Reason: "no stock"}}
			for range 2 { // put again, it is renewed
				put(t, b.in, l)
			}
			all := parked(t, b.in, inbox.Filter{ID: l.ID, Since: l.Time, Until: l.Time.Add(time.Second), Class: l.Class})
			if len(all) != 1 {
				t.Fatalf("%d letters", len(all))
			}
			want := inbox.Parked{DeadLetter: *l, Sequence: all[0].Sequence, State: inbox.StateDead, Revision: 1}
			if diff := cmp.Diff(want, all[0], cmpopts.IgnoreUnexported(message.Message{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%d bytes of payload (-put +read):\n%s", len(payload), diff)
			}
		}
		if n, err := b.in.CountParked(t.Context(), inbox.Filter{Group: group, Key: "k"}); err != nil || n != 3 {
			t.Errorf("%d parked, %v", n, err)
		}
	})
}

// replaying runs the replay of the group with a handler below the middleware until the test ends.
func (b *bundle) replaying(t *testing.T, h message.HandlerFunc) {
	t.Helper()
	sub, err := b.in.Replay(transport.SubscriberConfig{Group: group})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(context.Background(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for msg := range messages {
			wg.Go(func() {
				if _, err := b.in.Middleware(group)(h)(msg); err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		}
	})
	t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// await waits for a fact that a query tells.
func (b *bundle) await(t *testing.T, want int, query string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for n := -1; n != want; {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d, want %d", query, n, want)
		}
		n = one[int](t, b.db, query)
		time.Sleep(5 * time.Millisecond)
	}
}

func TestHeldKeyOpensInOrderOnEachDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		dead := letter("e1", nil)
		dead.Message.Metadata = message.Metadata{event.MetaSource: "shop", event.MetaID: "e1", event.MetaType: "order.placed", event.MetaPartitionKey: "k"}
		if err := b.in.Hold().Put(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		for range 2 { // delivered twice, parked once
			for n := range 3 {
				if err := b.handle(deliver(event.Envelope{ID: fmt.Sprint("e", n+2), Source: "shop", PartitionKey: "k"}), b.effect(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := b.handle(deliver(event.Envelope{ID: "other", Source: "shop", PartitionKey: "l"}), b.effect(t)); err != nil {
			t.Fatal(err)
		}
		wantStats(t, b.in, inbox.Stats{Handled: 1, Held: 6})

		b.replaying(t, b.effect(t))
		if _, err := b.in.Redrive(t.Context(), inbox.Order{By: "ada", Why: "mended"}); err != nil {
			t.Fatal(err)
		}
		b.await(t, 0, `SELECT count(*) FROM seambus_held`)
		if n := len(parked(t, b.in, inbox.Filter{})); n != 0 {
			t.Errorf("%d are still parked", n)
		}
		rows, err := b.db.Query(`SELECT event_id FROM seambus_inbox ORDER BY seq`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		got := ""
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			got += id + " "
		}
		if strings.Join(strings.Fields(got), " ") != "other e1 e2 e3 e4" || b.effects(t) != 5 {
			t.Errorf("handled %q with %d effects", got, b.effects(t))
		}
		if audits, err := b.in.Audits(t.Context(), 0, 0); err != nil || len(audits) != 1 || time.Since(audits[0].At) > time.Minute {
			t.Errorf("audit %+v, %v", audits, err)
		}
	})
}

func TestDiscardedLetterIsErasedAndRefused(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		put(t, b.in, letter("e1", []byte("secret")))
		out, err := b.in.Discard(t.Context(), inbox.Order{By: "ada", Why: "nonsense", Erase: true})
		if err != nil || out.Done != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		all := parked(t, b.in, inbox.Filter{})
		if len(all) != 1 || all[0].State != inbox.StateDiscarded || len(all[0].Message.Payload)+len(all[0].Message.Metadata) != 0 {
			t.Errorf("kept %+v", all)
		}
		if err := b.handle(deliver(event.Envelope{ID: "e1", Source: "shop", PartitionKey: "k"}), b.effect(t)); err != nil || b.effects(t) != 0 {
			t.Errorf("%d effects, %v", b.effects(t), err)
		}
	})
}

func TestOldIDsAreSwept(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		for n := range 3 {
			if err := b.handle(deliver(event.Envelope{ID: fmt.Sprint("e", n), Source: "shop"}), b.effect(t)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := dialect.For(b.db)
		if err != nil {
			t.Fatal(err)
		}
		old := map[dialect.Name]string{
			dialect.SQLite: "handled_at - 7200000000", dialect.Postgres: "handled_at - interval '2 hours'",
			dialect.MySQL: "handled_at - INTERVAL 2 HOUR",
		}
		mustExec(t, b.db, `UPDATE seambus_inbox SET handled_at = `+old[d.Name()]+` WHERE event_id <> 'e2'`)
		if n, err := b.in.Sweep(t.Context()); err != nil || n != 2 {
			t.Errorf("swept %d, %v", n, err)
		}
		if n := b.ids(t); n != 1 {
			t.Errorf("%d ids are left", n)
		}
	})
}

func TestForgottenEventsAreHandledAgain(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		all := []event.Envelope{versioned("e1", "k", 1), versioned("e2", "k", 2), versioned("e3", "l", 1)}
		handle := func() {
			for _, env := range all {
				if err := b.handle(deliver(env), b.effect(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		handle()
		o := inbox.Oblivion{Group: group, Key: "k", By: "ada", Why: "wrong prices", DryRun: true}
		for _, dry := range []bool{true, false} {
			o.DryRun = dry
			if n, err := b.in.Forget(t.Context(), o); err != nil || n != 2 {
				t.Fatalf("forgot %d, %v, want 2", n, err)
			}
		}
		handle()
		wantStats(t, b.in, inbox.Stats{Handled: 5, Duplicates: 1})
		if n, err := b.in.Forget(t.Context(), inbox.Oblivion{Group: group, Since: time.Now().Add(-time.Minute), By: "ada", Why: "all"}); err != nil || n != 3 {
			t.Errorf("forgot %d, %v, want 3", n, err)
		}
		if n, err := b.in.Forget(t.Context(), inbox.Oblivion{Group: group, Since: time.Now().Add(time.Hour), By: "ada", Why: "none"}); err != nil || n != 0 {
			t.Errorf("forgot %d, %v, want none", n, err)
		}
		if _, err := b.in.Forget(t.Context(), inbox.Oblivion{}); err == nil || !strings.Contains(err.Error(), "everything") || !strings.Contains(err.Error(), "group") {
			t.Errorf("got %v, want every problem", err)
		}
	})
}

func TestBacklogCountsWhatWaits(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		if got, err := b.in.Backlog(t.Context()); err != nil || len(got.Dead)+got.Held+got.Ready+got.HeldKeys != 0 || got.Oldest != 0 {
			t.Errorf("empty: %+v, %v", got, err)
		}
		contract := letter("e0", nil)
		contract.Class, contract.Time = event.ClassContract, time.Now().Add(-time.Hour)
		put(t, b.in, contract)
		dead := letter("e1", nil)
		dead.Time = time.Now()
		if err := b.in.Hold().Put(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			if err := b.handle(deliver(event.Envelope{ID: fmt.Sprint("h", n), Source: "shop", PartitionKey: "k"}), b.effect(t)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := b.in.Backlog(t.Context())
		if err != nil || got.Dead[event.ClassContract] != 1 || got.Dead[event.ClassTransient] != 1 || got.Held != 3 || got.HeldKeys != 1 ||
			got.Oldest < 59*time.Minute || got.Oldest > 61*time.Minute {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

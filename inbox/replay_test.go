package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/transport"
)

var mended = inbox.Order{By: "ada", Why: "mended"}

func keyed(id, key string) event.Envelope {
	return event.Envelope{ID: id, Source: "shop", Type: "order.placed", PartitionKey: key}
}

// hold puts the event of an envelope as a dead letter that holds its key.
func (b *bundle) hold(t *testing.T, env event.Envelope) {
	t.Helper()
	l := &event.DeadLetter{
		Message: env.Message(), Topic: "orders", Group: group, ID: env.ID, Source: env.Source, Key: env.PartitionKey,
		Class: event.ClassPermanent, Reason: "no stock", Attempts: 1, Time: time.Now(),
	}
	if err := b.in.Hold().Put(t.Context(), l); err != nil {
		t.Fatal(err)
	}
}

// Producers who keep no contract write what they like; a letter that the database refuses would come back for ever.
func TestLetterIsKeptWhateverItsNamesAre(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		for name, bad := range map[string]string{
			"invalid UTF-8": "\xff\xfe", "NUL": "a\x00b", "long": strings.Repeat("é", 1000), "very long": strings.Repeat("x", 70_000),
		} {
			for field, set := range map[string]func(*event.DeadLetter){
				"key":     func(l *event.DeadLetter) { l.Key = bad },
				"id":      func(l *event.DeadLetter) { l.ID = bad },
				"source":  func(l *event.DeadLetter) { l.Source = bad },
				"type":    func(l *event.DeadLetter) { l.Message.Metadata[event.MetaType] = bad },
				"uuid":    func(l *event.DeadLetter) { l.Message.UUID = bad },
				"handler": func(l *event.DeadLetter) { l.Handler = bad },
				"reason":  func(l *event.DeadLetter) { l.Reason = bad },
			} {
				env := keyed(name+field, name+field)
				l := &event.DeadLetter{
					Message: env.Message(), Topic: "orders", Group: group, ID: env.ID, Source: env.Source, Key: env.PartitionKey,
					Class: event.ClassContract, Reason: "no contract", Attempts: 1, Time: time.Now(),
				}
				set(l)
				if err := b.in.Hold().Put(t.Context(), l); err != nil {
					t.Errorf("%s %s: %.200v", name, field, err)
				}
			}
		}
	})
}

// Two letters can hold one key, if a contract break comes after a dead letter. The first is handled after the second was put,
// but was not behind it.
func TestLetterIsNotOvertakenByWhatCameBeforeIt(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		b.hold(t, keyed("e1", "k"))
		b.hold(t, keyed("e2", "k"))
		b.replaying(t, b.effect(t))
		for n, id := range []string{"e1", "e2"} {
			time.Sleep(10 * time.Millisecond)
			o := mended
			o.Filter.ID = id
			if out, err := b.in.Redrive(t.Context(), o); err != nil || out.Done != 1 {
				t.Fatalf("%s: %+v, %v", id, out, err)
			}
			b.await(t, n+1, `SELECT count(*) FROM effects`)
		}
		b.await(t, 0, `SELECT count(*) FROM seambus_held`)
	})
}

// A replay that finds the second of two letters while an operator discards it must not leave the key held for nobody.
func TestKeyOpensWhenEveryLetterIsDiscardedWhileItReplays(t *testing.T) {
	onEach(t, func(t *testing.T, b *bundle) {
		b.db.SetMaxOpenConns(8)
		b.replaying(t, b.effect(t))
		const keys = 150
		for n := range keys {
			for m := range 3 {
				b.hold(t, keyed(fmt.Sprintf("e%d.%d", n, m), fmt.Sprint(n)))
			}
		}
		var wg sync.WaitGroup
		for n := range 2 {
			wg.Go(func() {
				o := mended
				for i := n; i < keys; i += 2 {
					o.Filter.Key = fmt.Sprint(i)
					if _, err := b.in.Discard(t.Context(), o); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		deadline := time.Now().Add(8 * time.Second)
		for one[int](t, b.db, `SELECT count(*) FROM seambus_held`) > 0 && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond)
		}
		if n := one[int](t, b.db, `SELECT count(*) FROM seambus_held WHERE state = 'held'`); n != 0 {
			t.Errorf("%d keys are held by nothing", n)
		}
	})
}

// replayOf runs a replay of the group in which every event goes straight to h, until the test ends.
func replayOf(t *testing.T, b *bundle, concurrency int, h func(*message.Message)) {
	t.Helper()
	sub, err := b.in.Replay(transport.SubscriberConfig{Group: group, Concurrency: concurrency})
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
			wg.Go(func() { h(msg); msg.Ack() })
		}
	})
	t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// While every slot is taken the replay must wait for one, not ask the database again and again: here time would stand still.
func TestReplayWaitsForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, calls := newBundle(t, 4), atomic.Int32{}
		for _, k := range []string{"1", "2", "3"} {
			b.hold(t, keyed("e"+k, k))
		}
		if _, err := b.in.Redrive(t.Context(), mended); err != nil {
			t.Fatal(err)
		}
		replayOf(t, b, 1, func(*message.Message) { calls.Add(1); time.Sleep(time.Second) })
		time.Sleep(time.Minute)
		if n := calls.Load(); n != 3 {
			t.Errorf("%d calls, want 3", n)
		}
	})
}

// A handler that takes longer than the lease of its key is not joined by another at the same event.
func TestReplayKeepsItsKeyAsLongAsItTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, calls := newBundle(t, 4), atomic.Int32{}
		b.hold(t, keyed("e1", "k"))
		if _, err := b.in.Redrive(t.Context(), mended); err != nil {
			t.Fatal(err)
		}
		replayOf(t, b, 4, func(*message.Message) { calls.Add(1); time.Sleep(time.Minute) })
		time.Sleep(50 * time.Second)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls at once, want 1", n)
		}
		time.Sleep(time.Minute)
	})
}

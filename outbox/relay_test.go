package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

// perKey returns the ids per key in the order of their first acceptance.
func perKey(all []sent) map[string][]string {
	seen := make(map[string]bool)
	keys := make(map[string][]string)
	for _, s := range all {
		if !seen[s.id] {
			seen[s.id] = true
			keys[s.key] = append(keys[s.key], s.id)
		}
	}
	return keys
}

func wantOrder(t *testing.T, got []string, key string, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("key %s: %d events, want %d", key, len(got), n)
	}
	for i, id := range got {
		if want := fmt.Sprintf("%s-%d", key, i+1); id != want {
			t.Errorf("key %s: event %d is %s, want %s", key, i+1, id, want)
			return
		}
	}
}

func TestOrderPerKeyAndKeysInParallel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var running, most atomic.Int32
		f.onCall = func(ctx context.Context, _ string, _ []*message.Message) error {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(rand.N(20 * time.Millisecond))
			return nil
		}
		box := newBox(t, openDB(t), f, outbox.WithWorkers(10), outbox.WithBatch(10))
		record(t, box, append(keyed("k1", 50), keyed("k2", 50)...)...)
		stop := start(t, t.Context(), box)
		f.await(t, 100)
		check(t, stop())
		keys := perKey(f.all())
		wantOrder(t, keys["k1"], "k1", 50)
		wantOrder(t, keys["k2"], "k2", 50)
		if len(f.all()) != 100 {
			t.Errorf("%d sends, want 100", len(f.all()))
		}
		if most.Load() < 2 {
			t.Error("keys did not go out in parallel")
		}
	})
}

func TestLateCommitWithALowNumberIsNotSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		box := newBox(t, db, f)
		insert := func(seq int, id string) {
			t.Helper()
			_, err := db.Exec(`INSERT INTO seambus_outbox (seq, event_id, topic, type, partition_key, payload)
				VALUES (?, ?, 'notes', 'note.taken', ?, '{}')`, seq, id, id)
			check(t, err)
		}
		insert(20, "b")
		start(t, t.Context(), box)
		f.await(t, 1)
		synctest.Wait()
		insert(10, "a")
		box.Committed()
		f.await(t, 2)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := strings.Join(f.ids(), " "); got != "b a" {
			t.Errorf("sent %q, want each once", got)
		}
	})
}

func TestForeignInsertIsDelivered(t *testing.T) {
	t.Parallel()
	db, f := openDB(t), newFake()
	box := newBox(t, db, f, outbox.WithPoll(10*time.Millisecond))
	start(t, t.Context(), box)
	_, err := db.Exec(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload)
		VALUES ('php-1', 'orders', 'order.placed', '7', '{"orderId":7}')`)
	check(t, err)
	f.await(t, 1)
	got := f.all()[0]
	if got.id != "php-1" || got.topic != "orders" || got.key != "7" || got.payload != `{"orderId":7}` {
		t.Errorf("sent %+v", got)
	}
	for key, want := range map[string]string{event.MetaType: "order.placed", event.MetaSource: "orders", event.MetaSubject: "7"} {
		if got.md[key] != want {
			t.Errorf("%s is %q, want %q", key, got.md[key], want)
		}
	}
	if got.md[event.MetaTime] == "" {
		t.Error("no time")
	}
	eventually(t, "the row is marked", func() bool { return count(t, db, "state = 3 AND shard >= 0 AND created_at > 0") == 1 })
}

func TestBrokenForeignRowIsFailedAndStopsNobody(t *testing.T) {
	t.Parallel()
	db, f := openDB(t), newFake()
	_ = newBox(t, db, f)
	_, err := db.Exec(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload, metadata) VALUES
		('', 'notes', 'x', 'a', '', ''), ('m', 'notes', 'x', 'b', '', 'no json'), ('ok', 'notes', 'x', 'c', x'00ff', '')`)
	check(t, err)
	start(t, t.Context(), newBox(t, db, f))
	f.await(t, 1)
	eventually(t, "both are failed", func() bool { return count(t, db, "state = 2 AND error_class = 'contract' AND last_error <> ''") == 2 })
	if got := f.all(); len(got) != 1 || got[0].payload != "\x00\xff" {
		t.Errorf("sent %+v", got)
	}
}

func TestFiveRelaysSendEachRowOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		f.onCall = func(context.Context, string, []*message.Message) error {
			time.Sleep(time.Millisecond)
			return nil
		}
		box := newBox(t, db, f)
		for k := range 20 {
			record(t, box, keyed(fmt.Sprint("k", k), 5)...)
		}
		for range 5 {
			start(t, t.Context(), newBox(t, db, f, outbox.WithBatch(3), outbox.WithPoll(200*time.Millisecond)))
		}
		f.await(t, 100)
		time.Sleep(30 * time.Second) // leases spread; nothing may go out again
		synctest.Wait()
		if n := len(f.all()); n != 100 {
			t.Errorf("%d sends, want 100", n)
		}
		var owners int
		check(t, db.QueryRow("SELECT count(DISTINCT owner) FROM seambus_outbox_leases WHERE owner <> ''").Scan(&owners))
		if owners != 5 {
			t.Errorf("ranges are with %d relays, want 5", owners)
		}
		for k, ids := range perKey(f.all()) {
			wantOrder(t, ids, k, 5)
		}
	})
}

func TestRowsOfADeadRelayGoOutAfterItsLease(t *testing.T) {
	t.Parallel()
	for _, p := range []crash.Point{crash.Claimed, crash.Sent, crash.Marked} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, f := openDB(t), newFake()
				const ttl = 10 * time.Second
				first := newBox(t, db, f, outbox.WithBatch(10), outbox.WithWorkers(2))
				for k := range 10 {
					record(t, first, keyed(fmt.Sprint("k", k), 5)...)
				}
				dead := fmt.Errorf("killed")
				err := first.Run(crash.With(t.Context(), func(_ context.Context, at crash.Point) error {
					if at == p {
						return dead
					}
					return nil
				}))
				if err != dead {
					t.Fatalf("Run returned %v, want the crash", err)
				}
				before := len(f.all())
				began := time.Now()
				start(t, t.Context(), newBox(t, db, f))
				time.Sleep(ttl - time.Second)
				synctest.Wait()
				if n := len(f.all()); n != before {
					t.Errorf("%d rows went out while the lease was good", n-before)
				}
				eventually(t, "all are published", func() bool { return count(t, db, "state = 3") == 50 })
				if d := time.Since(began); d > ttl+time.Second {
					t.Errorf("took %v, want the lease's %v and a poll", d, ttl)
				}
				if dup := len(f.all()) - 50; dup > before {
					t.Errorf("%d duplicates of %d rows in flight", dup, before)
				}
				for k, ids := range perKey(f.all()) {
					wantOrder(t, ids, k, 5)
				}
			})
		})
	}
}

func TestMarkIsRefusedOnceTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		release := make(chan struct{})
		var calls atomic.Int32
		f.onCall = func(context.Context, string, []*message.Message) error {
			if calls.Add(1) == 1 {
				<-release
			}
			return nil
		}
		box := newBox(t, db, f)
		record(t, box, keyed("a", 1)...)
		start(t, t.Context(), box)
		synctest.Wait()
		// The relay is alive, so it keeps its lease for as long as the call takes.
		second := newBox(t, db, f)
		start(t, t.Context(), second)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := calls.Load(); n != 1 {
			t.Fatalf("%d calls while the first relay holds its lease, want 1", n)
		}
		_, err := db.Exec("UPDATE seambus_outbox_leases SET owner = 'other', token = token + 1, expires_at = expires_at + 3600000000")
		check(t, err)
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(t, db, "state = 0"); n != 1 {
			t.Error("a relay that lost its lease marked the row")
		}
		if n := box.Stats().Refused; n != 1 {
			t.Errorf("%d marks refused, want 1", n)
		}
	})
}

func TestIdleRelayCostsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		box := newBox(t, db, f)
		stop := start(t, t.Context(), box)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		record(t, box, note{Key: "a"})
		began := time.Now()
		f.await(t, 1)
		if d := time.Since(began); d > 0 {
			t.Errorf("took %v after a long sleep, want an immediate wake", d)
		}
		check(t, stop())
	})
}

func TestRunTwiceIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box := newBox(t, openDB(t), newFake())
		start(t, t.Context(), box)
		synctest.Wait()
		if err := box.Run(t.Context()); err == nil {
			t.Error("no error")
		}
	})
}

func TestRetentionZeroDeletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		box := newBox(t, db, f, outbox.WithRetention(0))
		record(t, box, keyed("a", 100)...)
		start(t, t.Context(), box)
		f.await(t, 100)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(t, db, "true"); n != 1 {
			t.Errorf("%d rows, want the newest alone", n)
		}
		record(t, box, note{Key: "a", N: 101, ID: "a-101"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := count(t, db, "seq > 100"); n != 1 || count(t, db, "true") != 1 {
			t.Errorf("%d rows after the newest, want 1 with a number of its own", n)
		}
	})
}

func TestSweepDeletesOldPublishedRowsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		box := newBox(t, db, f, outbox.WithRetention(time.Hour))
		record(t, box, keyed("a", 2500)...)
		start(t, t.Context(), box)
		f.await(t, 2500)
		time.Sleep(30 * time.Minute)
		record(t, box, keyed("b", 10)...)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := count(t, db, "state = 3"); n != 2510 {
			t.Errorf("%d published rows before the hour, want all", n)
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if n := count(t, db, "true"); n != 10 {
			t.Errorf("%d rows after the hour, want 10", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := count(t, db, "true"); n != 1 {
			t.Errorf("%d rows in the end, want the newest", n)
		}
	})
}

func TestNotDurableTransportMarksAfterTheLastGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t)
		broker := memory.New()
		defer broker.Close()
		box := newBox(t, db, broker)
		sub, err := broker.Subscriber(subscriber("g"))
		check(t, err)
		msgs, err := sub.Subscribe(t.Context(), "notes")
		check(t, err)
		stop := start(t, t.Context(), box)
		record(t, box, append(keyed("slow", 2), keyed("fast", 2)...)...)
		held := make(map[string]*message.Message)
		for range 2 {
			msg := <-msgs
			held[msg.UUID] = msg
		}
		held["fast-1"].Ack()
		(<-msgs).Ack()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(t, db, "state = 3 AND partition_key = 'fast'"); n != 2 {
			t.Errorf("%d rows of the fast key are marked, want 2", n)
		}
		if n := count(t, db, "state = 3 AND partition_key = 'slow'"); n != 0 {
			t.Errorf("%d rows were marked before their group had acknowledged", n)
		}
		held["slow-1"].Ack()
		(<-msgs).Ack()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(t, db, "state = 3"); n != 4 {
			t.Errorf("%d rows are marked, want 4", n)
		}
		check(t, stop())
		check(t, sub.Close())
	})
}

package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// These tests run on every database, in real time. Those of SQLite alone have virtual time and are more searching.

const quick = 10 * time.Millisecond

func TestEveryDatabaseDelivers(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f)
		stop := start(t, t.Context(), box)
		var payloads []string
		for i := range 300 {
			pad := string(rune('a'+i%26)) + "\x00ü'\\\""
			payloads = append(payloads, pad)
			record(t, box, note{Key: fmt.Sprint("k", i%7), N: i, ID: fmt.Sprint("id", i), Pad: pad})
		}
		f.await(t, 300)
		check(t, stop())
		if n := count(t, db, "state = 3 AND attempts = 1 AND published_at IS NOT NULL"); n != 300 {
			t.Errorf("%d rows are marked, want 300", n)
		}
		if len(f.all()) != 300 || len(payloads) != 300 {
			t.Errorf("%d sends, want 300", len(f.all()))
		}
	})
}

func TestEveryDatabaseKeepsOrderPerKeyAndRunsKeysInParallel(t *testing.T) { // C03
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		var running, most atomic.Int32
		f.onCall = func(context.Context, string, []*message.Message) error {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(rand.N(20 * time.Millisecond))
			return nil
		}
		box := newBox(t, db, f, outbox.WithWorkers(10), outbox.WithBatch(10))
		record(t, box, append(keyed("k1", 50), keyed("k2", 50)...)...)
		stop := start(t, t.Context(), box)
		f.await(t, 100)
		check(t, stop())
		keys := perKey(f.all())
		wantOrder(t, keys["k1"], "k1", 50)
		wantOrder(t, keys["k2"], "k2", 50)
		if len(f.all()) != 100 || most.Load() < 2 {
			t.Errorf("%d sends, want 100; %d calls at once, want 2 or more", len(f.all()), most.Load())
		}
	})
}

func TestRolledBackRecordLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f)
		no := errors.New("no")
		err := box.InTx(t.Context(), func(tx *sql.Tx) error {
			check(t, box.Record(t.Context(), tx, notes, keyed("a", 3)...))
			return no
		})
		if !errors.Is(err, no) || count(t, db, "1 = 1") != 0 {
			t.Fatalf("%v, %d rows; want the error and none", err, count(t, db, "1 = 1"))
		}
		record(t, box, keyed("a", 3)...) // the same ids
		start(t, t.Context(), box)
		f.await(t, 3)
		wantOrder(t, perKey(f.all())["a"], "a", 3)
	})
}

func TestSameIDTwiceIsOneEventEverywhere(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f)
		record(t, box, note{Key: "a", N: 1, ID: "x"}, note{Key: "a", N: 2, ID: "x"})
		record(t, box, note{Key: "a", N: 3, ID: "x"}, note{Key: "a", N: 4, ID: "y"})
		record(t, box, note{Key: "a", N: 5, ID: "X"}, note{Key: "a", N: 6, ID: "x "}) // others, to the byte
		start(t, t.Context(), box)
		f.await(t, 4)
		if got := strings.Join(f.ids(), "|"); got != "x|y|X|x " {
			t.Errorf("sent %q", got)
		}
		if got := box.Stats().Recorded; got != 4 {
			t.Errorf("recorded %d, want 4", got)
		}
	})
}

func TestPlainInsertIsDelivered(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		start(t, t.Context(), newBox(t, db, f, outbox.WithPoll(quick)))
		_, err := db.Exec(`INSERT INTO seambus_outbox (event_id, topic, type, partition_key, payload)
			VALUES ('php-1', 'orders', 'order.placed', '7', '{"orderId":7}')`)
		check(t, err)
		f.await(t, 1)
		got := f.all()[0]
		if got.id != "php-1" || got.topic != "orders" || got.key != "7" || got.payload != `{"orderId":7}` {
			t.Errorf("sent %+v", got)
		}
		eventually(t, "the row is marked", func() bool { return count(t, db, "state = 3 AND shard >= 0 AND source = 'orders'") == 1 })
	})
}

func TestLateCommitWithALowNumberIsSent(t *testing.T) { // C01
	t.Parallel()
	eachServer(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f)
		late := begin(t, db)
		check(t, box.Record(t.Context(), late, notes, note{Key: "a", ID: "a"}))
		record(t, box, note{Key: "b", ID: "b"})
		start(t, t.Context(), box)
		f.await(t, 1)
		eventually(t, "the later row is marked", func() bool { return count(t, db, "state = 3") == 1 })
		check(t, late.Commit())
		f.await(t, 2)
		eventually(t, "both are marked", func() bool { return count(t, db, "state = 3") == 2 })
		if got := strings.Join(f.ids(), " "); got != "b a" {
			t.Errorf("sent %q, want each once", got)
		}
	})
}

func TestFailureHoldsItsKeyAloneAndHeals(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		var healed atomic.Bool
		f.onOne = func(msg *message.Message) error {
			if transport.Key(msg) == "a" && !healed.Load() {
				return errors.New("not now\n\x00")
			}
			return nil
		}
		opts := []outbox.Option{outbox.WithBatch(50), outbox.WithBackoff(quick, 50*time.Millisecond)}
		box := newBox(t, db, f, opts...)
		record(t, box, keyed("a", 300)...)
		stop := start(t, t.Context(), box)
		eventually(t, "the key's rows leave the head", func() bool { return count(t, db, "state = 1") == 300 })
		record(t, box, keyed("b", 3)...)
		f.await(t, 3)
		wantOrder(t, perKey(f.all())["b"], "b", 3)
		eventually(t, "the first row has tried twice", func() bool {
			return count(t, db, "event_id = 'a-1' AND attempts > 1 AND last_error = 'not now' AND error_class <> ''") == 1
		})
		if n := count(t, db, "partition_key = 'a' AND attempts > 0"); n != 1 {
			t.Errorf("%d rows of the key spent attempts, want the first alone", n)
		}
		check(t, stop())
		start(t, t.Context(), newBox(t, db, f, opts...)) // it learns what is blocked
		healed.Store(true)
		f.await(t, 303)
		wantOrder(t, perKey(f.all())["a"], "a", 300)
		eventually(t, "all are marked", func() bool { return count(t, db, "state = 3 AND last_error = ''") == 303 })
		if n := len(f.all()); n != 303 {
			t.Errorf("%d sends of 303 rows: no relay died", n)
		}
	})
}

func TestKeylessRowsFailAlone(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		var tries atomic.Int32
		f.onOne = func(msg *message.Message) error {
			if strings.HasPrefix(msg.UUID, "bad") && tries.Add(1) < 8 {
				return errors.New("not now")
			}
			return nil
		}
		box := newBox(t, db, f, outbox.WithBackoff(quick, 50*time.Millisecond))
		record(t, box, note{ID: "bad1"}, note{ID: "x"}, note{ID: "bad2"}, note{ID: "y"})
		stop := start(t, t.Context(), box)
		f.await(t, 2)
		check(t, stop())
		start(t, t.Context(), box)
		f.await(t, 4)
		eventually(t, "all are marked", func() bool { return count(t, db, "state = 3") == 4 })
	})
}

func TestTooLargeRowIsFailedAndOthersPass(t *testing.T) { // C08
	t.Parallel()
	for _, policy := range []outbox.FailurePolicy{outbox.HoldKey, outbox.PassKey} {
		t.Run(fmt.Sprint("policy=", policy), func(t *testing.T) {
			t.Parallel()
			eachDialect(t, func(t *testing.T, db *sql.DB) {
				f := newFake()
				loose := newBox(t, db, newFake()) // recorded before the limit was there
				record(t, loose, note{Key: "k1", ID: "1"}, note{Key: "k2", ID: "2", Pad: strings.Repeat("x", 2000)}, note{Key: "k3", ID: "3"},
					note{Key: "k2", ID: "4"})
				f.onOne = transport.Limits{MessageBytes: 1000}.Check
				box := newBox(t, db, f, outbox.WithFailurePolicy(policy))
				start(t, t.Context(), box)
				eventually(t, "the row is failed after one attempt", func() bool {
					return count(t, db, "event_id = '2' AND state = 2 AND attempts = 1 AND error_class = 'permanent' AND last_error LIKE '%limit%'") == 1
				})
				want := outbox.Depth{Failed: 1}
				if policy == outbox.HoldKey {
					want.Held = 1
				}
				eventually(t, fmt.Sprintf("the depth is %+v", want), func() bool {
					d, err := box.Depth(t.Context())
					check(t, err)
					return d == want
				})
				if age, err := box.Age(t.Context()); err != nil || (age > 0) != (policy == outbox.HoldKey) {
					t.Errorf("age %v, %v", age, err)
				}
			})
		})
	}
}

func TestFailedRowMadePendingAgainOpensItsKeyEverywhere(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		var healed atomic.Bool
		f.onOne = func(msg *message.Message) error {
			if msg.UUID == "a-2" && !healed.Load() {
				return transport.ErrRefused
			}
			return nil
		}
		box := newBox(t, db, f)
		record(t, box, keyed("a", 5)...)
		start(t, t.Context(), box)
		eventually(t, "the rest is held", func() bool { return count(t, db, "state = 1") == 3 && count(t, db, "state = 2") == 1 })
		healed.Store(true)
		_, err := db.Exec("UPDATE seambus_outbox SET state = 0 WHERE state = 2")
		check(t, err)
		box.Committed()
		f.await(t, 5)
		wantOrder(t, perKey(f.all())["a"], "a", 5)
	})
}

func TestFiveRelaysSendOnceAndOneDies(t *testing.T) { // C04, C07
	t.Parallel()
	eachServer(t, func(t *testing.T, db *sql.DB) {
		const ttl = time.Second
		f := newFake()
		f.onCall = func(context.Context, string, []*message.Message) error {
			time.Sleep(time.Millisecond)
			return nil
		}
		box := newBox(t, db, f)
		for k := range 20 {
			record(t, box, keyed(fmt.Sprint("k", k), 5)...)
		}
		var stops []func() error
		for range 5 {
			stops = append(stops, start(t, t.Context(), newBox(t, db, f, outbox.WithBatch(3), outbox.WithLeaseTTL(ttl))))
		}
		f.await(t, 100)
		eventually(t, "ranges are with five relays", func() bool {
			var owners int
			check(t, db.QueryRow("SELECT count(DISTINCT owner) FROM seambus_outbox_leases WHERE owner <> ''").Scan(&owners))
			return owners == 5
		})
		eventually(t, "all are marked", func() bool { return count(t, db, "state = 3") == 100 })
		if n := len(f.all()); n != 100 {
			t.Errorf("%d sends, want 100", n)
		}
		for _, stop := range stops {
			check(t, stop())
		}
	})
}

func TestRowsOfADeadRelayGoOutAfterItsLeaseEverywhere(t *testing.T) { // C07
	t.Parallel()
	for _, p := range []crash.Point{crash.Claimed, crash.Sent, crash.Marked} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db *sql.DB) {
				const ttl = 1500 * time.Millisecond
				f := newFake()
				first := newBox(t, db, f, outbox.WithBatch(10), outbox.WithWorkers(2), outbox.WithLeaseTTL(ttl))
				for k := range 10 {
					record(t, first, keyed(fmt.Sprint("k", k), 5)...)
				}
				dead := errors.New("killed")
				err := first.Run(crash.With(t.Context(), func(_ context.Context, at crash.Point) error {
					if at == p {
						return dead
					}
					return nil
				}))
				if !errors.Is(err, dead) {
					t.Fatalf("Run returned %v, want the crash", err)
				}
				began, before := time.Now(), len(f.all())
				start(t, t.Context(), newBox(t, db, f, outbox.WithLeaseTTL(ttl)))
				eventually(t, "all are published", func() bool { return count(t, db, "state = 3") == 50 })
				if d := time.Since(began); d > ttl+time.Second {
					t.Errorf("took %v, want the lease's %v, a poll, and the work", d, ttl)
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

func TestMarkIsRefusedOnceTheLeaseIsLostEverywhere(t *testing.T) { // C06
	t.Parallel()
	eachServer(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		called, release := make(chan struct{}), make(chan struct{})
		var calls atomic.Int32
		f.onCall = func(context.Context, string, []*message.Message) error {
			if calls.Add(1) == 1 {
				close(called)
				<-release
			}
			return nil
		}
		box := newBox(t, db, f, outbox.WithLeaseTTL(time.Second))
		record(t, box, keyed("a", 1)...)
		start(t, t.Context(), box)
		<-called
		// The relay is alive, so it keeps its lease for as long as the call takes.
		second := newBox(t, db, f, outbox.WithLeaseTTL(time.Second))
		start(t, t.Context(), second)
		eventually(t, "the second relay lives", func() bool {
			var n int
			check(t, db.QueryRow("SELECT count(*) FROM seambus_outbox_relays").Scan(&n))
			return n == 2
		})
		time.Sleep(1500 * time.Millisecond) // more than a lease: what must not happen needs time not to
		if n := calls.Load(); n != 1 {
			t.Fatalf("%d calls while the first relay holds its lease, want 1", n)
		}
		_, err := db.Exec("UPDATE seambus_outbox_leases SET owner = 'other', token = token + 100, expires_at = '2100-01-01'")
		check(t, err)
		close(release)
		eventually(t, "the mark is refused", func() bool { return box.Stats().Refused == 1 })
		if n := count(t, db, "state = 0"); n != 1 {
			t.Error("a relay that lost its lease marked the row")
		}
	})
}

func TestRetentionAndSweepEverywhere(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f, outbox.WithRetention(0))
		record(t, box, keyed("a", 1000)...)
		stop := start(t, t.Context(), box)
		f.await(t, 1000)
		eventually(t, "published rows are gone", func() bool { return count(t, db, "1 = 1") == 0 })
		check(t, stop())

		box = newBox(t, db, f, outbox.WithRetention(time.Hour))
		record(t, box, keyed("b", 2500)...)
		stop = start(t, t.Context(), box)
		f.await(t, 3500)
		eventually(t, "rows are marked", func() bool { return count(t, db, "state = 3") == 2500 })
		aged(t, db, 2400)
		check(t, stop())
		start(t, t.Context(), newBox(t, db, f, outbox.WithRetention(time.Hour))) // a relay sweeps as it starts
		box.Committed()
		eventually(t, "old rows are deleted", func() bool { return count(t, db, "1 = 1") == 100 })
	})
}

// aged makes the first n published rows old.
func aged(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	_, err := db.Exec(fmt.Sprintf(`UPDATE seambus_outbox SET published_at = '2020-01-01' WHERE event_id LIKE 'b-%%' AND
		seq < (SELECT m FROM (SELECT min(seq) + %d AS m FROM seambus_outbox WHERE event_id LIKE 'b-%%') AS x)`, n))
	check(t, err)
}

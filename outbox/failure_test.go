package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

func subscriber(group string) transport.SubscriberConfig {
	return transport.SubscriberConfig{Group: group}
}

func TestTooLargeRowIsFailedAfterOneAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		loose := newBox(t, db, newFake()) // recorded before the limit was there
		record(t, loose, note{Key: "k1", ID: "1"}, note{Key: "k2", ID: "2", Pad: strings.Repeat("x", 2000)}, note{Key: "k3", ID: "3"})
		f.onOne = transport.Limits{MessageBytes: 1000}.Check
		box := newBox(t, db, f)
		start(t, t.Context(), box)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := strings.Join(f.ids(), " "); got != "1 3" {
			t.Errorf("sent %q, want 1 3", got)
		}
		if n := count(t, db, "event_id = '2' AND state = 2 AND attempts = 1 AND error_class = 'permanent' AND last_error LIKE '%limit%'"); n != 1 {
			t.Error("the row is not failed after one attempt with its reason")
		}
		if s := box.Stats(); s.Failed != 1 || s.Failures != 1 {
			t.Errorf("stats %+v", s)
		}
		if age, err := box.Age(t.Context()); err != nil || age != 0 {
			t.Errorf("age %v, %v; failed rows must not count", age, err)
		}
	})
}

func TestFailurePolicy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy outbox.FailurePolicy
		want   string
		held   int
	}{{outbox.HoldKey, "a-1 b-1", 2}, {outbox.PassKey, "a-1 a-3 a-4 b-1", 0}} {
		t.Run(fmt.Sprint(c.policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, f := openDB(t), newFake()
				f.onOne = func(msg *message.Message) error {
					if msg.UUID == "a-2" {
						return fmt.Errorf("no: %w", transport.ErrRefused)
					}
					return nil
				}
				opts := []outbox.Option{outbox.WithFailurePolicy(c.policy), outbox.WithWorkers(1)}
				box := newBox(t, db, f, opts...)
				record(t, box, keyed("a", 3)...)
				stop := start(t, t.Context(), box)
				time.Sleep(time.Minute)
				check(t, stop())
				start(t, t.Context(), newBox(t, db, f, opts...)) // what is blocked stays blocked
				record(t, box, note{Key: "a", N: 4, ID: "a-4"})
				time.Sleep(time.Hour)
				record(t, box, keyed("b", 1)...)
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := strings.Join(f.ids(), " "); got != c.want {
					t.Errorf("sent %q, want %q", got, c.want)
				}
				d, err := box.Depth(t.Context())
				check(t, err)
				if d != (outbox.Depth{Held: int64(c.held), Failed: 1}) {
					t.Errorf("depth %+v, want %d held and 1 failed", d, c.held)
				}
				if age, err := box.Age(t.Context()); err != nil || (age > 0) != (c.held > 0) {
					t.Errorf("age %v, %v", age, err)
				}
			})
		})
	}
}

func TestFailedRowMadePendingAgainOpensItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
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
		time.Sleep(time.Minute)
		healed.Store(true)
		_, err := db.Exec("UPDATE seambus_outbox SET state = 0 WHERE state = 2")
		check(t, err)
		box.Committed()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantOrder(t, perKey(f.all())["a"], "a", 5)
	})
}

func TestTransientFailureHoldsItsKeyAloneAcrossARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		var healed atomic.Bool
		f.onOne = func(msg *message.Message) error {
			if transport.Key(msg) == "a" && !healed.Load() {
				return errors.New("not now\n\x00")
			}
			return nil
		}
		box := newBox(t, db, f, outbox.WithBatch(50))
		record(t, box, keyed("a", 300)...)
		stop := start(t, t.Context(), box)
		time.Sleep(10 * time.Second)
		record(t, box, keyed("b", 3)...)
		record(t, box, note{Key: "a", N: 301, ID: "a-301"})
		synctest.Wait()
		time.Sleep(time.Second)
		wantOrder(t, perKey(f.all())["b"], "b", 3)
		if n := count(t, db, "state = 0"); n != 0 {
			t.Errorf("%d rows of the failing key are left in the head", n)
		}
		if n := count(t, db, "event_id = 'a-1' AND attempts BETWEEN 2 AND 8 AND last_error = 'not now'"); n != 1 {
			t.Error("the failing row has not its attempts and cleaned text")
		}
		if n := count(t, db, "attempts > 0 AND partition_key = 'a'"); n != 1 {
			t.Errorf("%d rows of the key spent attempts, want the first alone", n)
		}
		check(t, stop())
		record(t, box, note{Key: "a", N: 302, ID: "a-302"})
		again := newBox(t, db, f, outbox.WithBatch(50))
		start(t, t.Context(), again)
		record(t, again, note{Key: "a", N: 303, ID: "a-303"})
		synctest.Wait()
		healed.Store(true)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		wantOrder(t, perKey(f.all())["a"], "a", 303)
		if n := count(t, db, "state = 3"); n != 306 {
			t.Errorf("%d rows are marked, want 306", n)
		}
		record(t, again, note{Key: "a", N: 304, ID: "a-304"})
		f.await(t, 307)
	})
}

func TestRowsWithoutAKeyFailAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, f := openDB(t), newFake()
		var tries atomic.Int32
		f.onOne = func(msg *message.Message) error {
			if strings.HasPrefix(msg.UUID, "bad") && tries.Add(1) < 8 {
				return errors.New("not now")
			}
			return nil
		}
		box := newBox(t, db, f)
		record(t, box, note{ID: "bad1"}, note{ID: "x"}, note{ID: "bad2"}, note{ID: "y"})
		stop := start(t, t.Context(), box)
		f.await(t, 2)
		time.Sleep(700 * time.Millisecond)
		check(t, stop())
		start(t, t.Context(), box)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := count(t, db, "state = 3"); n != 4 || len(f.all()) != 4 {
			t.Errorf("%d marked, %d sent, want 4", n, len(f.all()))
		}
	})
}

func TestOutagePausesAndSpendsNoAttempts(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]error{
		"whole call":  errors.New("connection refused"),
		"unavailable": fmt.Errorf("throttled: %w", transport.ErrUnavailable),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, f := openDB(t), newFake()
				var down atomic.Bool
				down.Store(true)
				if name == "unavailable" {
					f.onOne = func(*message.Message) error {
						if down.Load() {
							return outage
						}
						return nil
					}
				} else {
					f.onCall = func(context.Context, string, []*message.Message) error {
						if down.Load() {
							return outage
						}
						return nil
					}
				}
				box := newBox(t, db, f)
				for k := range 50 {
					record(t, box, keyed(fmt.Sprint("k", k), 4)...)
				}
				start(t, t.Context(), box)
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := count(t, db, "state = 0 AND attempts = 0"); n != 200 {
					t.Errorf("%d rows are pending without an attempt, want 200", n)
				}
				if !box.Stats().Paused {
					t.Error("the relay does not say that it pauses")
				}
				f.mu.Lock()
				calls := f.calls
				f.mu.Unlock()
				if calls > 3600/5+50 {
					t.Errorf("%d calls in an hour, want few probes", calls)
				}
				if age, err := box.Age(t.Context()); err != nil || age < time.Hour {
					t.Errorf("age %v, %v; want an hour", age, err)
				}
				down.Store(false)
				time.Sleep(11 * time.Second)
				synctest.Wait()
				for k, ids := range perKey(f.all()) {
					wantOrder(t, ids, k, 4)
				}
				if n := count(t, db, "state = 3"); n != 200 || len(f.all()) != 200 || box.Stats().Paused {
					t.Errorf("%d marked, %d sent, stats %+v", n, len(f.all()), box.Stats())
				}
			})
		})
	}
}

func TestAgeIsThatOfTheOldestRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box := newBox(t, openDB(t), newFake())
		record(t, box, keyed("a", 1)...)
		time.Sleep(time.Minute)
		record(t, box, keyed("b", 1)...)
		if age, err := box.Age(t.Context()); err != nil || age != time.Minute {
			t.Errorf("age %v, %v; want a minute", age, err)
		}
	})
}

func TestTwoOutboxesInOneDatabase(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	fa, fb := newFake(), newFake()
	a := newBox(t, db, fa, outbox.WithTablePrefix("shop_"))
	b := newBox(t, db, fb, outbox.WithTablePrefix("mail_"))
	start(t, t.Context(), a)
	start(t, t.Context(), b)
	check(t, a.InTx(t.Context(), func(tx *sql.Tx) error {
		return errors.Join(a.Record(t.Context(), tx, notes, keyed("a", 1)...), b.Record(t.Context(), tx, notes, keyed("b", 1)...))
	}))
	fa.await(t, 1)
	fb.await(t, 1)
	if fa.ids()[0] != "a-1" || fb.ids()[0] != "b-1" {
		t.Errorf("got %v and %v", fa.ids(), fb.ids())
	}
}

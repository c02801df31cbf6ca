package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

// waiting is a row that was sent an hour ago and that its group has not acknowledged since.
func waiting(t *testing.T, relays int) (box *outbox.Outbox, msgs <-chan *message.Message, first *message.Message) {
	t.Helper()
	db, broker := openDB(t), memory.New()
	t.Cleanup(func() { check(t, broker.Close()) })
	sub, err := broker.Subscriber(subscriber("g"))
	check(t, err)
	msgs, err = sub.Subscribe(t.Context(), "notes")
	check(t, err)
	box = newBox(t, db, broker)
	start(t, t.Context(), box)
	for range relays - 1 {
		start(t, t.Context(), newBox(t, db, broker))
	}
	time.Sleep(time.Minute)
	record(t, box, keyed("a", 1)...)
	first = <-msgs
	time.Sleep(time.Hour)
	synctest.Wait()
	return box, msgs, first
}

// A row that waits for its group for hours costs no renewals: the lease runs out. Nobody else came, so the row is not sent
// again when another row wakes the relay, and its mark holds.
func TestRelayThatOnlyWaitsForGroupsLetsItsLeaseRunOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box, msgs, first := waiting(t, 1)
		began := time.Now()
		record(t, box, keyed("b", 1)...)
		second := <-msgs
		if took := time.Since(began); second.UUID != "b-1" || took > time.Second {
			t.Errorf("%s came after %v, want b-1 at once", second.UUID, took)
		}
		time.Sleep(time.Hour)
		first.Ack()
		second.Ack()
		time.Sleep(time.Second)
		synctest.Wait()
		s := box.Stats()
		if d, err := box.Depth(t.Context()); err != nil || d.Pending != 0 || s.Published != 2 || s.Refused != 0 || s.Attempts != 2 {
			t.Errorf("%+v, %+v, %v; want both rows sent once and marked", d, s, err)
		}
	})
}

func TestRelayThatOnlyWaitsIsIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, broker := openDB(t), memory.New()
		defer broker.Close()
		sub, err := broker.Subscriber(subscriber("g"))
		check(t, err)
		msgs, err := sub.Subscribe(t.Context(), "notes")
		check(t, err)
		box := newBox(t, db, broker)
		start(t, t.Context(), box)
		record(t, box, keyed("a", 1)...)
		msg := <-msgs
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		expires := func() (at int64) {
			check(t, db.QueryRow("SELECT max(expires_at) FROM seambus_outbox_leases").Scan(&at))
			return at
		}
		before := expires()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if after := expires(); after != before {
			t.Errorf("the lease was renewed for %v", time.Duration(after-before)*time.Microsecond)
		}
		msg.Ack()
		time.Sleep(time.Second)
		if n := count(t, db, "state = 3"); n != 1 {
			t.Error("the row was not marked")
		}
	})
}

// Where another relay lives, the one whose rows wait keeps its lease, and the other does not send them.
func TestRelayThatWaitsBesideAnotherKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box, msgs, first := waiting(t, 2)
		select {
		case again := <-msgs:
			t.Fatalf("%s was sent again", again.UUID)
		default:
		}
		first.Ack()
		time.Sleep(time.Second)
		synctest.Wait()
		if d, err := box.Depth(t.Context()); err != nil || d.Pending != 0 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// A relay that comes while the lease is out takes the rows that wait, as it would a dead relay's. What the first one has to
// say about them is refused then.
func TestRelayThatComesTakesTheRowsThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, broker := openDB(t), memory.New()
		defer broker.Close()
		sub, err := broker.Subscriber(subscriber("g"))
		check(t, err)
		msgs, err := sub.Subscribe(t.Context(), "notes")
		check(t, err)
		old := newBox(t, db, broker)
		start(t, t.Context(), old)
		record(t, old, keyed("a", 1)...)
		first := <-msgs
		time.Sleep(time.Hour)
		fresh := newBox(t, db, broker)
		start(t, t.Context(), fresh)
		time.Sleep(time.Second)
		first.Ack()
		again := <-msgs
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := count(t, db, "state = 3"); n != 0 || old.Stats().Refused != 1 {
			t.Errorf("the relay that lost its lease marked %d rows, refused %d", n, old.Stats().Refused)
		}
		again.Ack()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(t, db, "state = 3"); n != 1 || fresh.Stats().Published != 1 {
			t.Errorf("%d rows marked, the new relay's %d", n, fresh.Stats().Published)
		}
	})
}

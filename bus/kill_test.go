package bus_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport/memory"
)

const (
	victimDriver = "SEAMBUS_TEST_VICTIM_DRIVER"
	victimDSN    = "SEAMBUS_TEST_VICTIM_DSN"
	victimKeys   = 4
	victimEach   = 15
)

// victim is a service that records, relays and handles until it is killed. Which events it cannot handle is written in the
// database, for an operator to mend.
func victim(driver, dsn string) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	tr, topic := memory.New(), event.NewTopic("orders", placed{}, delivered{})
	box, err := outbox.New(db, tr, outbox.WithLeaseTTL(300*time.Millisecond))
	if err != nil {
		return err
	}
	in, err := inbox.New(db)
	if err != nil {
		return err
	}
	b, err := bus.New(tr, bus.WithOutbox(box), bus.WithInbox(in), bus.WithOnDead(bus.HoldKey), bus.WithDurableAttempts(),
		bus.WithRetry(middleware.RetryPolicy{InitialDelay: 5 * time.Millisecond, MaxAttempts: 100, MaxDelay: 50 * time.Millisecond}))
	if err != nil {
		return err
	}
	bus.Handle(b, topic, "fulfillment", func(ctx context.Context, e placed) error {
		if err := insertEffect(ctx, e); err != nil {
			return err
		}
		var bad int
		err := inbox.Tx(ctx).QueryRowContext(ctx, fmt.Sprintf(`SELECT count(*) FROM bad WHERE name = '%s'`, name(e))).Scan(&bad)
		switch {
		case err != nil:
			return err
		case bad > 0:
			return bus.Permanent(errNoStock)
		case rand.IntN(5) == 0:
			return errNoStock
		}
		return nil
	}, bus.Ignore[delivered]())
	failed := make(chan error, 1)
	go func() { failed <- b.Run(context.Background()) }()
	<-b.Ready()
	for {
		if err := recordNext(db, box, topic); err != nil {
			return err
		}
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Duration(rand.IntN(15)) * time.Millisecond):
		}
	}
}

// recordNext records the next event of a key, as far as there is one.
func recordNext(db *sql.DB, box *outbox.Outbox, topic *event.Topic) error {
	k := rand.IntN(victimKeys)
	return box.InTx(context.Background(), func(tx *sql.Tx) error {
		var n uint64
		row := tx.QueryRow(fmt.Sprintf(`SELECT count(*) FROM seambus_outbox WHERE partition_key = '%d'`, k))
		if err := row.Scan(&n); err != nil || n == victimEach {
			return err
		}
		return box.Record(context.Background(), tx, topic, placedEvent(int64(k), n+1))
	})
}

// A service that is killed again and again, by no means at a good moment, while an operator decides about its dead letters: of
// every key what is applied is what was recorded, in its order, once each.
func TestHeldKeysSurviveKills(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills for seconds")
	}
	t.Parallel()
	dialecttest.Each(t, func(t *testing.T, d dialecttest.Database) {
		db := d.Migrated(t, dialect.SetOutbox, dialect.SetInbox)
		withEffects(t, db)
		o := &ordeal{flow: &flow{db: db}, dice: newDice(rand.Uint64()), onDead: bus.HoldKey, discarded: make(map[string]bool)}
		if _, err := db.Exec(`CREATE TABLE bad (name VARCHAR(64) PRIMARY KEY)`); err != nil {
			t.Fatal(err)
		}
		for k := range int64(victimKeys) {
			for n := range uint64(victimEach) {
				if o.chance(15) {
					mustExecOn(t, db, fmt.Sprintf(`INSERT INTO bad VALUES ('%s')`, name(placedEvent(k, n+1))))
				}
			}
		}
		var err error
		if o.in, err = inbox.New(db); err != nil {
			t.Fatal(err)
		}
		kills := 0
		for deadline := time.Now().Add(time.Minute); !done(t, o); kills++ {
			if time.Now().After(deadline) {
				t.Fatalf("not done after %d kills", kills)
			}
			lifetime := time.Duration(100+o.n(500)) * time.Millisecond
			if kills > 8 {
				lifetime = 5 * time.Second // let it come to an end
			}
			liveAndDie(t, o, d, lifetime)
		}
		t.Logf("%d kills, %d discarded", kills, len(o.discarded))
		for k := range o.next {
			o.next[k] = victimEach
		}
		o.check(t)
	})
}

func mustExecOn(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
}

// done reports whether everything was recorded and decided about.
func done(t *testing.T, o *ordeal) bool {
	t.Helper()
	handled := countRows(t, o.flow, "effects") + len(o.discarded)
	return handled == victimKeys*victimEach && countRows(t, o.flow, "seambus_held") == 0
}

// liveAndDie runs a victim for a while, with an operator at work, and kills it.
func liveAndDie(t *testing.T, o *ordeal, d dialecttest.Database, lifetime time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimDriver+"="+d.Driver, victimDSN+"="+d.DSN)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := time.After(lifetime)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			t.Fatalf("the service ended by itself: %v", err)
		case <-over:
			_ = cmd.Process.Kill()
			<-ended
			return
		case <-time.After(20 * time.Millisecond):
			mend(t, o)
			if done(t, o) {
				over = time.After(0)
			}
		}
	}
}

// mend decides about one dead letter.
func mend(t *testing.T, o *ordeal) {
	t.Helper()
	all, err := o.in.Parked(t.Context(), inbox.Filter{State: inbox.StateDead})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return
	}
	p := all[o.n(len(all))]
	order := operator
	order.Filter.ID = p.ID
	if o.chance(20) {
		out, err := o.in.Discard(t.Context(), order)
		if err != nil && !errors.Is(err, inbox.ErrNotParked) {
			t.Fatal(err)
		}
		if out.Done > 0 {
			o.discarded[p.ID[2:]] = true
		}
		return
	}
	if o.chance(70) {
		mustExecOn(t, o.db, fmt.Sprintf(`DELETE FROM bad WHERE name = '%s'`, p.ID[2:]))
	}
	if _, err := o.in.Redrive(t.Context(), order); err != nil && !errors.Is(err, inbox.ErrNotParked) {
		t.Fatal(err)
	}
}

// runVictim makes this binary a victim where a test started it as one.
func runVictim() {
	driver, ok := os.LookupEnv(victimDriver)
	if !ok {
		return
	}
	if !slices.Contains(sql.Drivers(), driver) {
		fmt.Fprintln(os.Stderr, "no driver "+strconv.Quote(driver))
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, victim(driver, os.Getenv(victimDSN)))
	os.Exit(1)
}

package bustest_test

// The snippets of docs/testing.md, which TestDocsAreWhatRuns compares with this file.

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/bus/bustest"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

type OrderPlaced struct {
	OrderID int64  `json:"orderId"`
	Version uint64 `json:"version"`
	Cents   int64  `json:"cents"`
}

func (OrderPlaced) EventType() string          { return "order.placed" }
func (e OrderPlaced) PartitionKey() string     { return strconv.FormatInt(e.OrderID, 10) }
func (e OrderPlaced) AggregateVersion() uint64 { return e.Version }

type OrderCharged struct {
	OrderID int64 `json:"orderId"`
}

func (OrderCharged) EventType() string      { return "order.charged" }
func (e OrderCharged) PartitionKey() string { return strconv.FormatInt(e.OrderID, 10) }

var (
	Orders   = event.NewTopic("orders", OrderPlaced{})
	Payments = event.NewTopic("payments", OrderCharged{})
)

// Billing writes a charge and says so, both in the inbox's transaction.
type Billing struct{ box *outbox.Outbox }

func (b *Billing) OnPlaced(ctx context.Context, e OrderPlaced) error {
	tx := inbox.Tx(ctx)
	if _, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, cents) VALUES (?, ?)`, e.OrderID, e.Cents); err != nil {
		return err
	}
	return b.box.Record(ctx, tx, Payments, OrderCharged{OrderID: e.OrderID})
}

const chargesTable = `CREATE TABLE charges (order_id INTEGER, cents INTEGER)`

// start gives a kit the table and the handler, and starts it.
func start(t *testing.T, opts ...bustest.Option) *bustest.Kit {
	k := bustest.New(t, opts...)
	if _, err := k.DB().Exec(chargesTable); err != nil {
		t.Fatal(err)
	}
	billing := &Billing{box: k.Outbox()}
	bus.Handle(k.Bus(), Orders, "billing", billing.OnPlaced)
	k.Start()
	return k
}

func charges(t *testing.T, db *sql.DB) (n int) {
	if err := db.QueryRow(`SELECT count(*) FROM charges`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPlacedOrderIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1, Cents: 990})
		k.Settle()
		k.Handled().Type("order.placed").Key("7").Want(1)
		k.Recorded().Type("order.charged").Key("7").Want(1)
		if n := charges(t, k.DB()); n != 1 {
			t.Errorf("%d charges, want 1", n)
		}
	})
}

func TestFailedAttemptLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.FailAttempt(1, nil)
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		k.Retried().Key("7").Want(1)
		k.Recorded().Type("order.charged").Want(1)
		if n := charges(t, k.DB()); n != 1 {
			t.Errorf("%d charges, want 1", n)
		}
	})
}

func TestRetriesUntilTheBankOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opens := time.Now().Add(9 * time.Hour)
		k := bustest.New(t, bustest.WithBus(bus.WithRetry(middleware.RetryPolicy{
			MaxAttempts: 30, InitialDelay: time.Minute, MaxDelay: 2 * time.Hour,
		})))
		bus.Handle(k.Bus(), Orders, "billing", func(context.Context, OrderPlaced) error {
			if time.Now().Before(opens) {
				return errors.New("the bank is closed")
			}
			return nil
		})
		k.Start()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle() // nine hours, in a few milliseconds
		k.Handled().Key("7").Want(1)
		k.DeadLettered().Want(0)
	})
}

func TestOneOrderWaitsAndTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := bustest.New(t)
		bus.Handle(k.Bus(), Orders, "billing", func(ctx context.Context, e OrderPlaced) error {
			if e.OrderID == 7 && middleware.Attempt(ctx) == 1 {
				return bus.RetryAfter(errors.New("no stock"), time.Hour)
			}
			return nil
		})
		k.Start()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1}, OrderPlaced{OrderID: 8, Version: 1})

		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		k.Handled().Key("8").Want(1)
		k.Handled().Key("7").Want(0)

		k.Settle()
		k.Handled().Key("7").Want(1)
	})
}

func TestDuplicateAndLateEventsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.Duplicate(1)
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 2})
		k.Settle()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		k.Handled().Want(1)
		k.Skipped().Want(2)
		if n := charges(t, k.DB()); n != 1 {
			t.Errorf("%d charges, want 1", n)
		}
	})
}

func TestOrdersOvertakeEachOtherButNotThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.ReorderKeys(time.Minute, 42)
		for version := range uint64(5) {
			k.Record(Orders, OrderPlaced{OrderID: 7, Version: version + 1}, OrderPlaced{OrderID: 8, Version: version + 1})
		}
		k.Settle()
		k.Handled().Key("7").WantIDs(k.Recorded().Key("7").Type("order.placed").IDs()...)
	})
}

func TestDeclinedCardGoesToTheDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := bustest.New(t)
		bus.Handle(k.Bus(), Orders, "billing", func(context.Context, OrderPlaced) error {
			return bus.Permanent(errors.New("card declined"))
		})
		k.Start()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		k.Retried().Want(0)
		for _, letter := range k.DeadLettered().Key("7").Want(1).All() {
			if letter.Err.Error() != "card declined" || letter.Attempt != 1 {
				t.Error(letter)
			}
		}
	})
}

func TestBrokerRefusesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.FailPublish(1, transport.ErrUnavailable)
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle() // the relay pauses, probes and goes on
		k.Handled().Key("7").Want(1)
	})
}

func TestLeaseRunsOutInTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := bustest.New(t)
		first := true
		bus.Handle(k.Bus(), Orders, "billing", func(ctx context.Context, e OrderPlaced) error {
			if !first {
				return nil
			}
			first = false
			k.ExpireLease(e.PartitionKey())
			<-ctx.Done() // the event is somebody else's by now
			return context.Cause(ctx)
		})
		k.Start()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		k.Handled().Key("7").Want(1)
	})
}

func TestConsumerDiesBetweenCommitAndAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.CrashAt(bustest.InboxCommitted)
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		if n := charges(t, k.DB()); n != 1 {
			t.Errorf("%d charges, want 1", n)
		}
		if k.Skipped().Key("7").Len() == 0 {
			t.Error("the process that came after was not asked again")
		}
	})
}

func TestBillingSurvivesEveryCrash(t *testing.T) {
	bustest.EveryCrash(t, func(t *testing.T, k *bustest.Kit) {
		if _, err := k.DB().Exec(chargesTable); err != nil {
			t.Fatal(err)
		}
		billing := &Billing{box: k.Outbox()}
		bus.Handle(k.Bus(), Orders, "billing", billing.OnPlaced)
		k.Start()
		for order := range int64(3) {
			k.Record(Orders, OrderPlaced{OrderID: order, Version: 1}, OrderPlaced{OrderID: order, Version: 2})
		}
		k.Settle()
		if n := charges(t, k.DB()); n != 6 {
			t.Errorf("%d charges, want 6", n)
		}
	})
}

func TestServiceThatWiresItself(t *testing.T) {
	bustest.EveryCrash(t, func(t *testing.T, k *bustest.Kit) {
		db := k.NewDB() // the service's own, watched by the kit
		if _, err := db.Exec(chargesTable); err != nil {
			t.Fatal(err)
		}
		k.Run(func(ctx context.Context) error { // called again after each crash
			box, err := outbox.New(db, k.Transport())
			if err != nil {
				return err
			}
			in, err := inbox.New(db)
			if err != nil {
				return err
			}
			b, err := bus.New(k.Transport(), append(k.BusOptions(), bus.WithOutbox(box), bus.WithInbox(in))...)
			if err != nil {
				return err
			}
			bus.Handle(b, Orders, "billing", (&Billing{box: box}).OnPlaced)
			return b.Run(ctx)
		})
		k.Start() // the kit's own bus relays what the test records
		synctest.Wait()
		k.Record(Orders, OrderPlaced{OrderID: 7, Version: 1})
		k.Settle()
		if n := charges(t, db); n != 1 {
			t.Errorf("%d charges, want 1", n)
		}
	})
}

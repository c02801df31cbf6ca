// Package outbox makes an event part of the transaction that caused it, and sees it to the broker afterwards. Record
// writes a row with the caller's own data: commit makes both durable, rollback removes both. A relay ([Outbox.Run])
// publishes the rows and marks them.
//
//	box, err := outbox.New(db, transport)
//	go box.Run(ctx)
//	err = box.InTx(ctx, func(tx *sql.Tx) error {
//		...
//		return box.Record(ctx, tx, Orders, OrderPlaced{OrderID: 7})
//	})
//
// # Promises
//
// Every committed row is published at least once: first published, then marked, so that a crash between the two repeats
// and never loses. No transaction or lock is held during a broker call. Rows of one partition key go out in row order, and
// keys in parallel. Row order is commit order where recorders of one key exclude each other before Record, as they do
// when they lock their aggregate's row; SQLite has one writer at a time and needs nothing.
//
// A row that the broker refuses for good is failed, and later rows of its key are held behind it or pass, as
// [WithFailurePolicy] says. A row that fails for now is tried again with a growing delay; the rest of its key waits, other
// keys go on. When the broker as a whole is away the relay pauses, probes, and spends no attempts.
//
// # Relays
//
// Any number of relays may serve one outbox, in one process or many. They divide the keys by lease ([WithLeaseTTL]); the
// keys of a relay that died move once its leases have expired, and whatever it still does is refused. A relay is woken by
// [Outbox.InTx] and [Outbox.Committed] of its own Outbox. Rows that other processes write it finds by looking:
// give [WithPoll] where there are any.
//
// # SQLite
//
// Open the database as
//
//	file:x.db?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate
//
// with modernc.org/sqlite. WAL lets the relay read while others write; _txlock=immediate makes a transaction wait for its
// turn at the start rather than fail in the middle. A pool of one connection (SetMaxOpenConns(1)) is the fastest.
//
// # Foreign writers
//
// A row inserted by anybody, in any language, is delivered: it needs event_id, topic, type, partition_key and payload, and
// the relay fills in the rest.
package outbox

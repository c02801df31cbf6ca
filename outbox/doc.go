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
// [Outbox.InTx] and [Outbox.Committed] of its own Outbox. Rows that other processes write it finds by looking, every 200
// milliseconds on a database server; on SQLite give [WithPoll] where there are any. On PostgreSQL it can hear of them at
// once: see [WithListener].
//
// # PostgreSQL, MySQL and MariaDB
//
// Make the tables with `seambus migrate up` before the first start. A later release's tables serve this release too. Open
// the database with pgx's stdlib driver or with go-sql-driver/mysql (interpolateParams=true saves a round trip for each
// statement). On PostgreSQL the tables are those that search_path finds. What the relay compares is the server's clock, so
// that the clocks of processes do not matter; an event's time is the server's too. The relay's transactions are short and
// read committed, whatever the default is. Record in a pgx.Tx through package pgxoutbox; a plain watermill-sql v3 Publisher
// writes rows through package wmsql.
//
// Tested on PostgreSQL 15 and MariaDB 10.11. The statements need MariaDB 10.6 or MySQL 8.0.13 at least (SKIP LOCKED,
// expressions as defaults); MySQL itself is not tested yet.
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
// # Operators
//
// [Operator] tells how an outbox stands, and retries, discards, replays and sweeps its rows, with an audit; `seambus outbox` is its
// command. It needs no relay and no broker.
//
// # Foreign writers
//
// A row inserted by anybody, in any language, is delivered: it needs event_id, topic, type, partition_key and payload, and
// the relay fills in the rest.
package outbox

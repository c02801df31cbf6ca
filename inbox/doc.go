// Package inbox makes the effect of an event happen once in a database that may be told of it many times. The id of a
// handled event is written in the handler's own transaction, together with the effect and with whatever the handler
// records in an outbox: all of it commits, or none.
//
//	in, err := inbox.New(db)
//	router.AddConsumerHandler("fulfillment", "orders", sub, func(msg *message.Message) error {
//		_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), "UPDATE ...")
//		return err
//	}).AddMiddleware(in.Middleware("fulfillment"))
//
// # What it promises
//
// An id (per group and source) is remembered only after success: an attempt that failed, panicked or was cut off leaves
// nothing. Of two copies handled at the same time one waits for the other in the database and is then acknowledged as a
// duplicate. An event with a partition key and an aggregate version is acknowledged without calling the handler if the
// inbox holds that version or a newer one for the key. Duplicate is tested before stale. The promise ends where the
// database does: a mail sent by the handler may be sent again.
//
// # The transaction
//
// It belongs to the message's context. If that ends while the handler runs (a lost lease, a shutdown) the database is
// rolled back, and statements of the handler fail. If it ends during the commit, the commit either happens as a whole or
// is refused as a whole; where the driver cannot say which, the event is delivered again and found to be a duplicate or
// handled anew. A database that is busy or locked gives a plain error, which is retried like any other: with SQLite set
// busy_timeout, or let the pool have one connection.
//
// The inbox keeps dead letters too: [Inbox] is an [event.DeadLetters].
package inbox

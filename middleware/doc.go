// Package middleware holds the links of a subscription's chain. Each is a plain Watermill HandlerMiddleware that works
// alone in a plain Watermill router; the bus assembles them in the one order in which all of them are right, outermost
// first:
//
//	Recover      a panic anywhere below is an error, not a crash
//	Trace        the span covers every verdict
//	DeadLetter   gives up what Retry has given up
//	Retry        decides whether there is another attempt, and when
//	Attempts     counts calls, since nothing below may be called uncounted
//	(yours)      sees every attempt, outside the transaction
//	Dedup        or an inbox: remembers an id only after success
//	Timeout      bounds the handler, not the transaction around it
//	Recover      so that a panic in the handler counts as a failed attempt
package middleware

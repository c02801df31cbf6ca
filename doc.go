// Package seambus is the root of a broker-agnostic event bus over Watermill: the same typed handlers on any transport, an
// outbox beside the publisher's data, an inbox beside the handler's. There is nothing to import here; begin with the
// packages bus, outbox, inbox and transport/memory.
package seambus

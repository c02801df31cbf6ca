// Package kafka connects the bus to Apache Kafka.
//
// Within a partition, keys are handled in parallel and each of them in order. What is committed is the low watermark: the
// offset below which everything is finished, so a crash repeats work and never skips it. One process is one member of a
// group, with one connection, however many topics it subscribes to.
//
// # Delivery
//
// A nacked message comes again before any later one of its key, after its delay, without leaving the partition; other keys
// go on. A partition pauses while [WithMaxWaiting] messages wait in it or the newest is [WithMaxGap] beyond the oldest
// unfinished one, so memory stays bounded. A new group begins at the earliest offset. Only committed transactions are read.
//
// When a partition is revoked its handlers' contexts end with transport.ErrLeaseLost as their cause; handlers that settle
// within [WithRevokeGrace] still count; then the watermark is committed, and the partition released. Later acks are ignored.
//
// # Wire format
//
// It is watermill-kafka's, both ways: metadata entries are record headers, the message's UUID is the header
// _watermill_message_uuid, and the partition key is the record's key, placed by murmur2 as the Java client places it. A
// message without a key goes anywhere.
//
// Foreign records: without a UUID header the id is ce_id or else "topic:partition:offset", which is the same at every
// delivery. A record key becomes the message's partition key if the headers name none and it is printable text; a key of
// other bytes still keeps order. A tombstone arrives with a nil payload, an empty value with one that is empty and not nil.
// Publishing a nil payload sends an empty value, never a tombstone. Of repeated headers the last one counts.
package kafka

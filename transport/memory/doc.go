// Package memory is the reference transport: a broker inside the process that behaves like a real one. Topics fan out to
// groups, a group's members share its messages, each key keeps its order while keys run in parallel, a nack delays its key
// alone, leases are lost, deliveries are counted. It is what unit tests run on, inside testing/synctest bubbles too, where
// hours of backoff pass at once.
//
// [WithStrict] makes it behave like SQS or Kafka, with their limits, counts, leases, deduplication, partitions and rebalances, so
// that a team's own tests meet what production will bring.
//
// Accepted messages die with the process: Durable is false, so that an outbox marks a row only after every subscribed
// group has acknowledged it.
package memory

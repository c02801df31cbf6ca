// Package sqs carries events over Amazon SQS FIFO queues, alone or behind SNS FIFO topics.
//
// A topic is either one queue, for the one group that handles it ([WithSoleGroup], [WithQueue]), or an SNS FIFO topic that
// feeds a queue for each group ([WithFanout]). Queues are called <topic>_<group>.fifo, SNS topics <topic>.fifo. The
// message group is the partition key (without a key: the event's id), the deduplication id is the event's id.
//
// What travels is what watermill-aws sends and reads: metadata as attributes of type String and the message's UUID as
// _watermill_message_uuid. What SQS cannot carry (more than ten attributes, empty values, bytes that are not text) is packed
// into attributes of type Binary and unpacked on arrival.
//
// Calls to the broker are what SQS costs: sends, deletes and changes of visibility share calls of up to ten entries, between
// goroutines too. Groups are handled in parallel, each in order; leases are extended for as long as a message is held.
package sqs

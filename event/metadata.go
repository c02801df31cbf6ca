package event

// Metadata keys of an envelope in a message: CloudEvents 1.0 attributes in binary mode, named as the CloudEvents Kafka
// binding names them, so that the same keys serve as Kafka headers and SQS attributes.
const (
	// MetaSpecVersion holds the CloudEvents version, always "1.0".
	MetaSpecVersion = "ce_specversion"
	// MetaID holds the event id. It equals the message's UUID.
	MetaID = "ce_id"
	// MetaSource holds the URI reference of the producer; (source, id) is unique.
	MetaSource = "ce_source"
	// MetaType holds the event's wire name.
	MetaType = "ce_type"
	// MetaSubject holds the aggregate the event is about; the partition key unless set otherwise.
	MetaSubject = "ce_subject"
	// MetaTime holds the time of recording, RFC 3339 with nanoseconds, in UTC.
	MetaTime = "ce_time"
	// MetaPartitionKey holds the partition key (the CloudEvents partitioning extension).
	MetaPartitionKey = "ce_partitionkey"
	// MetaSequence holds the aggregate version, zero-padded to 20 digits (the CloudEvents sequence extension).
	MetaSequence = "ce_sequence"
	// MetaCorrelationID holds the id of the whole conversation: the id of the event that began it.
	MetaCorrelationID = "ce_correlationid"
	// MetaCausationID holds the id of the event whose handler recorded this one.
	MetaCausationID = "ce_causationid"
	// MetaSchemaVersion holds the version of the payload's schema.
	MetaSchemaVersion = "ce_schemaversion"
	// MetaContentType holds the payload's media type, which chooses the codec.
	MetaContentType = "content-type"
	// MetaTraceParent and MetaTraceState hold the W3C trace context, under W3C's own names.
	MetaTraceParent = "traceparent"
	MetaTraceState  = "tracestate"
	// MetaGeneration counts the deliberate repetitions of an event (replay, redrive). A transport that deduplicates by
	// id includes it, so that a repetition is not taken for a producer's retry. Absent means zero.
	MetaGeneration = "seambus_generation"
)

// Limits that hold on every transport, whatever the broker would accept.
const (
	// MaxIDBytes is the longest event id, chosen so that it fits an indexed text column on every database.
	MaxIDBytes = 255
	// MaxKeyBytes is the longest partition key. SQS allows 128 characters in a message group id.
	MaxKeyBytes = 255
	// MaxTypeBytes is the longest wire name of an event.
	MaxTypeBytes = 255
)

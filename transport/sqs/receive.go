package sqs

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	wmsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/transport"
)

// receive polls until the subscription stops. Errors are waited out: none of them is a message's fault.
func (s *subscription) receive() {
	failures := 0
	for {
		n := s.reserve()
		if n == 0 {
			return
		}
		msgs, err := s.poll(n)
		s.accept(msgs, n)
		if err == nil {
			failures = 0
			continue
		}
		if s.taking.Err() != nil {
			return
		}
		failures++
		s.log.Warn("receive failed", "error", err, "in_a_row", failures)
		s.rest(backoff(failures))
	}
}

// reserve waits until there is room, and returns for how many messages; 0 when the subscription stops. A call that brings ten
// costs as much as one that brings one, so that it waits until it may ask for as many as are in flight, up to ten. A second
// receiver polls only while calls come back full: an idle queue is polled once.
func (s *subscription) reserve() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := min(maxBatch, s.limit)
	for !s.stopping {
		room := s.limit + least - len(s.held) - s.reserved
		if room >= least && s.polling < s.pollers {
			n := min(room, maxBatch)
			s.polling++
			s.reserved += n
			return n
		}
		s.room.Wait()
	}
	return 0
}

func (s *subscription) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.taking.Done():
	}
}

func (s *subscription) poll(n int) ([]sqstypes.Message, error) {
	ctx, cancel := context.WithTimeout(s.taking, s.cfg.poll+s.cfg.timeout) // an endpoint may hang
	defer cancel()
	out, err := s.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: &s.queue.url, MaxNumberOfMessages: int32(n),
		WaitTimeSeconds: seconds(s.cfg.poll), VisibilityTimeout: seconds(s.cfg.lease),
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []sqstypes.MessageSystemAttributeName{sqstypes.MessageSystemAttributeNameAll},
	})
	if err != nil {
		return nil, ofCall(err)
	}
	return out.Messages, nil
}

// accept puts what a call brought into its lanes. What comes while the subscription stops is handed back.
func (s *subscription) accept(msgs []sqstypes.Message, asked int) {
	now := time.Now()
	s.mu.Lock()
	s.polling--
	s.reserved -= asked
	switch {
	case len(msgs) == 0:
		s.pollers = 1
	case len(msgs) >= asked:
		s.pollers = min(s.pollers+1, s.cfg.receivers)
	}
	var back []*held
	var deletes []*batchItem
	var items []*batchItem
	for i := range msgs {
		h := s.hold(&msgs[i], now)
		acknowledged, behind := s.replaces(h)
		items = append(items, behind...)
		switch {
		case acknowledged:
			deletes = append(deletes, s.toDelete(h))
		case s.stopping:
			back = append(back, h)
		default:
			s.enqueue(h)
		}
	}
	items = append(items, s.returning(back, 0)...)
	s.room.Broadcast()
	s.checkIdle()
	s.mu.Unlock()
	s.deletes.add(deletes...)
	s.visibility.add(items...)
}

// replaces makes h the message that is held under its id. Whatever was held before has lost its lease, or it would not
// have come again: the entries hand back what waited behind that. It reports true if the message was acknowledged before and
// needs deleting only.
func (s *subscription) replaces(h *held) (acknowledged bool, behind []*batchItem) {
	before := s.held[h.id]
	acknowledged = s.done.has(h.id) || before != nil && before.state == deleting
	s.held[h.id] = h
	if before != nil {
		behind = s.lose(before)
	}
	if acknowledged {
		h.state = deleting
	}
	return acknowledged, behind
}

func (s *subscription) enqueue(h *held) {
	ln := s.lanes[h.group]
	if ln == nil {
		ln = &lane{group: h.group}
		s.lanes[h.group] = ln
	}
	h.lane = ln
	ln.queue = append(ln.queue, h)
	if len(ln.queue) == 1 && ln.busy == nil {
		s.makeReady(ln)
	}
}

func (s *subscription) makeReady(ln *lane) {
	s.ready = append(s.ready, ln)
	s.work.Signal()
}

// hold makes a delivery of a received message.
func (s *subscription) hold(m *sqstypes.Message, now time.Time) *held {
	system := func(name sqstypes.MessageSystemAttributeName) string { return m.Attributes[string(name)] }
	group := system(sqstypes.MessageSystemAttributeNameMessageGroupId)
	msg := unpack(deref(m.Body), attributesOf(m.MessageAttributes))
	if msg.UUID == "" { // not from us, nor from watermill-aws
		dedup := system(sqstypes.MessageSystemAttributeNameMessageDeduplicationId)
		msg.Metadata[MetaGroupID], msg.Metadata[MetaDedupID] = group, dedup
		if msg.UUID = dedup; dedup == "" || dedup == hash(deref(m.Body)) {
			msg.UUID = deref(m.MessageId) // equal bodies are not equal events
		}
	}
	if msg.Metadata[event.MetaPartitionKey] == "" && group != groupID("", msg.UUID) {
		msg.Metadata[event.MetaPartitionKey] = group
	}
	h := &held{
		Delivery: transport.Delivery{
			Topic: s.topic, Group: s.group, Key: transport.Key(msg), Partition: -1,
			Deliveries: atoi(system(sqstypes.MessageSystemAttributeNameApproximateReceiveCount)),
		},
		id: deref(m.MessageId), group: group, msg: msg, received: now, over: make(chan struct{}),
		receipt: deref(m.ReceiptHandle), deadline: now.Add(s.cfg.lease),
	}
	h.Init(s.values, time.Time{})
	msg.SetContext(h)
	return h
}

// Metadata of a message that neither this transport nor watermill-aws has sent, named as watermill-aws names them.
const (
	// MetaGroupID holds the MessageGroupId.
	MetaGroupID = "MessageGroupId"
	// MetaDedupID holds the MessageDeduplicationId, which is also the message's UUID unless SQS made it from the body.
	MetaDedupID = "MessageDeduplicationId"
)

func attributesOf(m map[string]sqstypes.MessageAttributeValue) []attribute {
	attrs := make([]attribute, 0, len(m))
	for name, v := range m {
		a := attribute{name: name, text: aws.ToString(v.StringValue), bytes: v.BinaryValue}
		a.binary = len(aws.ToString(v.DataType)) >= len(wmsqs.AWSBinaryDataType) &&
			aws.ToString(v.DataType)[:len(wmsqs.AWSBinaryDataType)] == wmsqs.AWSBinaryDataType
		attrs = append(attrs, a)
	}
	return attrs
}

// passes lets a test crash the member at a point of the path.
func (s *subscription) passes(p crash.Point) {
	if s.hook != nil && s.hook(s.values, p) != nil {
		s.crash()
	}
}

package fakeaws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func (b *Broker) byURL(url *string) (*queue, error) {
	name := aws.ToString(url)
	if q := b.queues[name[strings.LastIndexByte(name, '/')+1:]]; q != nil {
		return q, nil
	}
	return nil, &sqstypes.QueueDoesNotExist{Message: aws.String("no queue " + name)}
}

// GetQueueUrl finds a queue by name.
func (b *Broker) GetQueueUrl(ctx context.Context, in *sqs.GetQueueUrlInput, _ ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error) {
	if err, _ := b.begin(ctx, "GetQueueUrl"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueName)
	if err != nil {
		return nil, err
	}
	return &sqs.GetQueueUrlOutput{QueueUrl: &q.url}, nil
}

// CreateQueue makes a queue, or finds it if it has these attributes.
func (b *Broker) CreateQueue(ctx context.Context, in *sqs.CreateQueueInput, _ ...func(*sqs.Options)) (*sqs.CreateQueueOutput, error) {
	if err, _ := b.begin(ctx, "CreateQueue"); err != nil {
		return nil, err
	}
	name := aws.ToString(in.QueueName)
	if (in.Attributes["FifoQueue"] == "true") != strings.HasSuffix(name, ".fifo") {
		return nil, Error("InvalidParameterValue", "the name of a FIFO queue ends in .fifo, and of no other")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		for k, v := range in.Attributes {
			if q.attrs[k] != v {
				return nil, Error("QueueNameExists", "queue %s exists with another %s", name, k)
			}
		}
		return &sqs.CreateQueueOutput{QueueUrl: &q.url}, nil
	}
	q := &queue{
		name: name, url: "https://sqs." + region + ".amazonaws.com/" + account + "/" + name, arn: "arn:aws:sqs:" + region + ":" + account + ":" + name,
		dedup: make(map[string]accepted), changed: make(chan struct{}),
		attrs: map[string]string{
			"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue", "MaximumMessageSize": "1048576",
			"MessageRetentionPeriod": "345600", "VisibilityTimeout": "30",
		},
	}
	maps.Copy(q.attrs, in.Attributes)
	q.attrs["QueueArn"] = q.arn
	b.queues[name] = q
	return &sqs.CreateQueueOutput{QueueUrl: &q.url}, nil
}

// GetQueueAttributes returns all attributes, whatever was asked for.
func (b *Broker) GetQueueAttributes(ctx context.Context, in *sqs.GetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	if err, _ := b.begin(ctx, "GetQueueAttributes"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	return &sqs.GetQueueAttributesOutput{Attributes: maps.Clone(q.attrs)}, nil
}

// SetQueueAttributes changes attributes.
func (b *Broker) SetQueueAttributes(ctx context.Context, in *sqs.SetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.SetQueueAttributesOutput, error) {
	if err, _ := b.begin(ctx, "SetQueueAttributes"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	maps.Copy(q.attrs, in.Attributes)
	return &sqs.SetQueueAttributesOutput{}, nil
}

// SendMessageBatch accepts entries one by one.
func (b *Broker) SendMessageBatch(ctx context.Context, in *sqs.SendMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error) {
	before, after := b.begin(ctx, "SendMessageBatch")
	if before != nil {
		return nil, before
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	if err := checkBatch(len(in.Entries)); err != nil {
		return nil, err
	}
	total := 0
	for _, e := range in.Entries {
		total += size(aws.ToString(e.MessageBody), e.MessageAttributes)
	}
	if total > maxTotal {
		return nil, Error("AWS.SimpleQueueService.BatchRequestTooLong", "%d bytes in all", total)
	}
	out := &sqs.SendMessageBatchOutput{}
	for _, e := range in.Entries {
		m := &message{
			body: aws.ToString(e.MessageBody), attrs: e.MessageAttributes, group: aws.ToString(e.MessageGroupId), dedup: aws.ToString(e.MessageDeduplicationId),
		}
		code := b.entryFault("SendMessageBatch", m.group, m.text())
		if code == "" {
			code = refuse(q, m)
		}
		if code != "" {
			out.Failed = append(out.Failed, failed(e.Id, code))
			continue
		}
		id, seq := b.put(q, m)
		out.Successful = append(out.Successful, sqstypes.SendMessageBatchResultEntry{Id: e.Id, MessageId: &id, SequenceNumber: &seq})
	}
	return out, after
}

func checkBatch(n int) error {
	switch {
	case n == 0:
		return Error("AWS.SimpleQueueService.EmptyBatchRequest", "no entries")
	case n > maxEntries:
		return Error("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "%d entries", n)
	}
	return nil
}

func failed(id *string, code string) sqstypes.BatchResultErrorEntry {
	return sqstypes.BatchResultErrorEntry{Id: id, Code: &code, Message: aws.String("injected or refused"), SenderFault: code != "InternalError"}
}

func size(body string, attrs map[string]sqstypes.MessageAttributeValue) int {
	n := len(body)
	for name, a := range attrs {
		n += len(name) + len(aws.ToString(a.DataType)) + len(aws.ToString(a.StringValue)) + len(a.BinaryValue)
	}
	return n
}

// refuse returns the code for what SQS does not take.
func refuse(q *queue, m *message) string {
	most, _ := strconv.Atoi(q.attrs["MaximumMessageSize"])
	switch {
	case m.group == "" || m.dedup == "":
		return "MissingParameter"
	case m.body == "" || !xmlText(m.body):
		return "InvalidMessageContents"
	case len(m.attrs) > maxAttribute || size(m.body, m.attrs) > most:
		return "InvalidParameterValue"
	}
	for _, s := range []string{m.group, m.dedup} {
		if len(s) > 128 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "InvalidParameterValue"
		}
	}
	for name, a := range m.attrs {
		text := aws.ToString(a.StringValue)
		if name == "" || text == "" && len(a.BinaryValue) == 0 || !xmlText(text) ||
			strings.ContainsFunc(name, func(r rune) bool {
				return !strings.ContainsRune("_-.", r) && (r < '0' || r > 'z' || r > '9' && r < 'A' || r > 'Z' && r < 'a')
			}) {
			return "InvalidParameterValue"
		}
	}
	return ""
}

func xmlText(s string) bool {
	return strings.ToValidUTF8(s, "") == s && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
	})
}

// ReceiveMessage waits for messages.
func (b *Broker) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	before, after := b.begin(ctx, "ReceiveMessage")
	if before != nil {
		return nil, before
	}
	if in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > maxEntries || in.WaitTimeSeconds > maxLongPoll {
		return nil, Error("InvalidParameterValue", "%d messages, %d s", in.MaxNumberOfMessages, in.WaitTimeSeconds)
	}
	until := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		got, changed, wait, err := b.try(in, until)
		if err != nil || got != nil || wait <= 0 {
			if err == nil {
				err = after
			}
			return &sqs.ReceiveMessageOutput{Messages: got}, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// try receives what there is, or says what to wait for.
func (b *Broker) try(in *sqs.ReceiveMessageInput, until time.Time) ([]sqstypes.Message, <-chan struct{}, time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, nil, 0, err
	}
	var got []sqstypes.Message
	for _, m := range b.collect(q, int(in.MaxNumberOfMessages), time.Duration(in.VisibilityTimeout)*time.Second) {
		got = append(got, m.received())
	}
	now := time.Now()
	wait := until.Sub(now)
	if at, ok := q.nextVisible(now); ok {
		wait = min(wait, at.Sub(now)+1)
	}
	return got, q.changed, wait, nil
}

func (m *message) received() sqstypes.Message {
	id, receipt, body := m.id, m.receipt, m.body
	return sqstypes.Message{
		MessageId: &id, ReceiptHandle: &receipt, Body: &body, MessageAttributes: maps.Clone(m.attrs),
		Attributes: map[string]string{
			"ApproximateReceiveCount": strconv.Itoa(m.receives), "MessageGroupId": m.group, "MessageDeduplicationId": m.dedup,
			"SequenceNumber": m.sequence, "SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10),
			"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.first.UnixMilli(), 10),
		},
	}
}

// DeleteMessageBatch deletes what was received and is still in flight.
func (b *Broker) DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	before, after := b.begin(ctx, "DeleteMessageBatch")
	if before != nil {
		return nil, before
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	if err := checkBatch(len(in.Entries)); err != nil {
		return nil, err
	}
	out := &sqs.DeleteMessageBatchOutput{}
	for _, e := range in.Entries {
		m, ok := q.byReceipt(aws.ToString(e.ReceiptHandle))
		if code := b.receiptFault("DeleteMessageBatch", m, ok); code != "" {
			out.Failed = append(out.Failed, failed(e.Id, code))
			continue
		}
		q.remove(m)
		out.Successful = append(out.Successful, sqstypes.DeleteMessageBatchResultEntry{Id: e.Id})
	}
	return out, after
}

func (b *Broker) receiptFault(op string, m *message, ok bool) string {
	if !ok {
		return "ReceiptHandleIsInvalid"
	}
	return b.entryFault(op, m.group, m.text())
}

// ChangeMessageVisibilityBatch sets how long messages in flight stay invisible, up to 12 hours from their receipt.
func (b *Broker) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	before, after := b.begin(ctx, "ChangeMessageVisibilityBatch")
	if before != nil {
		return nil, before
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := b.byURL(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	if err := checkBatch(len(in.Entries)); err != nil {
		return nil, err
	}
	out := &sqs.ChangeMessageVisibilityBatchOutput{}
	now := time.Now()
	for _, e := range in.Entries {
		m, ok := q.byReceipt(aws.ToString(e.ReceiptHandle))
		code := b.receiptFault("ChangeMessageVisibilityBatch", m, ok)
		visible := now.Add(time.Duration(e.VisibilityTimeout) * time.Second)
		if code == "" && visible.Sub(m.current) > maxVisible {
			code = "InvalidParameterValue"
		}
		if code != "" {
			out.Failed = append(out.Failed, failed(e.Id, code))
			continue
		}
		m.visible = visible
		q.wake()
		out.Successful = append(out.Successful, sqstypes.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
	}
	return out, after
}

// Queues returns the names of all queues, sorted.
func (b *Broker) Queues() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.queues))
}

// Attributes returns a queue's attributes.
func (b *Broker) Attributes(name string) map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		return maps.Clone(q.attrs)
	}
	return nil
}

// MustCreate makes a FIFO queue with these attributes besides.
func (b *Broker) MustCreate(name string, attrs map[string]string) {
	all := map[string]string{"FifoQueue": "true"}
	if !strings.HasSuffix(name, ".fifo") {
		delete(all, "FifoQueue")
	}
	maps.Copy(all, attrs)
	if _, err := b.CreateQueue(context.Background(), &sqs.CreateQueueInput{QueueName: &name, Attributes: all}); err != nil {
		panic(fmt.Sprintf("fakeaws: %v", err))
	}
}

// SetAttribute sets a queue's attribute to anything.
func (b *Broker) SetAttribute(name, attribute, value string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues[name].attrs[attribute] = value
}

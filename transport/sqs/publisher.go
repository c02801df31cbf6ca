package sqs

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/seambus/seambus/transport"
)

// sendTries is how often an entry is sent before its publisher is told that the broker is unavailable.
const sendTries = 6

type publisher struct {
	transport *Transport
	closed    atomic.Bool
}

// Publish sends the messages in shared batches and waits for all results. After a failure it goes on with other keys.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if p.closed.Load() {
		return fmt.Errorf("sqs: publish %q: %w", topic, transport.ErrClosed)
	}
	c := &publishCall{errs: make([]error, len(msgs)), failed: make(map[string]bool), done: make(chan struct{})}
	for i, msg := range msgs {
		c.check(p.transport.cfg.limits(), i, msg)
	}
	if len(c.items) > 0 {
		b, err := p.transport.sender(c.msgs[0].Context(), topic)
		if err != nil {
			return fmt.Errorf("sqs: publish %q: %w", topic, err)
		}
		c.send(b)
	}
	return c.result(topic, msgs)
}

func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// publishCall is one Publish: what becomes of each of its messages.
type publishCall struct {
	items  []*batchItem
	msgs   []*message.Message // of items
	failed map[string]bool    // keys
	left   atomic.Int64
	done   chan struct{}

	mu   sync.Mutex
	errs []error // by place
}

// check refuses a message that cannot be sent, and with it what follows of its key.
func (c *publishCall) check(limits transport.Limits, i int, msg *message.Message) {
	key := transport.Key(msg)
	if c.failed[key] {
		c.errs[i] = transport.ErrSkipped
		return
	}
	err := msg.Context().Err()
	if err == nil {
		err = limits.Check(msg)
	}
	var p *packed
	if err == nil {
		p = pack(msg)
		if most := limits.MessageBytes + packingReserve; p.size() > most {
			err = &transport.LimitError{ID: msg.UUID, Limit: "bytes when packed", Max: most, Got: p.size()}
		}
	}
	if err != nil {
		c.errs[i] = err
		c.failed[key] = key != ""
		return
	}
	c.msgs = append(c.msgs, msg)
	c.items = append(c.items, &batchItem{
		lane: p.group, value: p, size: p.size(), owner: c, ctx: msg.Context().Done(),
		done: func(err error) { c.finish(i, err) },
	})
}

func (c *publishCall) finish(i int, err error) {
	if err != nil {
		c.mu.Lock()
		c.errs[i] = err
		c.mu.Unlock()
	}
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// send hands all entries over and waits for their results, or for the end of their contexts.
func (c *publishCall) send(b *batcher) {
	c.left.Store(int64(len(c.items)))
	var last <-chan struct{}
	for _, msg := range c.msgs {
		ctx := msg.Context()
		if ctx.Done() == nil || ctx.Done() == last {
			continue
		}
		last = ctx.Done()
		defer context.AfterFunc(ctx, func() { b.withdraw(c.items, ctx.Done(), ctx.Err()) })()
	}
	b.add(c.items...)
	<-c.done
}

func (c *publishCall) result(topic string, msgs []*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failures []transport.Failure
	for i, err := range c.errs {
		if err != nil {
			failures = append(failures, transport.Failure{Index: i, ID: msgs[i].UUID, Err: err})
		}
	}
	if failures != nil {
		return &transport.PublishError{Topic: topic, Failures: failures}
	}
	return nil
}

// newSender returns a batcher that sends with call. At most one entry of a group is in a batch: its failure would otherwise let
// the next one pass.
func newSender(cfg *config, bytes int, call func(context.Context, []*batchItem) (map[int]error, error)) *batcher {
	return newBatcher(batchConfig{
		perLane: 1, bytes: bytes, parallel: 16, linger: cfg.linger, timeout: cfg.timeout, tries: sendTries, call: call,
	})
}

// sendToQueue returns the call that sends to a queue.
func sendToQueue(client Client, url string) func(context.Context, []*batchItem) (map[int]error, error) {
	return func(ctx context.Context, items []*batchItem) (map[int]error, error) {
		entries := make([]sqstypes.SendMessageBatchRequestEntry, len(items))
		for i, it := range items {
			p, _ := it.value.(*packed)
			entries[i] = sqstypes.SendMessageBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), MessageBody: &p.body, MessageGroupId: &p.group, MessageDeduplicationId: &p.dedup,
				MessageAttributes: sqsAttributes(p.attrs),
			}
		}
		out, err := client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
		if err != nil {
			return nil, ofCall(err)
		}
		failed := unanswered(len(items))
		for _, e := range out.Successful {
			delete(failed, place(e.Id))
		}
		for _, e := range out.Failed {
			failed[place(e.Id)] = ofEntry(e.Code, e.Message)
		}
		return failed, nil
	}
}

// unanswered is the outcome of a call before its answer is read: what the broker does not mention was not accepted.
func unanswered(n int) map[int]error {
	failed := make(map[int]error, n)
	for i := range n {
		failed[i] = fmt.Errorf("%w: no answer for this entry", transport.ErrUnavailable)
	}
	return failed
}

// place is an entry's index in its batch.
func place(id *string) int {
	n, err := strconv.Atoi(deref(id))
	if err != nil {
		return -1
	}
	return n
}

func sqsAttributes(attrs []attribute) map[string]sqstypes.MessageAttributeValue {
	m := make(map[string]sqstypes.MessageAttributeValue, len(attrs))
	for _, a := range attrs {
		v := sqstypes.MessageAttributeValue{DataType: aws.String(a.dataType())}
		if a.binary {
			v.BinaryValue = a.bytes
		} else {
			v.StringValue = aws.String(a.text)
		}
		m[a.name] = v
	}
	return m
}

// seconds rounds a duration up to what SQS counts in.
func seconds(d time.Duration) int32 { return int32((max(d, 0) + time.Second - 1) / time.Second) }

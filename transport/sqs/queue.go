package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/seambus/seambus/transport"
)

// queue is one that exists and was found fit.
type queue struct {
	name  string
	url   string
	arn   string
	attrs map[string]string
	ours  bool // may be altered
}

// queue finds, checks and where configured creates the queue of a topic and group. The turn to resolve is held.
func (t *Transport) queue(ctx context.Context, tg topicGroup) (*queue, error) {
	t.mu.Lock()
	q := t.queues[tg]
	t.mu.Unlock()
	if q != nil {
		return q, nil
	}
	q, err := t.openQueue(ctx, tg)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, taken := t.owners[q.url]; taken && other != tg {
		return nil, fmt.Errorf("queue %q belongs to group %q of topic %q and cannot serve group %q of topic %q too", q.name, other.group, other.topic, tg.group, tg.topic)
	}
	t.owners[q.url], t.queues[tg] = tg, q
	return q, nil
}

func (t *Transport) openQueue(ctx context.Context, tg topicGroup) (*queue, error) {
	name, err := t.cfg.queueName(tg.topic, tg.group)
	if err != nil {
		return nil, err
	}
	settings := t.cfg.queues[tg]
	q := &queue{name: name, ours: !settings.External}
	ctx, cancel := context.WithTimeout(ctx, 3*t.cfg.timeout)
	defer cancel()
	if strings.Contains(settings.Name, "/") {
		q.url = settings.Name
	} else if err := t.locate(ctx, q); err != nil {
		return nil, err
	}
	if err := t.readAttributes(ctx, q); err != nil {
		return nil, err
	}
	return q, t.vet(ctx, q, settings)
}

// locate asks for the queue's URL, and creates the queue where there is none and that is configured.
func (t *Transport) locate(ctx context.Context, q *queue) error {
	out, err := t.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &q.name})
	switch {
	case err == nil:
		q.url = deref(out.QueueUrl)
		return nil
	case !notFound(err):
		return fmt.Errorf("look up queue %q: %w", q.name, ofCall(err))
	case !q.ours:
		return fmt.Errorf("queue %q does not exist; it is external: ask its owner: %w", q.name, ofCall(err))
	case !t.cfg.create:
		return fmt.Errorf("queue %q does not exist: create it, or let the transport do it with WithCreate: %w", q.name, ofCall(err))
	}
	created, err := t.client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &q.name, Attributes: t.wanted(true)})
	if err != nil {
		return fmt.Errorf("create queue %q: %w", q.name, ofCall(err))
	}
	q.url = deref(created.QueueUrl)
	return nil
}

func (t *Transport) readAttributes(ctx context.Context, q *queue) error {
	out, err := t.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &q.url, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll},
	})
	if err != nil {
		return fmt.Errorf("read the attributes of queue %q: %w", q.name, ofCall(err))
	}
	q.attrs = out.Attributes
	q.arn = out.Attributes[string(sqstypes.QueueAttributeNameQueueArn)]
	return nil
}

// wanted are the attributes of a queue: those of high-throughput FIFO, the longest retention and the largest messages. What
// only creation can set is in it where creating is true.
func (t *Transport) wanted(creating bool) map[string]string {
	m := map[string]string{
		"DeduplicationScope":     "messageGroup",
		"FifoThroughputLimit":    "perMessageGroupId",
		"MaximumMessageSize":     strconv.Itoa(t.cfg.messageBytes),
		"MessageRetentionPeriod": strconv.Itoa(int(maxRetention.Seconds())),
	}
	if creating {
		m["FifoQueue"] = "true"
		m["VisibilityTimeout"] = strconv.Itoa(int(t.cfg.lease.Seconds()))
	}
	return m
}

// vet refuses a queue on which promises cannot be kept, and mends or reports what is merely not as it should be.
func (t *Transport) vet(ctx context.Context, q *queue, settings Queue) error {
	if q.attrs["FifoQueue"] != "true" {
		return fmt.Errorf("queue %q is a standard queue, which keeps no order: use a FIFO queue", q.name)
	}
	var errs []error
	if n, has := redriveAfter(q.attrs["RedrivePolicy"]); has && n < leastReceives && !settings.AllowNativeRedrive {
		errs = append(errs, fmt.Errorf("queue %q has a redrive policy of %d receives: handing back unhandled messages counts as a receive, and a message that "+
			"SQS moves away lets later ones of its key pass; raise maxReceiveCount to %d or more, or set AllowNativeRedrive", q.name, n, leastReceives))
	}
	if drift := t.drift(q); len(drift) > 0 {
		if t.cfg.alter && q.ours {
			errs = append(errs, t.mend(ctx, q, drift))
		} else {
			errs = append(errs, t.report(ctx, q, drift))
		}
	}
	return errors.Join(errs...)
}

// drift returns the attributes that differ, as they should be. More than is needed is no drift.
func (t *Transport) drift(q *queue) map[string]string {
	drift := make(map[string]string)
	for name, want := range t.wanted(false) {
		got := q.attrs[name]
		if a, err := strconv.Atoi(got); err == nil {
			if b, err := strconv.Atoi(want); err == nil && a >= b {
				continue
			}
		}
		if got != want {
			drift[name] = want
		}
	}
	return drift
}

func (t *Transport) mend(ctx context.Context, q *queue, drift map[string]string) error {
	if _, err := t.client.SetQueueAttributes(ctx, &awssqs.SetQueueAttributesInput{QueueUrl: &q.url, Attributes: drift}); err != nil {
		return fmt.Errorf("alter queue %q: %w", q.name, ofCall(err))
	}
	maps.Copy(q.attrs, drift)
	return nil
}

func (t *Transport) report(ctx context.Context, q *queue, drift map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(drift)) {
		t.cfg.log.WarnContext(ctx, "queue differs from what it should be", "queue", q.name, "attribute", name, "is", q.attrs[name], "want", drift[name])
	}
	if n, err := strconv.Atoi(q.attrs["MaximumMessageSize"]); err == nil && n < t.cfg.messageBytes {
		return fmt.Errorf("queue %q takes messages of up to %d bytes, this transport promises %d: set WithMessageBytes(%d), or alter the queue",
			q.name, n, t.cfg.messageBytes, n)
	}
	return nil
}

// redriveAfter reads the number of receives of a redrive policy; both forms in which it is written are in use.
func redriveAfter(policy string) (int, bool) {
	if policy == "" {
		return 0, false
	}
	var p struct {
		MaxReceiveCount json.RawMessage `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		return 0, true // not readable: do not trust it
	}
	n, err := strconv.Atoi(strings.Trim(string(p.MaxReceiveCount), `"`))
	return n, err != nil || n > 0
}

// Drift returns how the queue of a topic and group differs from what it should be, by attribute: what it is and what is
// wanted. The queue must exist. It changes nothing.
func (t *Transport) Drift(ctx context.Context, topic, group string) (map[string][2]string, error) {
	name, err := t.cfg.queueName(topic, group)
	if err != nil {
		return nil, fmt.Errorf("sqs: drift: %w", err)
	}
	out, err := t.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return nil, fmt.Errorf("sqs: drift: look up queue %q: %w", name, err)
	}
	q := &queue{name: name, url: aws.ToString(out.QueueUrl)}
	if err := t.readAttributes(ctx, q); err != nil {
		return nil, fmt.Errorf("sqs: drift: %w", err)
	}
	drift := make(map[string][2]string)
	for attr, want := range t.drift(q) {
		drift[attr] = [2]string{q.attrs[attr], want}
	}
	return drift, nil
}

// subscribeTo checks that the group will get the topic's messages, and returns its queue.
func (t *Transport) subscribeTo(ctx context.Context, tg topicGroup) (*queue, error) {
	if t.isClosed() {
		return nil, transport.ErrClosed
	}
	fansOut := t.cfg.fansOut(tg.topic)
	if !fansOut {
		if group, err := t.cfg.groupOf(tg.topic); err == nil && group != tg.group {
			return nil, fmt.Errorf("topic %q is sent straight to the queue of group %q, group %q would get nothing: use WithFanout", tg.topic, group, tg.group)
		}
	}
	unlock, err := t.resolve(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	q, err := t.queue(ctx, tg)
	if err == nil && fansOut {
		err = t.feed(ctx, tg, q)
	}
	if err != nil {
		return nil, ended(ctx, err)
	}
	return q, nil
}

func (t *Transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

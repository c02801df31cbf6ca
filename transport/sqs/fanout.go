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
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/seambus/seambus/event"
)

// sendToTopic returns the call that publishes to an SNS topic.
func sendToTopic(client TopicClient, arn string) func(context.Context, []*batchItem) (map[int]error, error) {
	return func(ctx context.Context, items []*batchItem) (map[int]error, error) {
		entries := make([]snstypes.PublishBatchRequestEntry, len(items))
		for i, it := range items {
			p, _ := it.value.(*packed)
			entries[i] = snstypes.PublishBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), Message: &p.body, MessageGroupId: &p.group, MessageDeduplicationId: &p.dedup,
				MessageAttributes: snsAttributes(p.attrs),
			}
		}
		out, err := client.PublishBatch(ctx, &awssns.PublishBatchInput{TopicArn: &arn, PublishBatchRequestEntries: entries})
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

func snsAttributes(attrs []attribute) map[string]snstypes.MessageAttributeValue {
	m := make(map[string]snstypes.MessageAttributeValue, len(attrs))
	for _, a := range attrs {
		v := snstypes.MessageAttributeValue{DataType: aws.String(a.dataType())}
		if a.binary {
			v.BinaryValue = a.bytes
		} else {
			v.StringValue = aws.String(a.text)
		}
		m[a.name] = v
	}
	return m
}

// topicARN finds a topic's SNS topic, or creates it where that is configured. The turn to resolve is held.
func (t *Transport) topicARN(ctx context.Context, topic string) (string, error) {
	t.mu.Lock()
	arn := t.arns[topic]
	t.mu.Unlock()
	if arn != "" {
		return arn, nil
	}
	name := topic + ".fifo"
	arn, err := t.findTopic(ctx, name)
	if err == nil && arn == "" {
		arn, err = t.createTopic(ctx, name)
	}
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arns[topic] = arn
	return arn, nil
}

func (t *Transport) findTopic(ctx context.Context, name string) (string, error) {
	var next *string
	for {
		out, err := t.cfg.topics.ListTopics(ctx, &awssns.ListTopicsInput{NextToken: next})
		if err != nil {
			return "", fmt.Errorf("look up SNS topic %q: %w", name, ofCall(err))
		}
		for _, found := range out.Topics {
			if arn := deref(found.TopicArn); strings.HasSuffix(arn, ":"+name) {
				return arn, nil
			}
		}
		if next = out.NextToken; deref(next) == "" {
			return "", nil
		}
	}
}

func (t *Transport) createTopic(ctx context.Context, name string) (string, error) {
	if !t.cfg.create {
		return "", fmt.Errorf("SNS topic %q does not exist: create it, or let the transport do it with WithCreate", name)
	}
	out, err := t.cfg.topics.CreateTopic(ctx, &awssns.CreateTopicInput{
		Name: &name, Attributes: map[string]string{"FifoTopic": "true", "FifoThroughputScope": "MessageGroup"},
	})
	if err != nil {
		return "", fmt.Errorf("create SNS topic %q: %w", name, ofCall(err))
	}
	return deref(out.TopicArn), nil
}

// feed makes the topic's messages come to the queue: the queue lets the topic in, and is subscribed to it.
func (t *Transport) feed(ctx context.Context, tg topicGroup, q *queue) error {
	arn, err := t.topicARN(ctx, tg.topic)
	if err != nil {
		return err
	}
	if err := t.letIn(ctx, q, arn); err != nil {
		return err
	}
	return t.attach(ctx, q, arn, t.cfg.queues[tg].Types)
}

// policyTries bounds how often a policy is merged that others change at the same time.
const policyTries = 5

// letIn adds a statement for the topic to the queue's policy and leaves all others as they are. It reads the policy again
// afterwards: there is no conditional write, and another member may have merged its own at the same time.
func (t *Transport) letIn(ctx context.Context, q *queue, arn string) error {
	for range policyTries {
		merged, err := mergePolicy(q.attrs["Policy"], q.arn, arn)
		switch {
		case err != nil:
			return fmt.Errorf("policy of queue %q: %w", q.name, err)
		case merged == "":
			return nil
		case !q.ours || !t.cfg.alter && !t.cfg.create:
			t.cfg.log.WarnContext(ctx, "queue's policy does not name its SNS topic", "queue", q.name, "sns_topic", arn)
			return nil
		}
		if err := t.mend(ctx, q, map[string]string{"Policy": merged}); err != nil {
			return err
		}
		if err := t.readAttributes(ctx, q); err != nil {
			return err
		}
	}
	return fmt.Errorf("policy of queue %q: others keep changing it; the statement for %q does not stay", q.name, arn)
}

type policy struct {
	Version   string            `json:"Version"`
	ID        string            `json:"Id,omitempty"`
	Statement []json.RawMessage `json:"Statement"`
}

// mergePolicy returns the policy with a statement for the topic, or nothing if it has one.
func mergePolicy(current, queueARN, topicARN string) (string, error) {
	p := policy{Version: "2012-10-17"}
	if current != "" {
		if err := json.Unmarshal([]byte(current), &p); err != nil {
			return "", fmt.Errorf("is not understood, and must not be overwritten: %w", err)
		}
	}
	sid := "seambus" + hash(topicARN)[:16]
	for _, raw := range p.Statement {
		var s struct {
			Sid string `json:"Sid"` //nolint:tagliatelle // the name that AWS gave it
		}
		if json.Unmarshal(raw, &s) == nil && s.Sid == sid {
			return "", nil
		}
	}
	statement, err := json.Marshal(map[string]any{
		"Sid": sid, "Effect": "Allow", "Principal": map[string]string{"Service": "sns.amazonaws.com"},
		"Action": "sqs:SendMessage", "Resource": queueARN,
		"Condition": map[string]any{"ArnEquals": map[string]string{"aws:SourceArn": topicARN}},
	})
	if err != nil {
		return "", err
	}
	p.Statement = append(p.Statement, statement)
	merged, err := json.Marshal(p)
	return string(merged), err
}

// attach subscribes the queue to the topic. Several members may do so at once: SNS takes it for one subscription.
func (t *Transport) attach(ctx context.Context, q *queue, arn string, types []string) error {
	want, err := subscriptionAttributes(types)
	if err != nil {
		return err
	}
	found, err := t.findSubscription(ctx, q, arn)
	if err != nil {
		return err
	}
	if found != "" {
		return t.checkSubscription(ctx, q, found, want)
	}
	if !t.cfg.create {
		return fmt.Errorf("queue %q is not subscribed to %q: subscribe it with RawMessageDelivery, or let the transport do it with WithCreate", q.name, arn)
	}
	_, err = t.cfg.topics.Subscribe(ctx, &awssns.SubscribeInput{
		TopicArn: &arn, Protocol: aws.String("sqs"), Endpoint: &q.arn, Attributes: want, ReturnSubscriptionArn: true,
	})
	if err != nil {
		return fmt.Errorf("subscribe queue %q to %q: %w", q.name, arn, ofCall(err))
	}
	return nil
}

// subscriptionAttributes asks for messages as they were published, and only of the types that the group handles.
func subscriptionAttributes(types []string) (map[string]string, error) {
	want := map[string]string{"RawMessageDelivery": "true"}
	if len(types) == 0 {
		return want, nil
	}
	sorted := slices.Sorted(slices.Values(types))
	filter, err := json.Marshal(map[string][]string{event.MetaType: sorted})
	want["FilterPolicy"] = string(filter)
	return want, err
}

func (t *Transport) findSubscription(ctx context.Context, q *queue, arn string) (string, error) {
	var next *string
	for {
		out, err := t.cfg.topics.ListSubscriptionsByTopic(ctx, &awssns.ListSubscriptionsByTopicInput{TopicArn: &arn, NextToken: next})
		if err != nil {
			return "", fmt.Errorf("list the subscriptions of %q: %w", arn, ofCall(err))
		}
		for _, s := range out.Subscriptions {
			if deref(s.Endpoint) == q.arn {
				return deref(s.SubscriptionArn), nil
			}
		}
		if next = out.NextToken; deref(next) == "" {
			return "", nil
		}
	}
}

// checkSubscription mends a subscription that differs, or says so. One without raw delivery would wrap every message.
func (t *Transport) checkSubscription(ctx context.Context, q *queue, subscription string, want map[string]string) error {
	out, err := t.cfg.topics.GetSubscriptionAttributes(ctx, &awssns.GetSubscriptionAttributesInput{SubscriptionArn: &subscription})
	if err != nil {
		return fmt.Errorf("read the subscription of queue %q: %w", q.name, ofCall(err))
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		is := out.Attributes[name]
		if is == want[name] {
			continue
		}
		switch {
		case t.cfg.alter && q.ours:
			_, err := t.cfg.topics.SetSubscriptionAttributes(ctx, &awssns.SetSubscriptionAttributesInput{
				SubscriptionArn: &subscription, AttributeName: &name, AttributeValue: aws.String(want[name]),
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("alter the subscription of queue %q: %w", q.name, ofCall(err)))
			}
		case name == "RawMessageDelivery":
			errs = append(errs, fmt.Errorf("the subscription of queue %q has RawMessageDelivery %q, which wraps every message: set it to true, or use WithAlter", q.name, is))
		default:
			t.cfg.log.WarnContext(ctx, "subscription differs from what it should be", "queue", q.name, "attribute", name, "is", is, "want", want[name])
		}
	}
	return errors.Join(errs...)
}

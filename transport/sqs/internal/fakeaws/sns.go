package fakeaws

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// maxPublish is what SNS takes for one call.
const maxPublish = 256 << 10

type topic struct {
	arn           string
	attrs         map[string]string
	subscriptions []*subscription
}

type subscription struct {
	arn      string
	endpoint string
	attrs    map[string]string
}

// SNS is the broker's other service; its method names overlap with those of SQS nowhere, its types do.
type SNS struct{ *Broker }

// CreateTopic makes or finds a FIFO topic.
func (s SNS) CreateTopic(ctx context.Context, in *sns.CreateTopicInput, _ ...func(*sns.Options)) (*sns.CreateTopicOutput, error) {
	if err, _ := s.begin(ctx, "CreateTopic"); err != nil {
		return nil, err
	}
	if in.Attributes["FifoTopic"] != "true" || !strings.HasSuffix(aws.ToString(in.Name), ".fifo") {
		return nil, Error("InvalidParameter", "only FIFO topics here")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	arn := "arn:aws:sns:" + region + ":" + account + ":" + aws.ToString(in.Name)
	if s.topics[arn] == nil {
		s.topics[arn] = &topic{arn: arn, attrs: maps.Clone(in.Attributes)}
	}
	return &sns.CreateTopicOutput{TopicArn: &arn}, nil
}

// ListTopics returns all topics, two to a page.
func (s SNS) ListTopics(ctx context.Context, in *sns.ListTopicsInput, _ ...func(*sns.Options)) (*sns.ListTopicsOutput, error) {
	if err, _ := s.begin(ctx, "ListTopics"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &sns.ListTopicsOutput{}
	after := aws.ToString(in.NextToken)
	for _, arn := range slices.Sorted(maps.Keys(s.topics)) {
		if arn <= after {
			continue
		}
		if len(out.Topics) == 2 {
			out.NextToken = out.Topics[1].TopicArn
			break
		}
		out.Topics = append(out.Topics, snstypes.Topic{TopicArn: aws.String(arn)})
	}
	return out, nil
}

func (s SNS) topic(arn *string) (*topic, error) {
	if t := s.topics[aws.ToString(arn)]; t != nil {
		return t, nil
	}
	return nil, &snstypes.NotFoundException{Message: aws.String("no topic " + aws.ToString(arn))}
}

// PublishBatch puts each entry into every subscribed queue that lets the topic in and whose filter lets the entry pass.
func (s SNS) PublishBatch(ctx context.Context, in *sns.PublishBatchInput, _ ...func(*sns.Options)) (*sns.PublishBatchOutput, error) {
	before, after := s.begin(ctx, "PublishBatch")
	if before != nil {
		return nil, before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.topic(in.TopicArn)
	if err != nil {
		return nil, err
	}
	if err := checkBatch(len(in.PublishBatchRequestEntries)); err != nil {
		return nil, err
	}
	total := 0
	for _, e := range in.PublishBatchRequestEntries {
		total += size(aws.ToString(e.Message), toSQS(e.MessageAttributes))
	}
	if total > maxPublish {
		return nil, Error("BatchRequestTooLong", "%d bytes in all", total)
	}
	out := &sns.PublishBatchOutput{}
	for _, e := range in.PublishBatchRequestEntries {
		m := message{
			body: aws.ToString(e.Message), attrs: toSQS(e.MessageAttributes), group: aws.ToString(e.MessageGroupId), dedup: aws.ToString(e.MessageDeduplicationId),
		}
		if code := s.entryFault("PublishBatch", m.group, m.text()); code != "" {
			out.Failed = append(out.Failed, snstypes.BatchResultErrorEntry{Id: e.Id, Code: &code, SenderFault: code != "InternalError"})
			continue
		}
		s.fanOut(t, &m)
		out.Successful = append(out.Successful, snstypes.PublishBatchResultEntry{Id: e.Id, MessageId: aws.String(s.next())})
	}
	return out, after
}

func (s SNS) fanOut(t *topic, m *message) {
	for _, sub := range t.subscriptions {
		for _, q := range s.queues {
			if q.arn != sub.endpoint || !strings.Contains(q.attrs["Policy"], t.arn) || !passes(sub.attrs["FilterPolicy"], m) {
				continue
			}
			c := *m
			if sub.attrs["RawMessageDelivery"] != "true" {
				c.body, c.attrs = `{"Type":"Notification"}`, nil
			}
			if refuse(q, &c) == "" { // SNS gives up on what the queue does not take
				s.put(q, &c)
			}
		}
	}
}

func passes(filter string, m *message) bool {
	var f map[string][]string
	if filter == "" || json.Unmarshal([]byte(filter), &f) != nil {
		return true
	}
	for name, values := range f {
		if !slices.Contains(values, aws.ToString(m.attrs[name].StringValue)) {
			return false
		}
	}
	return true
}

func toSQS(attrs map[string]snstypes.MessageAttributeValue) map[string]sqstypes.MessageAttributeValue {
	m := make(map[string]sqstypes.MessageAttributeValue, len(attrs))
	for name, a := range attrs {
		m[name] = sqstypes.MessageAttributeValue{DataType: a.DataType, StringValue: a.StringValue, BinaryValue: a.BinaryValue}
	}
	return m
}

// Subscribe attaches a queue; once for each.
func (s SNS) Subscribe(ctx context.Context, in *sns.SubscribeInput, _ ...func(*sns.Options)) (*sns.SubscribeOutput, error) {
	if err, _ := s.begin(ctx, "Subscribe"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.topic(in.TopicArn)
	if err != nil {
		return nil, err
	}
	for _, sub := range t.subscriptions {
		if sub.endpoint == aws.ToString(in.Endpoint) {
			return &sns.SubscribeOutput{SubscriptionArn: &sub.arn}, nil
		}
	}
	sub := &subscription{arn: t.arn + ":" + s.next(), endpoint: aws.ToString(in.Endpoint), attrs: maps.Clone(in.Attributes)}
	t.subscriptions = append(t.subscriptions, sub)
	return &sns.SubscribeOutput{SubscriptionArn: &sub.arn}, nil
}

// ListSubscriptionsByTopic returns a topic's subscriptions.
func (s SNS) ListSubscriptionsByTopic(ctx context.Context, in *sns.ListSubscriptionsByTopicInput, _ ...func(*sns.Options)) (*sns.ListSubscriptionsByTopicOutput, error) {
	if err, _ := s.begin(ctx, "ListSubscriptionsByTopic"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.topic(in.TopicArn)
	if err != nil {
		return nil, err
	}
	out := &sns.ListSubscriptionsByTopicOutput{}
	for _, sub := range t.subscriptions {
		out.Subscriptions = append(out.Subscriptions, snstypes.Subscription{SubscriptionArn: &sub.arn, Endpoint: &sub.endpoint, TopicArn: &t.arn})
	}
	return out, nil
}

func (s SNS) subscription(arn *string) (*subscription, error) {
	for _, t := range s.topics {
		for _, sub := range t.subscriptions {
			if sub.arn == aws.ToString(arn) {
				return sub, nil
			}
		}
	}
	return nil, &snstypes.NotFoundException{Message: aws.String("no subscription " + aws.ToString(arn))}
}

// GetSubscriptionAttributes returns a subscription's attributes.
func (s SNS) GetSubscriptionAttributes(ctx context.Context, in *sns.GetSubscriptionAttributesInput, _ ...func(*sns.Options)) (*sns.GetSubscriptionAttributesOutput, error) {
	if err, _ := s.begin(ctx, "GetSubscriptionAttributes"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, err := s.subscription(in.SubscriptionArn)
	if err != nil {
		return nil, err
	}
	return &sns.GetSubscriptionAttributesOutput{Attributes: maps.Clone(sub.attrs)}, nil
}

// SetSubscriptionAttributes sets one attribute.
func (s SNS) SetSubscriptionAttributes(ctx context.Context, in *sns.SetSubscriptionAttributesInput, _ ...func(*sns.Options)) (*sns.SetSubscriptionAttributesOutput, error) {
	if err, _ := s.begin(ctx, "SetSubscriptionAttributes"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, err := s.subscription(in.SubscriptionArn)
	if err != nil {
		return nil, err
	}
	sub.attrs[aws.ToString(in.AttributeName)] = aws.ToString(in.AttributeValue)
	return &sns.SetSubscriptionAttributesOutput{}, nil
}

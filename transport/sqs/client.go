package sqs

import (
	"context"

	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Client is the part of SQS that the transport calls. *sqs.Client of the AWS SDK implements it, with credentials, endpoint
// and region from wherever its configuration has them. It must be safe for concurrent use.
type Client interface {
	GetQueueUrl(ctx context.Context, in *awssqs.GetQueueUrlInput, opts ...func(*awssqs.Options)) (*awssqs.GetQueueUrlOutput, error)
	CreateQueue(ctx context.Context, in *awssqs.CreateQueueInput, opts ...func(*awssqs.Options)) (*awssqs.CreateQueueOutput, error)
	GetQueueAttributes(ctx context.Context, in *awssqs.GetQueueAttributesInput, opts ...func(*awssqs.Options)) (*awssqs.GetQueueAttributesOutput, error)
	SetQueueAttributes(ctx context.Context, in *awssqs.SetQueueAttributesInput, opts ...func(*awssqs.Options)) (*awssqs.SetQueueAttributesOutput, error)
	SendMessageBatch(ctx context.Context, in *awssqs.SendMessageBatchInput, opts ...func(*awssqs.Options)) (*awssqs.SendMessageBatchOutput, error)
	ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, opts ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(ctx context.Context, in *awssqs.DeleteMessageBatchInput, opts ...func(*awssqs.Options)) (*awssqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(ctx context.Context, in *awssqs.ChangeMessageVisibilityBatchInput, opts ...func(*awssqs.Options)) (*awssqs.ChangeMessageVisibilityBatchOutput, error)
}

// TopicClient is the part of SNS that the transport calls where a topic has several groups. *sns.Client of the AWS SDK
// implements it. It must be safe for concurrent use.
type TopicClient interface {
	CreateTopic(ctx context.Context, in *awssns.CreateTopicInput, opts ...func(*awssns.Options)) (*awssns.CreateTopicOutput, error)
	ListTopics(ctx context.Context, in *awssns.ListTopicsInput, opts ...func(*awssns.Options)) (*awssns.ListTopicsOutput, error)
	PublishBatch(ctx context.Context, in *awssns.PublishBatchInput, opts ...func(*awssns.Options)) (*awssns.PublishBatchOutput, error)
	Subscribe(ctx context.Context, in *awssns.SubscribeInput, opts ...func(*awssns.Options)) (*awssns.SubscribeOutput, error)
	ListSubscriptionsByTopic(ctx context.Context, in *awssns.ListSubscriptionsByTopicInput, opts ...func(*awssns.Options)) (*awssns.ListSubscriptionsByTopicOutput, error)
	GetSubscriptionAttributes(ctx context.Context, in *awssns.GetSubscriptionAttributesInput, opts ...func(*awssns.Options)) (*awssns.GetSubscriptionAttributesOutput, error)
	SetSubscriptionAttributes(ctx context.Context, in *awssns.SetSubscriptionAttributesInput, opts ...func(*awssns.Options)) (*awssns.SetSubscriptionAttributesOutput, error)
}

var (
	_ Client      = (*awssqs.Client)(nil)
	_ TopicClient = (*awssns.Client)(nil)
)

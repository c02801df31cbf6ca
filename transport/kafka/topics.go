package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// right is a bit of what the broker says a principal may do.
type right int32

const (
	rightRead  right = 1 << 3
	rightWrite right = 1 << 4
	unknownSet       = math.MinInt32 // the broker does not say
)

func (r right) String() string {
	if r == rightRead {
		return "read"
	}
	return "write"
}

// unknownPatience is how long a topic may be unknown before it counts as missing.
const unknownPatience = 2 * time.Second

// topicInfo is what is known of a topic that exists.
type topicInfo struct {
	maxBytes int // of a batch
	rights   int32
}

func (i *topicInfo) allows(r right) bool { return i.rights == unknownSet || right(i.rights)&r != 0 }

// topic returns what is known of a topic, asking the broker at first. A missing topic is created where that is configured.
func (t *Transport) topic(ctx context.Context, name string) (*topicInfo, error) {
	if info, ok := t.topics.Load(name); ok {
		return info.(*topicInfo), nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var info *topicInfo
	describe := func() (err error) { info, err = t.describe(ctx, name); return err }
	patience := unknownPatience
	err := describe()
	if errors.Is(err, kerr.UnknownTopicOrPartition) && t.cfg.create != nil {
		err, patience = t.createTopic(ctx, name), requestTimeout
		if err == nil {
			err = kerr.UnknownTopicOrPartition // until a broker knows it
		}
	}
	if kerr.IsRetriable(err) {
		err = persist(ctx, patience, describe)
	}
	if err != nil {
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = fmt.Errorf("%w; create it, or allow its creation by WithTopicCreation", err)
		}
		return nil, fmt.Errorf("topic %q: %w", name, classify(err))
	}
	t.topics.Store(name, info)
	return info, nil
}

func (t *Transport) describe(ctx context.Context, name string) (*topicInfo, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("the broker described %d topics, want 1", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	return &topicInfo{maxBytes: t.batchLimit(ctx, name), rights: resp.Topics[0].AuthorizedOperations}, nil
}

// batchLimit returns the topic's own limit, or the transport's where that is lower or the topic's is not to be had.
func (t *Transport) batchLimit(ctx context.Context, name string) int {
	limit := t.cfg.maxBytes + batchRoom
	configs, err := kadm.NewClient(t.client).DescribeTopicConfigs(ctx, name)
	if err != nil {
		return limit
	}
	for _, rc := range configs {
		for _, c := range rc.Configs {
			if c.Key != "max.message.bytes" || c.Value == nil {
				continue
			}
			if n, err := strconv.Atoi(*c.Value); err == nil && n >= 512 {
				limit = min(limit, n)
			}
		}
	}
	return limit
}

func (t *Transport) createTopic(ctx context.Context, name string) error {
	c := *t.cfg.create
	if c.Partitions == 0 {
		c.Partitions = -1
	}
	if c.Replication == 0 {
		c.Replication = -1
	}
	settings := map[string]*string{}
	switch {
	case c.Retention < 0:
		settings["retention.ms"] = new("-1")
	case c.Retention > 0:
		settings["retention.ms"] = new(strconv.FormatInt(c.Retention.Milliseconds(), 10))
	}
	resp, err := kadm.NewClient(t.client).CreateTopic(ctx, c.Partitions, c.Replication, settings, name)
	if err == nil {
		err = resp.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create: %w %s", err, resp.ErrMessage)
	}
	return nil
}

// persist calls fn until it succeeds or fails for good. A topic that a broker does not know counts as transient for as long
// as patience lasts, since brokers learn of new topics one after the other.
func persist(ctx context.Context, patience time.Duration, fn func() error) error {
	for began := time.Now(); ; {
		err := fn()
		if !kerr.IsRetriable(err) || errors.Is(err, kerr.UnknownTopicOrPartition) && time.Since(began) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// checkTopic fails unless the topic exists and may be used in this way.
func (t *Transport) checkTopic(ctx context.Context, name string, r right) error {
	info, err := t.topic(ctx, name)
	if err == nil && !info.allows(r) {
		err = fmt.Errorf("topic %q: this principal may not %v it: %w", name, r, kerr.TopicAuthorizationFailed)
	}
	return err
}

// checkGroup fails unless this principal may be a member of the group.
func (t *Transport) checkGroup(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := persist(ctx, 0, func() error { return t.describeGroup(ctx, group) })
	if err != nil {
		return fmt.Errorf("group %q: %w", group, classify(err))
	}
	return nil
}

func (t *Transport) describeGroup(ctx context.Context, group string) error {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	req.IncludeAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	for i := range resp.Groups {
		g := &resp.Groups[i]
		err := kerr.ErrorForCode(g.ErrorCode)
		switch {
		case errors.Is(err, kerr.GroupIDNotFound): // it will be made
		case err != nil:
			return err
		case g.AuthorizedOperations != unknownSet && right(g.AuthorizedOperations)&rightRead == 0:
			return fmt.Errorf("this principal may not read by it: %w", kerr.GroupAuthorizationFailed)
		}
	}
	return nil
}

// batchMax tells the producer what a batch of topic may take.
func (t *Transport) batchMax(topic string) int32 {
	if info, ok := t.topics.Load(topic); ok {
		return int32(info.(*topicInfo).maxBytes)
	}
	return int32(t.cfg.maxBytes + batchRoom)
}

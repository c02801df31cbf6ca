package kafka_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

func TestMain(m *testing.M) {
	// The plain watermill-kafka service of the interoperability test brings a metrics library whose ticker runs for ever.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// brokersVar names the real cluster that the tests run on instead of the one in this process.
const brokersVar = "SEAMBUS_TEST_KAFKA_BROKERS"

// cluster is what a test runs on.
type cluster struct {
	brokers []string
	fake    *kfake.Cluster // nil on a real one
	admin   *kadm.Client
}

var topics atomic.Int64

// newCluster returns a real cluster if there is one, or else one in this process.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	if real := os.Getenv(brokersVar); real != "" {
		return withAdmin(t, &cluster{brokers: strings.Split(real, ",")})
	}
	return newFake(t)
}

// newFake returns a cluster in this process, for what a real one cannot be made to do.
func newFake(t testing.TB, opts ...kfake.Opt) *cluster {
	t.Helper()
	fake, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100 * time.Millisecond), kfake.DefaultNumPartitions(4),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return withAdmin(t, &cluster{brokers: fake.ListenAddrs(), fake: fake})
}

func withAdmin(t testing.TB, c *cluster) *cluster {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	c.admin = kadm.NewClient(client)
	return c
}

// topic makes a topic that nobody else uses.
func (c *cluster) topic(ctx context.Context, partitions int32) (string, error) {
	name := fmt.Sprintf("t%d-%d", time.Now().UnixNano()%1e9, topics.Add(1))
	resp, err := c.admin.CreateTopic(ctx, partitions, 1, nil, name)
	if err == nil {
		err = resp.Err
	}
	return name, err
}

func (c *cluster) mustTopic(t testing.TB, partitions int32) string {
	t.Helper()
	name, err := c.topic(t.Context(), partitions)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// quick makes rebalances and crashes quick.
func quick(opts ...kafka.Option) []kafka.Option {
	return append([]kafka.Option{
		kafka.WithSessionTimeout(1500 * time.Millisecond), kafka.WithCommitInterval(50 * time.Millisecond),
		kafka.WithRevokeGrace(200 * time.Millisecond),
	}, opts...)
}

func (c *cluster) open(t testing.TB, opts ...kafka.Option) *kafka.Transport {
	t.Helper()
	tr, err := kafka.New(t.Context(), c.brokers, quick(opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// committed returns the group's committed offset, or -1.
func (c *cluster) committed(t testing.TB, group, topic string, partition int32) int64 {
	t.Helper()
	offsets, err := c.admin.FetchOffsets(context.WithoutCancel(t.Context()), group)
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := offsets.Lookup(topic, partition); ok {
		return o.At
	}
	return -1
}

// keyed returns a message called id on key.
func keyed(key, id string) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	if key != "" {
		msg.Metadata[event.MetaPartitionKey] = key
	}
	return msg
}

func publish(t testing.TB, tr transport.Transport, topic string, msgs ...*message.Message) {
	t.Helper()
	if err := tr.Publisher().Publish(topic, msgs...); err != nil {
		t.Fatal(err)
	}
}

func join(t testing.TB, tr transport.Transport, topic, group string, concurrency int) (transport.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: concurrency})
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return sub, msgs
}

const patience = 30 * time.Second

// next returns the next message.
func next(t testing.TB, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, open := <-msgs:
		if !open {
			t.Fatal("the channel was closed")
		}
		return m
	case <-time.After(patience):
		t.Fatal("no message came")
	}
	return nil
}

// expect fails the test unless the next message is called id.
func expect(t testing.TB, msgs <-chan *message.Message, id string) *message.Message {
	t.Helper()
	m := next(t, msgs)
	if m.UUID != id {
		t.Fatalf("got %s, want %s", m.UUID, id)
	}
	return m
}

// eventually waits for a fact.
func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !fact() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// settling is a transport whose Subscribe returns once the group has divided the topic: a broker takes its time over that,
// and whoever tests that members share must begin when they do.
type settling struct {
	*kafka.Transport
	cluster *cluster
}

func (s settling) Subscriber(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	sub, err := s.Transport.Subscriber(cfg)
	return settlingSubscriber{sub, s, cfg.Group}, err
}

type settlingSubscriber struct {
	transport.Subscriber
	settling settling
	group    string
}

func (s settlingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	msgs, err := s.Subscriber.Subscribe(ctx, topic)
	for deadline := time.Now().Add(patience); err == nil && !s.settling.cluster.divided(ctx, s.group, topic, s.settling.MemberID(s.group)); {
		if time.Sleep(10 * time.Millisecond); time.Now().After(deadline) {
			return nil, fmt.Errorf("group %s did not divide %s", s.group, topic)
		}
	}
	return msgs, err
}

// divided reports whether every member that wants the topic, this one among them, has a part of it, and all is given out.
func (c *cluster) divided(ctx context.Context, group, topic, member string) bool {
	described, err := c.admin.DescribeGroups(ctx, group)
	g := described[group]
	if err != nil || g.State != "Stable" {
		return false
	}
	all, joined := 0, false
	for _, m := range g.Members {
		wants, ok := m.Join.AsConsumer()
		if !ok || !slices.Contains(wants.Topics, topic) {
			continue
		}
		has, ok := m.Assigned.AsConsumer()
		part := 0
		for _, t := range has.Topics {
			if ok && t.Topic == topic {
				part = len(t.Partitions)
			}
		}
		if part == 0 {
			return false
		}
		all += part
		joined = joined || m.MemberID == member
	}
	details, err := c.admin.ListTopics(ctx, topic)
	return err == nil && joined && all == len(details[topic].Partitions)
}

// produce sends a record as a foreign producer would.
func (c *cluster) produce(t testing.TB, recs ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// records returns the first n records of a topic, as a foreign consumer reads them.
func (c *cluster) records(t testing.TB, topic string, n int) (recs []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(recs) < n && ctx.Err() == nil {
		recs = append(recs, client.PollFetches(ctx).Records()...)
	}
	if len(recs) != n {
		t.Fatalf("topic %s has %d records, want %d", topic, len(recs), n)
	}
	return recs
}

// reader joins a group of its own, which begins at the earliest record.
func (c *cluster) reader(t testing.TB, topic string) (transport.Subscriber, <-chan *message.Message) {
	t.Helper()
	return join(t, c.open(t), topic, fmt.Sprintf("reader-%d", topics.Add(1)), 1)
}

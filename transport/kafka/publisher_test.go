package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

// refuseProduce makes the fake cluster answer produce requests by verdict, for as long as it returns an error.
func refuseProduce(c *cluster, verdict func(n int64) error) {
	var n atomic.Int64
	c.fake.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		code, ok := errors.AsType[*kerr.Error](verdict(n.Add(1)))
		if !ok {
			return nil, nil, false
		}
		req := r.(*kmsg.ProduceRequest)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				part := kmsg.NewProduceResponseTopicPartition()
				part.Partition, part.ErrorCode = rp.Partition, code.Code
				topic.Partitions = append(topic.Partitions, part)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
}

// After a failure nothing later of the key is in the log: not of the same batch, not of a later one, not of a later wave.
func TestNothingOvertakesAFailedMessage(t *testing.T) {
	t.Parallel()
	for _, many := range []int{2, 300, 4_000, 12_000} { // a batch, several, all of a wave, several waves
		c := newFake(t)
		topic := c.mustTopic(t, 1)
		tr := c.open(t)
		publish(t, tr, topic, keyed("warm", "up"))
		refuseProduce(c, func(n int64) error {
			if n == 1 {
				return kerr.UnsupportedForMessageFormat
			}
			return nil
		})
		msgs := make([]*message.Message, many)
		for i := range msgs {
			msgs[i] = keyed("k", fmt.Sprint(i))
			msgs[i].Payload = make([]byte, 1000)
		}
		failed := transport.Failed(tr.Publisher().Publish(topic, msgs...), len(msgs))
		if !errors.Is(failed[0], kerr.UnsupportedForMessageFormat) || len(failed) != many {
			t.Errorf("of %d, %d failed, the first with %v; want all, with the broker's error", many, len(failed), failed[0])
		}
		c.records(t, topic, 1) // the warm-up's
	}
}

// What the broker refuses for one record's sake condemns that record alone.
func TestRefusedBatchIsSentPieceByPiece(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{kerr.InvalidRecord, kerr.MessageTooLarge} {
		c := newFake(t)
		topic := c.mustTopic(t, 1)
		tr := c.open(t)
		publish(t, tr, topic, keyed("warm", "up"))
		refuseProduce(c, func(n int64) error {
			if n <= 2 { // the batch of five, and the first of it alone
				return refusal
			}
			return nil
		})
		msgs := []*message.Message{keyed("a", "a1"), keyed("b", "b1"), keyed("a", "a2"), keyed("b", "b2"), keyed("c", "c1")}
		failed := transport.Failed(tr.Publisher().Publish(topic, msgs...), len(msgs))
		if len(failed) != 2 || !transport.Permanent(failed[0]) || !errors.Is(failed[2], transport.ErrSkipped) {
			t.Errorf("%v: failures %v, want a1 for good, and a2 skipped", refusal, failed)
		}
		var got []string
		for _, rec := range c.records(t, topic, 4)[1:] {
			got = append(got, string(rec.Value))
		}
		if fmt.Sprint(got) != "[b1 b2 c1]" {
			t.Errorf("%v: the log has %v", refusal, got)
		}
	}
}

func TestTopicsOwnLimitIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	name := fmt.Sprintf("small-%d", time.Now().UnixNano())
	limit := "2000"
	if _, err := c.admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &limit}, name); err != nil {
		t.Fatal(err)
	}
	tr := c.open(t)
	big := keyed("b", "big")
	big.Payload = make([]byte, 3000)
	msgs := []*message.Message{big}
	for i := range 100 { // more than one batch of what the topic takes
		msg := keyed("a", fmt.Sprintf("a%d", i))
		msg.Payload = make([]byte, 500)
		msgs = append(msgs, msg)
	}
	err := tr.Publisher().Publish(name, msgs...)
	failed := transport.Failed(err, len(msgs))
	le, ok := errors.AsType[*transport.LimitError](err)
	if len(failed) != 1 || !ok || le.Max != 2000 || !strings.Contains(err.Error(), name) {
		t.Errorf("got %v, want the big one refused and the topic's limit of 2000 named", err)
	}
}

// A context that ends while the broker is away ends the wait of its message and holds back what follows of its key. Others,
// in the same partition, go on.
func TestContextEndsTheWaitForABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	gate := new(kafka.Gate)
	tr := c.open(t, kafka.WithGate(gate))
	publish(t, tr, topic, keyed("k", "1"))
	gate.Shut()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	msgs := []*message.Message{keyed("k", "2"), keyed("k", "3"), keyed("l", "4"), keyed("l", "5")}
	msgs[0].SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- tr.Publisher().Publish(topic, msgs...) }()
	<-ctx.Done()
	gate.Open()
	failed := transport.Failed(<-result, len(msgs))
	if len(failed) != 2 || !errors.Is(failed[0], context.DeadlineExceeded) || !errors.Is(failed[1], transport.ErrSkipped) {
		t.Errorf("failures %v, want the first and its key's next", failed)
	}
	var got []string
	for _, rec := range c.records(t, topic, 3) {
		got = append(got, string(rec.Value))
	}
	if fmt.Sprint(got) != "[1 4 5]" {
		t.Errorf("the log has %v", got)
	}
}

// The same for calls with one message each, which share a producer.
func TestContextOfOneCallDoesNotFailAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	gate := new(kafka.Gate)
	tr := c.open(t, kafka.WithGate(gate))
	publish(t, tr, topic, keyed("k", "1"))
	gate.Shut()
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 20)
	for i := range cap(results) {
		msg := keyed(fmt.Sprint(i), fmt.Sprint(i))
		if i%2 == 0 {
			msg.SetContext(ctx)
		}
		go func() {
			err := tr.Publisher().Publish(topic, msg)
			if (i%2 == 0) != errors.Is(err, context.Canceled) {
				results <- fmt.Errorf("call %d: %w", i, err)
				return
			}
			results <- nil
		}()
	}
	cancel()
	gate.Open()
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func TestBrokerThatStaysAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	gate := new(kafka.Gate)
	tr := c.open(t, kafka.WithGate(gate), kafka.WithDeliveryTimeout(time.Second))
	publish(t, tr, topic, keyed("k", "1"))
	gate.Shut()
	err := tr.Publisher().Publish(topic, keyed("k", "2"))
	if !errors.Is(err, transport.ErrUnavailable) || transport.Permanent(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

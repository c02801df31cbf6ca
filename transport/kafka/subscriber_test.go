package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

func numbered(key string, n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = keyed(key, fmt.Sprintf("%s%d", key, i))
	}
	return msgs
}

// C16: what was not handled before the deadline of a shutdown is not committed, and comes again in its order.
func TestShutdownCommitsNothingUnhandled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	publish(t, c.open(t), topic, numbered("k", 7)...)
	sub, msgs := join(t, c.open(t), topic, topic, 4)
	for i := range 5 {
		expect(t, msgs, fmt.Sprintf("k%d", i)).Ack()
	}
	blocked := expect(t, msgs, "k5")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := sub.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain gave %v, want DeadlineExceeded", err)
	}
	if cause := context.Cause(blocked.Context()); !errors.Is(cause, transport.ErrShutdown) {
		t.Errorf("the handler was cancelled by %v, want ErrShutdown", cause)
	}
	blocked.Ack() // late
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	if at := c.committed(t, topic, topic, 0); at != 5 {
		t.Errorf("committed %d, want 5", at)
	}
	_, again := join(t, c.open(t), topic, topic, 4)
	expect(t, again, "k5").Ack()
	expect(t, again, "k6").Ack()
}

// C17: the committed offset does not pass work that is unfinished, and a crash repeats it.
func TestCommitNeverPassesUnfinishedWork(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	gate := new(kafka.Gate)
	crashing := c.open(t, kafka.WithGate(gate))
	var all []*message.Message
	for i := range 10 {
		all = append(all, keyed(fmt.Sprint(i), fmt.Sprintf("m%d", i)))
	}
	publish(t, crashing, topic, all...)
	_, msgs := join(t, crashing, topic, topic, 4)
	for range 10 {
		if m := next(t, msgs); m.UUID != "m1" {
			m.Ack()
		}
	}
	eventually(t, "offset 1 is committed", func() bool { return c.committed(t, topic, topic, 0) == 1 })
	gate.Shut()
	_, again := join(t, c.open(t), topic, topic, 1)
	expect(t, again, "m1").Ack()
	for i := 2; i < 10; i++ { // finished, but behind the watermark: at least once
		next(t, again).Ack()
	}
	eventually(t, "everything is committed", func() bool { return c.committed(t, topic, topic, 0) == 10 })
}

// C39: one script, the same trace as on every transport.
func TestRetryBlocksItsKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	tr := c.open(t)
	publish(t, tr, topic, keyed("k", "1"), keyed("k", "2"), keyed("k", "3"), keyed("l", "4"))
	_, msgs := join(t, tr, topic, topic, 8)
	trace, fails := "", 2
	for trace != "1,1,1,2,3," {
		m := next(t, msgs)
		if m.UUID == "4" {
			m.Ack()
			continue
		}
		trace += m.UUID + ","
		if m.UUID == "1" && fails > 0 {
			fails--
			m.Nack()
			continue
		}
		m.Ack()
		if len(trace) > 20 {
			t.Fatalf("trace %s, want 1,1,1,2,3", trace)
		}
	}
}

// One process is one member of its group, however many topics it takes from.
func TestOneMemberPerProcessAndGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	tr := c.open(t)
	group := fmt.Sprintf("one-%d", time.Now().UnixNano())
	var subs []transport.Subscriber
	var channels []<-chan *message.Message
	var names []string
	for range 3 {
		topic := c.mustTopic(t, 2)
		sub, msgs := join(t, tr, topic, group, 2)
		subs, channels, names = append(subs, sub), append(channels, msgs), append(names, topic)
	}
	for i, msgs := range channels {
		publish(t, tr, names[i], keyed("k", "before"))
		expect(t, msgs, "before").Ack()
	}
	members := func() int {
		described, err := c.admin.DescribeGroups(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		return len(described[group].Members)
	}
	if n := members(); n != 1 {
		t.Errorf("%d members, want 1", n)
	}
	if err := subs[0].Close(); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 3; i++ {
		publish(t, tr, names[i], keyed("k", "after"))
		expect(t, channels[i], "after").Ack()
	}
	_, again := join(t, tr, names[0], group, 2)
	publish(t, tr, names[0], keyed("k", "later"))
	expect(t, again, "later").Ack()
	for _, s := range subs {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A key that keeps failing holds up others of its partition only once WithMaxWaiting messages wait, and other partitions never.
func TestPartitionPausesBehindAFailingKey(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 2)
	const limit = 20
	tr := c.open(t, kafka.WithMaxWaiting(limit))
	a, b := keyOn(0), keyOn(1)
	publish(t, tr, topic, append(numbered(a, 500), keyed(keyOn(0, a), "beyond"))...)
	_, msgs := join(t, tr, topic, topic, 8)
	failing := next(t, msgs)
	eventually(t, "the partition is full", func() bool { return tr.Paused(topic, topic, 0) })
	if held := tr.Held(topic, topic, 0); held > 2*limit {
		t.Errorf("%d messages are held, want at most %d", held, 2*limit)
	}
	publish(t, tr, topic, keyed(b, "other"))
	expect(t, msgs, "other").Ack()
	failing.Ack()
	for i := 1; i < 500; i++ {
		m := next(t, msgs)
		if want := fmt.Sprintf("%s%d", a, i); m.UUID != want {
			if m.UUID != "beyond" {
				t.Fatalf("got %s, want %s", m.UUID, want)
			}
			i--
		}
		m.Ack()
		if m.UUID == fmt.Sprintf("%s499", a) {
			break
		}
	}
	eventually(t, "everything is committed", func() bool { return c.committed(t, topic, topic, 0) >= 500 })
}

// However far the others could go on, they stop WithMaxGap beyond the oldest unfinished message.
func TestPartitionPausesFarBeyondItsWatermark(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	const gap, batch = 50, 10
	tr := c.open(t, kafka.WithMaxGap(gap), kafka.WithMaxWaiting(batch))
	msgs := []*message.Message{keyed("slow", "slow")}
	for i := range 300 {
		msgs = append(msgs, keyed(fmt.Sprint(i), fmt.Sprint(i)))
	}
	publish(t, tr, topic, msgs...)
	_, out := join(t, tr, topic, topic, 4)
	slow := expect(t, out, "slow")
	passed := 0
	for {
		select {
		case m := <-out:
			m.Ack()
			passed++
			continue
		case <-time.After(time.Second):
		}
		break
	}
	if passed < gap-batch || passed > gap+batch {
		t.Errorf("%d went on beyond the slow one, want about %d", passed, gap)
	}
	slow.Ack()
	for range 300 - passed {
		next(t, out).Ack()
	}
}

// What settles while its partition is being revoked counts: the next member does not get it again.
func TestHandlersMaySettleDuringARevocation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 1)
	first := c.open(t, kafka.WithRevokeGrace(patience))
	publish(t, first, topic, numbered("k", 3)...)
	sub, msgs := join(t, first, topic, topic, 2)
	held := expect(t, msgs, "k0")
	other, err := first.Subscriber(transport.SubscriberConfig{Group: topic})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Subscribe(t.Context(), c.mustTopic(t, 1)); err != nil { // keeps the member when sub gives the topic up
		t.Fatal(err)
	}
	go first.Revoke(topic, topic)
	<-held.Context().Done()
	if cause := context.Cause(held.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
		t.Errorf("cancelled by %v, want ErrLeaseLost", cause)
	}
	held.Ack() // within the grace
	eventually(t, "the finished message is committed", func() bool { return c.committed(t, topic, topic, 0) == 1 })
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	_, again := join(t, c.open(t), topic, topic, 2)
	expect(t, again, "k1").Ack()
	expect(t, again, "k2").Ack()
}

// A log that was deleted and made anew is read from its beginning.
func TestTopicMadeAnewIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	topic := c.mustTopic(t, 1)
	tr := c.open(t)
	publish(t, tr, topic, numbered("k", 3)...)
	sub, msgs := join(t, tr, topic, topic, 2)
	for i := range 3 {
		expect(t, msgs, fmt.Sprintf("k%d", i)).Ack()
	}
	if err := sub.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	fresh := c.open(t)
	publish(t, fresh, topic, keyed("k", "new"))
	_, again := join(t, fresh, topic, topic, 2)
	expect(t, again, "new").Ack()
}

// A static member that comes back within its session is the same member, without a rebalance.
func TestStaticMemberComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	topic := c.mustTopic(t, 2)
	generation := func() (gen int32) {
		described, err := c.admin.DescribeGroups(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return int32(len(described[topic].Members))
	}
	for i := range 3 {
		tr, err := kafka.New(t.Context(), c.brokers, kafka.WithInstanceID("host-1"), kafka.WithSessionTimeout(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint(i)
		publish(t, tr, topic, keyed("k", id))
		_, msgs := join(t, tr, topic, topic, 1)
		expect(t, msgs, id).Ack()
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		if n := generation(); n != 1 {
			t.Errorf("%d members after it has gone, want it to be expected back", n)
		}
	}
}

// keyOn returns a key that is placed on partition p of two, and is none of not.
func keyOn(p int, not ...string) string { return kafka.KeyOn(p, 2, not...) }

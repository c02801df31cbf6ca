package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

func kafka(t *testing.T, opts ...memory.Option) *memory.Transport {
	t.Helper()
	return broker(t, append([]memory.Option{memory.WithStrict(memory.Kafka), memory.WithLease(10 * time.Second)}, opts...)...)
}

func TestKafkaKeysLieWhereTheJavaClientPlacesThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const partitions = 7
		b := kafka(t, memory.WithPartitions(partitions))
		_, msgs := join(t, b, "orders", "g", 4)
		for _, key := range []string{"21", "foobar", "abc", "a-little-bit-long-string"} {
			publish(t, b, "orders", keyed(key, key))
			m := expect(t, msgs, key)
			d, _ := transport.FromContext(m.Context())
			if want := partition.Of(key, partitions); int(d.Partition) != want {
				t.Errorf("key %q lies on partition %d, want %d", key, d.Partition, want)
			}
			m.Ack()
		}
	})
}

// C17: what is committed never passes an unfinished event, and a crash repeats everything beyond it.
func TestKafkaCommitsNothingBeyondTheUnfinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(1))
		_, dying := join(t, b, "orders", "g", 4)
		var msgs []*message.Message
		for i := range 6 {
			msgs = append(msgs, keyed(fmt.Sprint("k", i), fmt.Sprint(i)))
		}
		publish(t, b, "orders", msgs...)
		expect(t, dying, "0").Ack()
		expect(t, dying, "1") // is never finished
		for i := 2; i < 5; i++ {
			expect(t, dying, fmt.Sprint(i)).Ack()
		}
		synctest.Wait()
		if got := b.Committed("orders", "g"); got[0] != 1 {
			t.Fatalf("committed %d, want 1: number 1 is not finished", got[0])
		}
		b.Crash("g")
		_, next := join(t, b, "orders", "g", 1)
		began := time.Now()
		for i := 1; i < 6; i++ {
			m := <-next
			if m.UUID != fmt.Sprint(i) || deliveries(m) != 1 {
				t.Errorf("got %s at delivery %d, want %d at 1", m.UUID, deliveries(m), i)
			}
			if waited := time.Since(began); i == 1 && waited < 9*time.Second {
				t.Errorf("the dead member's partition moved after %v, before its session was over", waited)
			}
			m.Ack()
		}
		synctest.Wait()
		if got := b.Committed("orders", "g"); got[0] != 6 || b.Held() != 0 {
			t.Errorf("committed %d, held %d; want 6 and nothing", got[0], b.Held())
		}
	})
}

func TestKafkaRebalanceCancelsCommitsAndIgnoresLateAcks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(1))
		_, first := join(t, b, "orders", "g", 4)
		_, second := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"), keyed("b", "b1"), keyed("b", "b2"))
		finished, late := expect(t, first, "a1"), expect(t, first, "b1")
		finished.Ack() // at the last moment
		if n := b.Rebalance("orders", "g"); n != 1 {
			t.Fatalf("%d partitions were taken, want 1", n)
		}
		<-late.Context().Done()
		if cause := context.Cause(late.Context()); !errors.Is(cause, transport.ErrLeaseLost) {
			t.Errorf("cause = %v, want ErrLeaseLost", cause)
		}
		if got := b.Committed("orders", "g"); got[0] != 1 {
			t.Errorf("committed %d, want 1: a1 was finished before", got[0])
		}
		again := expect(t, second, "b1")
		late.Ack()
		if m := receive(second); m != nil {
			t.Fatalf("the late ack let %s pass", m.UUID)
		}
		again.Ack()
		expect(t, second, "b2").Ack()
		if m := receive(first); m != nil {
			t.Errorf("%s came to the member that has nothing any more", m.UUID)
		}
		if b.Rebalance("orders", "other") != 0 || b.Rebalance("other", "g") != 0 || broker(t).Rebalance("orders", "g") != 0 {
			t.Error("partitions of a group that has none")
		}
	})
}

// A member that joins or leaves moves no more partitions than it must: the handlers of the others go on.
func TestKafkaMembershipMovesAsLittleAsItCan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(4))
		_, first := join(t, b, "orders", "g", 8)
		held := make(map[int32]*message.Message)
		for i := 0; len(held) < 4; i++ {
			key := fmt.Sprint(i)
			if held[int32(partition.Of(key, 4))] == nil {
				publish(t, b, "orders", keyed(key, key))
				held[int32(partition.Of(key, 4))] = expect(t, first, key)
			}
		}
		lost := func() (n int) {
			synctest.Wait()
			for _, m := range held {
				if m.Context().Err() != nil {
					n++
				}
			}
			return n
		}
		sub, second := join(t, b, "orders", "g", 8)
		if n := lost(); n != 2 {
			t.Errorf("a second member took %d of 4 partitions, want 2", n)
		}
		for range 2 {
			if receive(second) == nil {
				t.Fatal("the second member did not get what is not committed")
			}
		}
		closeAll(t, sub)
		if n := lost(); n != 2 {
			t.Errorf("%d handlers lost their partition, want still 2", n)
		}
		for range 2 {
			if receive(first) == nil {
				t.Fatal("the first member did not get its partitions back")
			}
		}
	})
}

// What a key waited for before a rebalance does not hold up the new owner, though it be the same member.
func TestKafkaDelayEndsWithTheOwnership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t)
		_, msgs := join(t, b, "orders", "g", 4)
		publish(t, b, "orders", keyed("a", "a1"))
		m := expect(t, msgs, "a1")
		d, _ := transport.FromContext(m.Context())
		d.SetDelay(time.Hour)
		nacked := time.Now()
		m.Nack()
		m = <-msgs
		if waited := time.Since(nacked); waited != 5*time.Minute {
			t.Errorf("asked for an hour, came after %v, want MaxDelay", waited)
		}
		d, _ = transport.FromContext(m.Context())
		d.SetDelay(time.Minute)
		m.Nack()
		synctest.Wait()
		b.Rebalance("orders", "g")
		expect(t, msgs, "a1").Ack()
		time.Sleep(time.Hour)
		if m := receive(msgs); m != nil {
			t.Errorf("%s came again from the lanes of a lost partition", m.UUID)
		}
	})
}

// A partition pauses past 1,000 events behind failing keys; other partitions go on, and it goes on when the key does.
func TestKafkaPausesBehindFailingKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(2))
		failing, same, other := "0", "", ""
		for i := 1; same == "" || other == ""; i++ {
			if key := fmt.Sprint(i); partition.Of(key, 2) == partition.Of(failing, 2) {
				same = key
			} else {
				other = key
			}
		}
		_, msgs := join(t, b, "orders", "g", 8)
		publish(t, b, "orders", keyed(failing, "first"))
		first := expect(t, msgs, "first")
		d, _ := transport.FromContext(first.Context())
		d.SetDelay(time.Minute)
		first.Nack()
		synctest.Wait()
		for i := range 999 {
			publish(t, b, "orders", keyed(failing, fmt.Sprint(i)))
		}
		publish(t, b, "orders", keyed(same, "below the bound"))
		expect(t, msgs, "below the bound").Ack()
		publish(t, b, "orders", keyed(failing, "the last"), keyed(same, "beyond the bound"), keyed(other, "elsewhere"))
		expect(t, msgs, "elsewhere").Ack()
		if m := receive(msgs); m != nil {
			t.Fatalf("%s came from a paused partition", m.UUID)
		}
		var rest []string
		for m := range msgs { // after a minute
			rest = append(rest, m.UUID)
			if m.Ack(); len(rest) == 1002 {
				break
			}
		}
		if rest[0] != "first" || !slices.Contains(rest, "beyond the bound") {
			t.Errorf("got %s, …, without what the pause held back", rest[0])
		}
	})
}

// A partition pauses 10,000 events beyond the oldest unfinished one.
func TestKafkaPausesBeyondTheGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(1), memory.WithBuffer(20_000))
		_, msgs := join(t, b, "orders", "g", 2)
		publish(t, b, "orders", keyed("slow", "slow"))
		slow := expect(t, msgs, "slow")
		for i := range 10_005 {
			publish(t, b, "orders", keyed(fmt.Sprint(i%100), fmt.Sprint(i)))
		}
		for i := range 9_999 {
			expect(t, msgs, fmt.Sprint(i)).Ack()
		}
		if m := receive(msgs); m != nil {
			t.Fatalf("%s came beyond the gap", m.UUID)
		}
		slow.Ack()
		for i := 9_999; i < 10_005; i++ {
			expect(t, msgs, fmt.Sprint(i)).Ack()
		}
		synctest.Wait()
		if got := b.Committed("orders", "g"); got[0] != 10_006 {
			t.Errorf("committed %d, want all 10,006", got[0])
		}
	})
}

func TestKafkaSettlesOnceThoughItDeliversTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafka(t, memory.WithPartitions(1))
		_, msgs := join(t, b, "orders", "g", 2)
		settled := 0
		publish(t, b, "orders", keyed("a", "a1"))
		m := keyed("b", "b1")
		m.SetContext(transport.OnSettled(t.Context(), func() { settled++ }))
		publish(t, b, "orders", m)
		expect(t, msgs, "a1")
		expect(t, msgs, "b1").Ack()
		synctest.Wait()
		b.Rebalance("orders", "g")
		expect(t, msgs, "a1").Ack()
		expect(t, msgs, "b1").Ack()
		synctest.Wait()
		if settled != 1 {
			t.Errorf("settled %d times, want once", settled)
		}
	})
}

func ExampleWithStrict() {
	b := memory.New(memory.WithStrict(memory.Kafka), memory.WithPartitions(2))
	defer b.Close()
	caps := b.Capabilities()
	fmt.Println(caps.Name, caps.MaxDelay, caps.Limits.MessageBytes)
	// Output: memory/kafka 5m0s 1048576
}

func ExampleTransport_Rebalance() {
	b := memory.New(memory.WithStrict(memory.Kafka))
	defer b.Close()
	sub, _ := b.Subscriber(transport.SubscriberConfig{Group: "fulfillment"})
	msgs, _ := sub.Subscribe(context.Background(), "orders")
	_ = b.Publisher().Publish("orders", message.NewMessage("1", nil))
	m := <-msgs
	fmt.Println("partitions taken:", b.Rebalance("orders", "fulfillment"))
	<-m.Context().Done()
	fmt.Println(context.Cause(m.Context()))
	again := <-msgs
	fmt.Println("again:", again.UUID)
	again.Ack()
	// Output:
	// partitions taken: 4
	// lease lost
	// again: 1
}

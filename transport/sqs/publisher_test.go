package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

func TestOneCallSendsTenGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		var msgs []*message.Message
		for i := range 20 {
			msgs = append(msgs, keyed(fmt.Sprintf("k%d", i), fmt.Sprintf("m%d", i)))
		}
		publish(t, tr, msgs...)
		if n := b.Calls()["SendMessageBatch"]; n != 2 {
			t.Errorf("20 messages of 20 groups took %d calls, want 2", n)
		}
	})
}

func TestPublishersInManyGoroutinesShareBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("first", "first")) // finds the queue
		before := b.Calls()["SendMessageBatch"]
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				if err := tr.Publisher().Publish(topic, keyed(fmt.Sprint(i), fmt.Sprintf("m%d", i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := b.Calls()["SendMessageBatch"] - before; n != 3 {
			t.Errorf("30 publishers took %d calls, want 3", n)
		}
	})
}

func TestBatchesStayWithinTheTotalSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		var msgs []*message.Message
		for i := range 10 {
			m := keyed(fmt.Sprint(i), fmt.Sprintf("m%d", i))
			m.Payload = []byte(strings.Repeat("x", 300_000))
			msgs = append(msgs, m)
		}
		publish(t, tr, msgs...)
		if n := b.Calls()["SendMessageBatch"]; n != 4 {
			t.Errorf("10 messages of 300 kB took %d calls, want 4 of three each", n)
		}
	})
}

func TestAGroupsMessagesAreSentOneByOneInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"), keyed("a", "a3"))
		if got := b.Left(queue); !slices.Equal(got, []string{"a1", "b1", "a2", "a3"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

// An entry that fails for a while is repeated alone; its group waits, the others go on.
func TestAnEntryThatFailsIsRepeatedAloneWithoutReorderingItsGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		var mu sync.Mutex
		failures := 0
		b.Inject(fakeaws.Faults{Entry: func(_, _, body string) string {
			mu.Lock()
			defer mu.Unlock()
			if body == "a1" && failures < 3 {
				failures++
				return "InternalError"
			}
			return ""
		}})
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"), keyed("b", "b2"))
		if got := b.Left(queue); !slices.Equal(got, []string{"b1", "b2", "a1", "a2"}) {
			t.Errorf("queue has %v, want b to have gone on and a1 before a2", got)
		}
	})
}

func TestAnEntryThatIsRefusedIsNamedAndNothingLaterOfItsKeyIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		b.Inject(fakeaws.Faults{Entry: func(_, _, body string) string {
			if body == "a2" {
				return "InvalidParameterValue"
			}
			return ""
		}})
		err := tr.Publisher().Publish(topic, keyed("a", "a1"), keyed("a", "a2"), keyed("a", "a3"), keyed("b", "b1"))
		failed := transport.Failed(err, 4)
		if len(failed) != 2 || !errors.Is(failed[1], transport.ErrRefused) || !errors.Is(failed[2], transport.ErrSkipped) {
			t.Errorf("failures are %v, want a2 refused and a3 skipped", failed)
		}
		if got := b.Left(queue); !slices.Equal(got, []string{"a1", "b1"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

// Somebody else's later message of the key is not this call's to withhold.
func TestAnotherCallsMessagesGoOnAfterARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("x", "x"))
		b.Inject(fakeaws.Faults{Latency: time.Second, Entry: func(_, _, body string) string {
			if body == "a1" {
				return "InvalidParameterValue"
			}
			return ""
		}})
		first := make(chan error, 1)
		go func() { first <- tr.Publisher().Publish(topic, keyed("a", "a1"), keyed("a", "a2")) }()
		synctest.Wait()
		publish(t, tr, keyed("a", "a3"))
		if failed := transport.Failed(<-first, 2); len(failed) != 2 {
			t.Errorf("failures are %v", failed)
		}
		if got := b.Left(queue); !slices.Equal(got, []string{"x", "a3"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

// One bad entry must not take nine good ones with it where the broker refuses the whole call.
func TestARefusedCallIsTakenApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, refusesWhole{b, "a1"})
		err := tr.Publisher().Publish(topic, keyed("a", "a1"), keyed("b", "b1"), keyed("c", "c1"))
		failed := transport.Failed(err, 3)
		if len(failed) != 1 || !errors.Is(failed[0], transport.ErrRefused) {
			t.Errorf("failures are %v, want a1 alone", failed)
		}
		got := b.Left(queue)
		if slices.Sort(got); !slices.Equal(got, []string{"b1", "c1"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

func TestThrottlingIsWaitedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("x", "x"))
		var mu sync.Mutex
		calls := 0
		b.Inject(fakeaws.Faults{Call: func(string) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls <= 4 {
				return fakeaws.Error("RequestThrottled", "slow down")
			}
			return nil
		}})
		began := time.Now()
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
		if took := time.Since(began); took < 200*time.Millisecond {
			t.Errorf("four throttled calls were repeated within %v", took)
		}
		if got := b.Left(queue); !slices.Equal(got, []string{"x", "a1", "b1", "a2"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

func TestABrokerThatStaysAwayIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{
		fakeaws.Error("ExpiredToken", "the security token has expired"), fakeaws.Error("AccessDenied", "no"),
		fakeaws.Error("InternalFailure", "sorry"), errors.New("connection refused"),
	} {
		synctest.Test(t, func(t *testing.T) {
			b := fakeaws.New()
			tr := open(t, b)
			publish(t, tr, keyed("x", "x"))
			b.Inject(fakeaws.Faults{Call: func(string) error { return fault }})
			err := tr.Publisher().Publish(topic, keyed("a", "a1"), keyed("a", "a2"))
			failed := transport.Failed(err, 2)
			if !errors.Is(failed[0], transport.ErrUnavailable) || transport.Permanent(failed[0]) || !errors.Is(failed[1], transport.ErrSkipped) {
				t.Errorf("%v: failures are %v", fault, failed)
			}
			b.Inject(fakeaws.Faults{})
			publish(t, tr, keyed("a", "a1"), keyed("a", "a2"))
			if got := b.Left(queue); !slices.Equal(got, []string{"x", "a1", "a2"}) {
				t.Errorf("queue has %v", got)
			}
		})
	}
}

func TestAnEndpointThatHangsEndsWithTheCallersContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("x", "x"))
		b.Inject(fakeaws.Faults{Latency: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		one, two := keyed("a", "a1"), keyed("a", "a2")
		one.SetContext(ctx)
		two.SetContext(ctx)
		began := time.Now()
		err := tr.Publisher().Publish(topic, one, two)
		if !errors.Is(err, context.DeadlineExceeded) || len(transport.Failed(err, 2)) != 2 || time.Since(began) != 2*time.Second {
			t.Errorf("publish gave %v after %v", err, time.Since(began))
		}
		b.Inject(fakeaws.Faults{})
		publish(t, tr, keyed("a", "a1"))
		if got := b.Left(queue); !slices.Equal(got, []string{"x", "a1"}) {
			t.Errorf("queue has %v, want nothing of what was given up", got)
		}
	})
}

// The answer is lost, the call was not: the deduplication id keeps the repetition from being a second message.
func TestALostAnswerMakesNoDuplicate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("x", "x"))
		var once sync.Once
		b.Inject(fakeaws.Faults{Call: func(string) (err error) {
			once.Do(func() { err = fakeaws.LostAnswer() })
			return err
		}})
		publish(t, tr, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
		got := b.Left(queue)
		if slices.Sort(got); !slices.Equal(got, []string{"a1", "a2", "b1", "x"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

// C29: a replay keeps the id and is not taken for a producer's retry.
func TestARepetitionOnPurposePassesTheDeduplicationWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		replay := func(generation string) *message.Message {
			m := keyed("a", "a1")
			m.Metadata[event.MetaGeneration] = generation
			return m
		}
		publish(t, tr, keyed("a", "a1"), keyed("a", "a1"), replay("1"), replay("1"), replay("2"))
		if got := b.Left(queue); !slices.Equal(got, []string{"a1", "a1", "a1"}) {
			t.Errorf("queue has %v, want the event and two repetitions", got)
		}
	})
}

// Many publishers, random faults: every message that was reported as sent is there, each key in order.
func TestOrderAndCompletenessUnderRandomFaults(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr := open(t, b)
		publish(t, tr, keyed("x", "x/0"))
		var mu sync.Mutex
		rnd := rand.New(rand.NewPCG(seed, 1))
		chance := func(p float64) bool {
			mu.Lock()
			defer mu.Unlock()
			return rnd.Float64() < p
		}
		b.Inject(fakeaws.Faults{
			Latency: 5 * time.Millisecond,
			Call: func(string) error {
				switch {
				case chance(0.2):
					return fakeaws.Error("RequestThrottled", "slow down")
				case chance(0.1):
					return fakeaws.LostAnswer()
				}
				return nil
			},
			Entry: func(string, string, string) string {
				if chance(0.1) {
					return "InternalError"
				}
				return ""
			},
		})
		var wg sync.WaitGroup
		for k := range 12 {
			wg.Go(func() {
				for n := 0; n < 40; {
					err := tr.Publisher().Publish(topic, keyed(fmt.Sprint(k), fmt.Sprintf("%d/%d", k, n)), keyed(fmt.Sprint(k), fmt.Sprintf("%d/%d", k, n+1)))
					failed := transport.Failed(err, 2)
					for i := 0; i < 2 && failed[i] == nil; i++ {
						n++
					}
				}
			})
		}
		wg.Wait()
		next := make(map[string]int)
		for _, id := range b.Left(queue) {
			key, n, _ := strings.Cut(id, "/")
			if n != fmt.Sprint(next[key]) {
				t.Fatalf("key %s has %s, want %d", key, n, next[key])
			}
			next[key]++
		}
		for k := range 12 {
			if next[fmt.Sprint(k)] < 40 {
				t.Errorf("key %d has %d messages", k, next[fmt.Sprint(k)])
			}
		}
	})
}

func TestCloseRefusesWhatIsNotSentYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := fakeaws.New()
		tr, err := sqs.New(b, sqs.WithSoleGroup(group), sqs.WithCreate())
		if err != nil {
			t.Fatal(err)
		}
		publish(t, tr, keyed("x", "x"))
		b.Inject(fakeaws.Faults{Latency: time.Second})
		done := make(chan error, 1)
		go func() { done <- tr.Publisher().Publish(topic, keyed("a", "a1"), keyed("a", "a2")) }()
		time.Sleep(500 * time.Millisecond)
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		failed := transport.Failed(<-done, 2)
		if failed[0] != nil || !errors.Is(failed[1], transport.ErrClosed) {
			t.Errorf("failures are %v, want a1 sent and a2 refused", failed)
		}
		if got := b.Left(queue); !slices.Equal(got, []string{"x", "a1"}) {
			t.Errorf("queue has %v", got)
		}
	})
}

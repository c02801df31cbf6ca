package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

func TestAttemptsCountHandlerCallsNotDeliveries(t *testing.T) {
	t.Parallel()
	var seen []int
	store := middleware.NewMemoryAttempts()
	h := chain(func(m *message.Message) ([]*message.Message, error) {
		seen = append(seen, middleware.Attempt(m.Context()))
		return nil, errBoom
	}, mustRetry(middleware.RetryPolicy{MaxAttempts: 3}), middleware.Attempts(store))
	for i := range 3 {
		msg := newMessage("1")
		deliver(t.Context(), msg, 50*(i+1)) // a broker's count that is far off
		_, err := h(msg)
		if isExhausted(err) != (i == 2) {
			t.Errorf("delivery %d gave %v", i+1, err)
		}
	}
	if fmt.Sprint(seen) != "[1 2 3]" {
		t.Errorf("attempts %v, want 1 to 3", seen)
	}
}

func TestAttemptsAreForgottenAfterSuccess(t *testing.T) {
	t.Parallel()
	var seen []int
	h := chain(func(m *message.Message) ([]*message.Message, error) {
		seen = append(seen, middleware.Attempt(m.Context()))
		if len(seen) == 1 {
			return nil, errBoom
		}
		return nil, nil
	}, middleware.Attempts(middleware.NewMemoryAttempts()))
	for range 3 {
		_, _ = h(newMessage("1"))
	}
	if fmt.Sprint(seen) != "[1 2 1]" {
		t.Errorf("attempts %v, want 1, 2 and, after success, 1", seen)
	}
}

func TestAttemptsAreGivenBackByACutOffHandler(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{transport.ErrShutdown, transport.ErrLeaseLost} {
		store := middleware.NewMemoryAttempts()
		var seen []int
		for range 3 {
			ctx, cancel := context.WithCancelCause(t.Context())
			msg := newMessage("1")
			deliver(ctx, msg, 1)
			_, _ = chain(func(m *message.Message) ([]*message.Message, error) {
				seen = append(seen, middleware.Attempt(m.Context()))
				cancel(cause)
				return nil, m.Context().Err()
			}, middleware.Attempts(store))(msg)
		}
		if fmt.Sprint(seen) != "[1 1 1]" {
			t.Errorf("%v: attempts %v, want the first three times", cause, seen)
		}
	}
}

// The counts of a handler that kills its process are in the store: once they are spent the handler is not called again.
func TestSpentAttemptsCallTheHandlerNoMore(t *testing.T) {
	t.Parallel()
	store, dead, calls := middleware.NewMemoryAttempts(), new(letters), 0
	for range 3 { // three processes that died in the handler
		if _, err := store.Begin(t.Context(), middleware.Key{Group: "fulfillment", Source: "orders", ID: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	msg := newMessage("1")
	deliver(t.Context(), msg, 4)
	lasting := struct{ middleware.AttemptStore }{store} // which outlived them
	_, err := chain(failing(0, &calls), middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 3}),
		middleware.Attempts(lasting))(msg)
	if err != nil || calls != 0 || len(dead.all) != 1 || dead.all[0].Attempts != 3 || dead.all[0].Reason != middleware.ErrNoVerdict.Error() {
		t.Errorf("%v, %d calls, letters %+v", err, calls, dead.all)
	}
}

func TestDeadLetterSaysWhenTheFirstAttemptBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead, calls := new(letters), 0
		h := chain(failing(99, &calls), middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 3}),
			middleware.Attempts(middleware.NewMemoryAttempts()))
		began := time.Now()
		for n := range 3 {
			msg := newMessage("1")
			deliver(t.Context(), msg, n+1)
			_, _ = h(msg)
			time.Sleep(time.Hour) // virtual
		}
		if len(dead.all) != 1 || !dead.all[0].FirstAttempt.Equal(began) || !dead.all[0].Time.Equal(began.Add(2*time.Hour)) {
			t.Errorf("letters %+v, want the first attempt at %v", dead.all, began)
		}
	})
}

type brokenStore struct{ middleware.AttemptStore }

func (brokenStore) Begin(context.Context, middleware.Key) (int, error) { return 0, errBoom }

// A broken store is no reason to give an event up, however often it is delivered.
func TestBrokenStoreSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	dead, calls := new(letters), 0
	h := chain(failing(0, &calls), middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 2, Jitter: full}),
		middleware.Attempts(brokenStore{}))
	for n := range 5 {
		msg := newMessage("1")
		d := deliver(t.Context(), msg, n+1)
		if _, err := h(msg); !errors.Is(err, errBoom) || d.Delay() <= 0 {
			t.Errorf("delivery %d: %v with delay %v, want the store's error and a pause", n+1, err, d.Delay())
		}
	}
	if calls != 0 || len(dead.all) != 0 {
		t.Errorf("%d calls, %d letters; want none", calls, len(dead.all))
	}
}

func TestAttemptsCallNobodyUncounted(t *testing.T) {
	t.Parallel()
	calls := 0
	if _, err := chain(failing(0, &calls), middleware.Attempts(brokenStore{}))(newMessage("1")); !errors.Is(err, errBoom) || calls != 0 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func ExampleAttempts() {
	retry, err := middleware.Retry(middleware.RetryPolicy{InitialDelay: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	route(func(m *message.Message) ([]*message.Message, error) {
		fmt.Println("attempt", middleware.Attempt(m.Context()))
		if middleware.Attempt(m.Context()) < 2 {
			return nil, errors.New("not yet")
		}
		return nil, nil
	}, retry, middleware.Attempts(middleware.NewMemoryAttempts()))
	// Output:
	// attempt 1
	// attempt 2
}

// An event whose attempts are spent is not called any more, so however often its letter cannot be written, none is added.
func TestWaitingForALetterSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	store, dead, calls := middleware.NewMemoryAttempts(), &letters{err: errBoom}, 0
	h := chain(failing(99, &calls), middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 2}),
		middleware.Attempts(store))
	for n := range 5 {
		msg := newMessage("1")
		if deliver(t.Context(), msg, n+1); n == 4 {
			dead.err = nil
		}
		_, _ = h(msg)
	}
	if calls != 2 || len(dead.all) != 1 || dead.all[0].Attempts != 2 {
		t.Errorf("%d calls, letters %+v; want two attempts", calls, dead.all)
	}
}

// Messages without any id would all be one.
func TestMessagesWithoutAnIDAreNotCountedTogether(t *testing.T) {
	t.Parallel()
	calls := 0
	h := chain(failing(99, &calls), mustRetry(middleware.RetryPolicy{MaxAttempts: 2}), middleware.Attempts(middleware.NewMemoryAttempts()))
	for range 3 {
		msg := message.NewMessage("", nil)
		deliver(t.Context(), msg, 1)
		if _, err := h(msg); isExhausted(err) {
			t.Errorf("a first delivery gave %v", err)
		}
	}
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

// A message that a handler publishes with its own context, over a transport that keeps contexts, has attempts of its own.
func TestPublishedWithTheHandlersContextIsAnotherMessage(t *testing.T) {
	t.Parallel()
	retry, store := mustRetry(middleware.RetryPolicy{MaxAttempts: 5}), middleware.NewMemoryAttempts()
	var inner, after int
	child := chain(func(m *message.Message) ([]*message.Message, error) {
		inner = middleware.Attempt(m.Context())
		return nil, nil
	}, retry, middleware.Attempts(store))
	msg := newMessage("parent")
	for range 2 {
		deliver(t.Context(), msg, 1)
		_, _ = chain(func(m *message.Message) ([]*message.Message, error) {
			out := newMessage("child")
			out.SetContext(m.Context())
			if _, err := child(out); err != nil {
				t.Error(err)
			}
			after = middleware.Attempt(m.Context())
			return nil, errBoom
		}, retry, middleware.Attempts(store))(msg)
	}
	if inner != 1 || after != 2 {
		t.Errorf("the child's attempt %d and then the parent's %d, want 1 and 2", inner, after)
	}
}

// A handler may leave a goroutine behind that still asks.
func TestAttemptMayBeAskedAtAnyTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		retry := mustRetry(middleware.RetryPolicy{MaxAttempts: 3, InitialDelay: time.Second})
		_, _ = chain(func(m *message.Message) ([]*message.Message, error) {
			ctx := m.Context()
			go func() { time.Sleep(time.Second); _ = middleware.Attempt(ctx) }()
			return nil, errBoom
		}, retry, middleware.Attempts(middleware.NewMemoryAttempts()))(newMessage("1"))
		time.Sleep(time.Minute)
	})
}

// A handler that lost its lease in its last attempt and has not noticed yet is no reason to give the event up.
func TestUnnoticedCutSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	store, dead, calls := middleware.NewMemoryAttempts(), new(letters), 0
	links := []message.HandlerMiddleware{
		middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 2, Jitter: full}), middleware.Attempts(store),
	}
	msg := newMessage("1")
	deliver(t.Context(), msg, 1)
	_, _ = chain(failing(99, &calls), links...)(msg)

	ctx, lose := context.WithCancelCause(t.Context())
	slow := newMessage("1")
	deliver(ctx, slow, 2)
	_, _ = chain(func(m *message.Message) ([]*message.Message, error) {
		lose(transport.ErrLeaseLost)
		again := newMessage("1") // redelivered, while this one has not returned
		d := deliver(t.Context(), again, 3)
		if _, err := chain(failing(0, &calls), links...)(again); err == nil || d.Delay() <= 0 || len(dead.all) != 0 {
			t.Errorf("%v with delay %v, letters %v; want it to come again", err, d.Delay(), dead.all)
		}
		return nil, m.Context().Err()
	}, links...)(slow)

	last := newMessage("1")
	deliver(t.Context(), last, 4)
	if _, err := chain(failing(0, &calls), links...)(last); err != nil || calls != 2 || len(dead.all) != 0 {
		t.Errorf("%v, %d calls, letters %v", err, calls, dead.all)
	}
}

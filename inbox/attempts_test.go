package inbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

func TestAttemptsAreCountedPerEventAndOutliveTheProcess(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	begin := func(in *inbox.Inbox, id string, want int) {
		t.Helper()
		if n, err := in.BeginAttempt(t.Context(), group, "shop", id); n != want || err != nil {
			t.Errorf("attempt %d of %s, %v, want %d", n, id, err, want)
		}
	}
	begin(b.in, "e1", 1)
	begin(b.in, "e1", 2)
	begin(b.in, "e2", 1)

	later, err := inbox.New(openDB(t, b.path+pragmas, 1))
	if err != nil {
		t.Fatal(err)
	}
	begin(later, "e1", 3)
	for range 2 { // the second cut is one more than there are counts
		if err := later.GiveBackAttempt(t.Context(), group, "shop", "e2"); err != nil {
			t.Fatal(err)
		}
	}
	begin(later, "e2", 1)
	if err := later.GiveBackAttempt(t.Context(), group, "shop", "e1"); err != nil {
		t.Fatal(err)
	}
	begin(later, "e1", 3)
	for range 2 {
		if err := later.ForgetAttempts(t.Context(), group, "shop", "e1"); err != nil {
			t.Fatal(err)
		}
	}
	begin(later, "e1", 1)
}

func TestAttemptIsNotCountedInsideTheTransactionItCounts(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	err := b.handle(deliver(event.Envelope{ID: "e1"}), func(msg *message.Message) ([]*message.Message, error) {
		_, err := b.in.BeginAttempt(msg.Context(), group, "", "e1")
		if !errors.Is(err, inbox.ErrNested) {
			t.Errorf("begin: %v, want ErrNested", err)
		}
		return nil, b.in.ForgetAttempts(msg.Context(), group, "", "e1")
	})
	if !errors.Is(err, inbox.ErrNested) {
		t.Errorf("forget: %v, want ErrNested", err)
	}
}

// What became of failed attempts outlives the process that made them.
func TestAttemptsRememberTheirFailures(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	ctx := t.Context()
	if h, began, err := b.in.AttemptHistory(ctx, group, "shop", "e1"); err != nil || h != nil || !began.IsZero() {
		t.Errorf("before any attempt: %v, %v, %v", h, began, err)
	}
	before := time.Now().Add(-time.Second)
	for n := range 2 {
		if _, err := b.in.BeginAttempt(ctx, group, "shop", "e1"); err != nil {
			t.Fatal(err)
		}
		f := event.Failure{Attempt: n + 1, Time: time.Now().UTC(), Node: "host/1", Class: event.ClassTransient, Reason: "no <stock>"}
		if err := b.in.NoteFailure(ctx, group, "shop", "e1", f); err != nil {
			t.Fatal(err)
		}
	}
	h, began, err := b.in.AttemptHistory(ctx, group, "shop", "e1")
	if err != nil || len(h) != 2 || h[1].Attempt != 2 || h[1].Reason != "no <stock>" || began.Before(before) || began.After(h[0].Time) {
		t.Errorf("%+v, began %v, %v", h, began, err)
	}
	l := letter("e1", nil)
	l.History = h
	put(t, b.in, l)
	if diff := cmp.Diff(h, parked(t, b.in, inbox.Filter{})[0].History); diff != "" {
		t.Errorf("the letter's history (-put +read):\n%s", diff)
	}
}

package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/middleware"
)

// A failed attempt never counts as seen, whichever is outermost: three calls, one effect.
func TestDedupRemembersOnlySuccessInsideAndOutsideRetry(t *testing.T) {
	t.Parallel()
	for _, inside := range []bool{false, true} {
		t.Run(fmt.Sprintf("inside %t", inside), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				dedup := middleware.Dedup(middleware.NewMemoryDedup(time.Hour, 10))
				links := []message.HandlerMiddleware{dedup, mustRetry(middleware.RetryPolicy{})}
				if inside {
					links[0], links[1] = links[1], links[0]
				}
				h := chain(failing(2, &calls), links...)
				for range 3 { // the redeliveries after success are duplicates
					if _, err := h(newMessage("1")); err != nil {
						t.Error(err)
					}
				}
				if calls != 3 {
					t.Errorf("%d calls, want 2 failures and 1 success", calls)
				}
			})
		})
	}
}

func TestDedupSecondCopyWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for _, firstFails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			h := chain(func(*message.Message) ([]*message.Message, error) {
				n := calls.Add(1)
				time.Sleep(time.Second) // virtual: both copies are there before the first is done
				if firstFails && n == 1 {
					return nil, errBoom
				}
				return nil, nil
			}, middleware.Dedup(middleware.NewMemoryDedup(time.Hour, 10)))
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { _, _ = h(newMessage("1")) })
			}
			wg.Wait()
			want := int32(1)
			if firstFails {
				want = 2
			}
			if calls.Load() != want {
				t.Errorf("first fails %t: %d calls, want %d", firstFails, calls.Load(), want)
			}
		})
	}
}

func TestDedupGivesTheClaimBackOnPanicAndCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, calls := middleware.NewMemoryDedup(time.Hour, 10), 0
		h := chain(func(*message.Message) ([]*message.Message, error) {
			if calls++; calls == 1 {
				panic("first call")
			}
			return nil, nil
		}, middleware.Recover(), middleware.Dedup(store))
		for range 2 {
			_, _ = h(newMessage("1"))
		}
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
		k := middleware.Key{ID: "held"}
		if _, err := store.Claim(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := store.Claim(ctx, k); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Claim of a held key = %v", err)
		}
	})
}

func TestMessagesWithoutAnIDAreNobodysCopies(t *testing.T) {
	t.Parallel()
	calls := 0
	h := chain(failing(0, &calls), middleware.Dedup(middleware.NewMemoryDedup(time.Hour, 10)))
	for range 3 {
		if _, err := h(message.NewMessage("", []byte("x"))); err != nil {
			t.Error(err)
		}
	}
	if calls != 3 {
		t.Errorf("%d calls, want one for each message", calls)
	}
}

func TestMemoryDedupIsBoundedByTimeAndNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := middleware.NewMemoryDedup(time.Hour, 2)
		handled := func(id string) bool {
			k := middleware.Key{ID: id}
			was, err := store.Claim(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			if !was {
				store.Commit(k)
			}
			return was
		}
		for _, step := range []struct {
			id   string
			want bool
		}{{"a", false}, {"a", true}, {"b", false}, {"c", false}, {"c", true}, {"a", false}} {
			if got := handled(step.id); got != step.want {
				t.Errorf("%s handled before = %t", step.id, got)
			}
		}
		time.Sleep(time.Hour)
		if handled("c") {
			t.Error("c was remembered beyond its hour")
		}
	})
}

func ExampleDedup() {
	dedup := middleware.Dedup(middleware.NewMemoryDedup(time.Hour, 1000))
	print := func(*message.Message) ([]*message.Message, error) {
		fmt.Println("handled")
		return nil, nil
	}
	route(print, dedup)
	route(print, dedup) // the same event again
	// Output: handled
}

package crash_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seambus/seambus/internal/crash"
)

func TestAtCallsWhatTheContextAsksFor(t *testing.T) {
	t.Parallel()
	if err := crash.At(t.Context(), crash.Sent); err != nil {
		t.Errorf("At without a test = %v", err)
	}
	boom := errors.New("boom")
	var seen []crash.Point
	ctx := crash.With(t.Context(), func(_ context.Context, p crash.Point) error {
		if seen = append(seen, p); p == crash.Marked {
			return boom
		}
		return nil
	})
	for _, p := range crash.Points() {
		if err := crash.At(ctx, p); (p == crash.Marked) != errors.Is(err, boom) {
			t.Errorf("At(%s) = %v", p, err)
		}
	}
	if len(seen) != len(crash.Points()) {
		t.Errorf("saw %v", seen)
	}
}

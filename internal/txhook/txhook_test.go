package txhook_test

import (
	"testing"

	"github.com/seambus/seambus/internal/txhook"
)

func TestHooksFireOnceAndInOrder(t *testing.T) {
	t.Parallel()
	if txhook.After(t.Context(), func() { t.Error("called without an owner") }) {
		t.Error("After without an owner = true")
	}
	ctx, hooks := txhook.With(t.Context())
	got := ""
	for _, s := range []string{"a", "b"} {
		if !txhook.After(ctx, func() { got += s }) {
			t.Error("After = false")
		}
	}
	hooks.Fire()
	hooks.Fire()
	if got != "ab" {
		t.Errorf("fired %q", got)
	}
}

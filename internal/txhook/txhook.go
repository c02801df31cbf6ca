// Package txhook lets code that runs inside somebody else's transaction act once it has committed.
package txhook

import "context"

// Hooks collects what to do after one commit. It is used by one goroutine, as its transaction is.
type Hooks struct{ fns []func() }

type key struct{}

// With returns a context that carries new hooks. Whoever owns the transaction calls [Hooks.Fire] after its commit.
func With(ctx context.Context) (context.Context, *Hooks) {
	h := new(Hooks)
	return context.WithValue(ctx, key{}, h), h
}

// After arranges that fn runs after the commit of the transaction ctx belongs to. It reports false, and does nothing,
// where no owner will say when that is.
func After(ctx context.Context, fn func()) bool {
	h, ok := ctx.Value(key{}).(*Hooks)
	if ok {
		h.fns = append(h.fns, fn)
	}
	return ok
}

// Fire runs what was collected, once.
func (h *Hooks) Fire() {
	fns := h.fns
	h.fns = nil
	for _, fn := range fns {
		fn()
	}
}

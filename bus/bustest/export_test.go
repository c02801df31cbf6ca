package bustest

import (
	"testing"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// Wire returns t as a kit watches it, with nothing but the wire.
func Wire(t *memory.Transport) transport.Transport {
	return &wire{Transport: t, kit: &Kit{changed: make(chan struct{}, 1)}}
}

// Unwire returns the memory transport behind it.
func Unwire(t transport.Transport) *memory.Transport { return t.(*wire).Transport }

// Outcome is what a rehearsal left behind.
type Outcome struct{ *outcome }

// Rehearse runs a scenario that dies at p, or nowhere if it is empty.
func Rehearse(t *testing.T, p Point, scenario func(*testing.T, *Kit), opts ...Option) Outcome {
	t.Helper()
	return Outcome{rehearse(t, p, scenario, opts)}
}

// Check reports to tb what is wrong, compared with an undisturbed run.
func (o Outcome) Check(tb testing.TB, calm Outcome) { o.check(tb, calm.outcome) }

// Swap makes it look as if two acknowledgements had come in the other order.
func (o Outcome) Swap(i, j int) { o.acked[i], o.acked[j] = o.acked[j], o.acked[i] }

// Forget makes it look as if an acknowledgement had never come.
func (o Outcome) Forget(i int) { o.acked = append(o.acked[:i:i], o.acked[i+1:]...) }

// Repeat makes it look as if every effect had been committed once more.
func (o Outcome) Repeat() {
	for e := range o.effects {
		o.effects[e]++
	}
}

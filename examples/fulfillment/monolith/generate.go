package monolith

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/seambus/seambus/examples/fulfillment/contract"
)

// Generator makes orders that live side by side, the same for the same seed. A few of them go back a status, as orders do.
type Generator struct {
	rng  *rand.Rand
	seed uint64
	next int64
	most int64
	live []*life
	now  time.Time
}

type life struct {
	order   int64
	version uint64
	path    []string
}

// sideBySide is how many orders are under way at once.
const sideBySide = 200

// NewGenerator makes n orders.
func NewGenerator(seed uint64, n int) *Generator {
	return &Generator{
		rng: rand.New(rand.NewPCG(seed, 7)), seed: seed, next: 1, most: int64(n),
		now: time.Date(2026, 1, 2, 11, 0, 0, 0, time.UTC),
	}
}

// Next returns the next change as a line, and io.EOF after the last.
func (g *Generator) Next() (Line, error) {
	for len(g.live) < sideBySide && g.next <= g.most {
		g.live = append(g.live, &life{order: 1000 + g.next, path: g.path()})
		g.next++
	}
	if len(g.live) == 0 {
		return Line{}, io.EOF
	}
	i := g.rng.IntN(len(g.live))
	l := g.live[i]
	l.version++
	g.now = g.now.Add(time.Duration(g.rng.IntN(1000)) * time.Millisecond)
	e := contract.OrderStatusChanged{
		ID: fmt.Sprintf("%d-%d-%d", g.seed, l.order, l.version), OrderID: l.order, Status: l.path[0], Version: l.version,
		OccurredAt: g.now.Format(time.RFC3339),
	}
	if l.path = l.path[1:]; len(l.path) == 0 {
		g.live[i] = g.live[len(g.live)-1]
		g.live = g.live[:len(g.live)-1]
	}
	return Line{Event: e, ID: e.ID}, nil
}

// Close does nothing; it makes a Generator a source like an Input.
func (*Generator) Close() error { return nil }

func (g *Generator) path() []string {
	path := []string{"preparing", "ready", "picked_up", "delivered"}
	if g.rng.IntN(10) == 0 { // handed back by the driver
		path = []string{"preparing", "ready", "picked_up", "ready", "picked_up", "delivered"}
	}
	return path
}

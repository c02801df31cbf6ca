package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// exclusive is a producer that one call uses at a time, and that sends only while it is flushed.
type exclusive struct {
	*kgo.Client
	placing *placing
}

// placing knows which records of a call have no place yet. A client that meets a topic for the first time keeps records aside
// until it knows the topic's partitions. If it were flushed then, the first of them would be sent, and perhaps refused, while
// those behind them were still being handed on, and these would be sent all the same.
type placing struct {
	mu     sync.Mutex
	aside  map[*kgo.Record]struct{}
	sealed bool
	placed chan struct{} // closed when all are placed
}

// begin forgets the last call.
func (p *placing) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aside, p.sealed, p.placed = make(map[*kgo.Record]struct{}), false, make(chan struct{})
}

func (p *placing) add(r *kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aside[r] = struct{}{}
}

// all returns a channel that is closed once every record that was added has its place, or will never have one.
func (p *placing) all() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed = true
	if len(p.aside) == 0 {
		close(p.placed)
	}
	return p.placed
}

// done says that a record has its place, or was settled without one. The client calls it from wherever it is.
func (p *placing) done(r *kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.aside[r]; !ok {
		return
	}
	delete(p.aside, r)
	if p.sealed && len(p.aside) == 0 {
		close(p.placed)
	}
}

// OnProduceRecordPartitioned makes it one of the client's hooks.
func (p *placing) OnProduceRecordPartitioned(r *kgo.Record, _ int32) { p.done(r) }

package main

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/examples/fulfillment/report"
)

// maxSamples bounds the memory of latencies; beyond it every second one is dropped, and only each second taken from then on.
const maxSamples = 1 << 16

// clock measures from the monolith's commit to the service's.
type clock struct {
	delivered atomic.Int64

	mu        sync.Mutex
	committed map[string]time.Time
	samples   []time.Duration
	stride    int
	seen      int
}

func newClock() *clock { return &clock{committed: make(map[string]time.Time), stride: 1} }

// commits notes that the event is about to be committed; the difference is the length of a commit.
func (c *clock) commits(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committed[id] = time.Now()
}

// watch is middleware outside the service's transaction.
func (c *clock) watch(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		c.delivered.Add(1)
		out, err := next(msg)
		if err == nil {
			c.applied(msg.UUID)
		}
		return out, err
	}
}

func (c *clock) applied(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.committed[id]
	if !ok {
		return
	}
	delete(c.committed, id)
	if c.seen++; c.seen%c.stride != 0 {
		return
	}
	c.samples = append(c.samples, time.Since(at))
	if len(c.samples) == maxSamples {
		for i := range maxSamples / 2 {
			c.samples[i] = c.samples[2*i]
		}
		c.samples = c.samples[:maxSamples/2]
		c.stride *= 2
	}
}

func (c *clock) latency() report.Latency {
	c.mu.Lock()
	defer c.mu.Unlock()
	return report.Latencies(c.samples)
}

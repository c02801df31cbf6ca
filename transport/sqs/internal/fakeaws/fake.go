// Package fakeaws is SQS FIFO and SNS FIFO in one process, for tests: exact where order depends on it, with faults to inject,
// and at home in a testing/synctest bubble. What it does is what AWS documents: a group is locked while one of its messages
// is in flight, one receive brings up to ten messages of a group in order, a receipt handle is void once the message is
// visible again, and a deduplication id is taken for five minutes even if its message was deleted.
package fakeaws

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/aws/smithy-go"
)

const (
	region       = "eu-central-1"
	account      = "000000000000"
	dedupWindow  = 5 * time.Minute
	maxVisible   = 12 * time.Hour
	maxTotal     = 1 << 20
	maxEntries   = 10
	maxAttribute = 10
	maxLongPoll  = 20
)

// Broker is both services. The zero value is not usable; see [New].
type Broker struct {
	mu     sync.Mutex
	queues map[string]*queue
	topics map[string]*topic // by ARN
	calls  map[string]int
	serial int
	faults Faults
}

// Faults is what goes wrong, asked for before every call. Nil functions mean nothing does. They must be safe for concurrent
// use.
type Faults struct {
	// Latency passes before every call but the waiting of a receive.
	Latency time.Duration
	// Call fails a whole call, named as the SDK names it. Where it returns [LostAnswerError] the call takes effect and its answer is lost.
	Call func(op string) error
	// Entry fails one entry of a batch with a code; key is its group, or its receipt handle's message body.
	Entry func(op, group, body string) (code string)
}

// New returns a broker without queues.
func New() *Broker {
	return &Broker{queues: make(map[string]*queue), topics: make(map[string]*topic), calls: make(map[string]int)}
}

// Inject replaces the faults.
func (b *Broker) Inject(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = f
}

// Calls returns how often each operation was called.
func (b *Broker) Calls() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.calls)
}

// Error is an error as AWS gives it.
func Error(code, format string, args ...any) error {
	return &smithy.GenericAPIError{Code: code, Message: fmt.Sprintf(format, args...), Fault: smithy.FaultClient}
}

// LostAnswerError loses the answer of a call that took effect.
type LostAnswerError struct{ error }

// LostAnswer is a fault that lets the call take effect.
func LostAnswer() error { return LostAnswerError{Error("RequestTimeout", "the answer was lost")} }

// begin counts a call, lets its latency pass and returns its fault. The second result is returned when the call has
// taken effect.
func (b *Broker) begin(ctx context.Context, op string) (before, after error) {
	b.mu.Lock()
	b.calls[op]++
	f := b.faults
	b.mu.Unlock()
	if f.Latency > 0 {
		timer := time.NewTimer(f.Latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err(), nil
		}
	}
	if err := ctx.Err(); err != nil {
		return err, nil
	}
	if f.Call == nil {
		return nil, nil
	}
	err := f.Call(op)
	if late, ok := err.(LostAnswerError); ok { //nolint:errorlint // it is never wrapped
		return nil, late
	}
	return err, nil
}

func (b *Broker) entryFault(op, group, body string) string {
	if b.faults.Entry == nil {
		return ""
	}
	return b.faults.Entry(op, group, body)
}

func (b *Broker) next() string {
	b.serial++
	return fmt.Sprintf("%020d", b.serial)
}

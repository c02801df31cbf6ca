package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/errtext"
	"github.com/seambus/seambus/partition"
)

const (
	stopGrace   = 5 * time.Second // for publishing and writing to end after ctx
	settleGrace = time.Second     // for groups to acknowledge what was published, on a transport that is not durable
	maxBytes    = 64 << 20        // payload in memory
)

// item is a row in the relay's hands.
type item struct {
	row   *dialect.Row
	token int64
	bytes int
	drain bool // from the held rows of a blocked key, at epoch
	epoch int
	// sent and settled say, on a transport that is not durable, which half of publishing is done.
	sent, settled bool
}

// failure is an attempt whose outcome is to be written.
type failure struct {
	*item
	dialect.Failure
}

// relay is one Run. The reader (run) alone reads rows, claims, and writes all outcomes but success; the workers publish;
// the marker marks.
type relay struct {
	box   *Outbox
	log   *slog.Logger
	owner string
	lanes *partition.Lanes[*item]
	pub   message.Publisher
	gate  *gate
	poked chan struct{}
	stop  context.CancelFunc // as a killed process would

	mu         sync.Mutex
	flight     map[int64]*item    // read, and neither marked nor given back
	dropped    map[int64]struct{} // see watchDrops
	waiting    int                // of the flight, sent ones that only wait for groups to acknowledge them
	bytes      int
	keys       map[laneKey]*keyState
	due        dueHeap
	holds      []*item
	fails      []failure
	tokens     map[int]int64
	leaseUntil time.Time
	recheck    bool // a mark was refused: look at the leases
	hungry     bool // the reader waits for room
	crashed    error
	marks      []*item
	marked     chan struct{}
	newMarks   atomic.Int64

	read reading
}

// Run relays rows until ctx ends, then lets running publishes end, marks, gives up its leases, and returns nil. Trouble with the
// database or the broker is logged and waited out. A second Run of the same Outbox at the same time returns [ErrRunning].
// All goroutines have ended when it returns.
func (o *Outbox) Run(ctx context.Context) error {
	if !o.running.CompareAndSwap(false, true) {
		return fmt.Errorf("outbox: run %q: %w", o.cfg.name, ErrRunning)
	}
	defer o.running.Store(false)
	live, stop := context.WithCancel(ctx)
	defer stop()
	r := &relay{
		box: o, owner: event.NewID(), pub: o.transport.Publisher(), stop: stop,
		log:    o.cfg.log.With("outbox", o.cfg.name),
		lanes:  partition.NewLanes[*item](partition.LanesConfig{}),
		poked:  make(chan struct{}, 1),
		flight: make(map[int64]*item), keys: make(map[laneKey]*keyState), tokens: make(map[int]int64),
		marked: make(chan struct{}, 1),
	}
	r.gate = newGate(o.cfg.backoff, r.log, &o.count.paused)
	return r.run(live)
}

func (r *relay) run(ctx context.Context) error {
	// Publishing and writing outlive ctx for a moment, so that what was sent is marked.
	late, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var workers, marker sync.WaitGroup
	for range r.box.cfg.workers {
		workers.Go(func() { r.work(ctx, late) })
	}
	done := make(chan struct{})
	marker.Go(func() { r.mark(late, done) })
	workers.Go(func() { r.listen(ctx) })

	r.reader(ctx, late)
	if err := crash.At(ctx, crash.Stopping); err != nil {
		r.die(err)
	}

	grace := time.AfterFunc(stopGrace, cut)
	defer grace.Stop()
	if r.dead() != nil {
		cut()
	}
	workers.Wait()
	r.lanes.Close()
	r.awaitSettled(late)
	close(done)
	marker.Wait()
	r.box.count.unsettled.Store(0)
	r.box.count.paused.Store(false)
	if err := r.dead(); err != nil {
		return err
	}
	err := r.flush(late)
	if err == nil {
		err = r.box.store.Leave(late, r.owner)
	}
	if err != nil {
		r.log.Warn("relay could not give up its leases, they will expire", "error", errtext.Clean(err))
	}
	return nil
}

// awaitSettled gives groups a moment to acknowledge what was published, since what they have not will be sent again.
func (r *relay) awaitSettled(ctx context.Context) {
	if r.box.caps.Durable {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleGrace)
	defer cancel()
	for r.dead() == nil {
		r.mu.Lock()
		open := 0
		for _, it := range r.flight {
			if it.sent && !it.settled {
				open++
			}
		}
		r.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-r.poked:
		case <-ctx.Done():
			return
		}
	}
}

// poke makes the reader look again.
func (r *relay) poke() {
	select {
	case r.poked <- struct{}{}:
	default:
	}
}

// die stops the relay as a killed process would stop: nothing more is written.
func (r *relay) die(err error) {
	r.mu.Lock()
	if r.crashed == nil {
		r.crashed = err
	}
	r.mu.Unlock()
	r.stop()
}

func (r *relay) dead() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.crashed
}

// drop forgets an item: it is marked, given back, or another relay's. The lock is held.
func (r *relay) drop(it *item) {
	if r.flight[it.row.Seq] != it {
		return
	}
	delete(r.flight, it.row.Seq)
	if r.dropped != nil {
		r.dropped[it.row.Seq] = struct{}{}
	}
	if r.waits(it) {
		r.waiting--
	}
	r.bytes -= it.bytes
	r.box.count.unsettled.Store(int64(len(r.flight)))
	if r.hungry && r.room() > 0 {
		r.hungry = false
		r.poke()
	}
}

// waits reports whether nothing is left to do for the item but to wait for groups that have not acknowledged it.
func (r *relay) waits(it *item) bool { return it.sent && !it.settled && !r.box.caps.Durable }

// working reports whether rows are in the relay's hands that it has something to do for. The lock is held.
func (r *relay) working() bool { return len(r.flight) > r.waiting }

// room returns how many rows may be read. The lock is held.
func (r *relay) room() int {
	if r.bytes >= maxBytes {
		return 0
	}
	return min(r.box.cfg.batch, r.box.cfg.inFlight-len(r.flight))
}

package memory

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

// fifo is an SQS FIFO queue. Its lanes lock a key while anything of it is in flight, as SQS locks a message group.
type fifo struct {
	cfg   *config
	lanes *partition.Lanes[*received]

	mu       sync.Mutex
	inFlight map[*receipt]struct{}
	renewals int
}

// received is a message in the queue and how often it was received.
type received struct {
	*stored
	times int
}

func newFIFO(cfg *config) *fifo {
	return &fifo{
		cfg:      cfg,
		lanes:    partition.NewLanes[*received](partition.LanesConfig{MaxHeld: cfg.buffer}),
		inFlight: make(map[*receipt]struct{}),
	}
}

func (q *fifo) add(ctx context.Context, s *stored) error {
	return q.lanes.Add(ctx, s.key, &received{stored: s})
}

func (q *fifo) held() int      { return q.lanes.Len() }
func (q *fifo) rebalance() int { return 0 }

func (q *fifo) close() {
	q.lanes.Close()
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.inFlight {
		r.timer.Stop()
	}
}

// receive is the broker's: up to ten messages, of one key or of several, which are in flight from now on.
func (q *fifo) receive(ctx context.Context) ([]*receipt, error) {
	batch, err := q.lanes.TakeBatch(ctx, maxReceive)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	receipts := make([]*receipt, len(batch))
	for i, taken := range batch {
		taken.Item.times++
		r := &receipt{queue: q, taken: taken, times: taken.Item.times, at: now, visible: now.Add(q.cfg.lease)}
		r.timer = time.AfterFunc(q.cfg.lease, func() { q.timeout(r) })
		q.inFlight[r] = struct{}{}
		receipts[i] = r
	}
	return receipts, nil
}

// timeout makes a message visible whose lease nobody has renewed.
func (q *fifo) timeout(r *receipt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Now().Before(r.visible) {
		return // renewed while the timer was firing
	}
	if q.settle(r) {
		r.taken.Retry(0)
	}
}

// settle ends a receipt. It reports false if it had ended. The lock is held.
func (q *fifo) settle(r *receipt) bool {
	if _, ok := q.inFlight[r]; !ok {
		return false
	}
	delete(q.inFlight, r)
	r.timer.Stop()
	return true
}

// renew extends a lease from now on. It reports false if the lease is over, or would last for more than twelve hours in all.
func (q *fifo) renew(r *receipt) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	visible := time.Now().Add(q.cfg.lease)
	if _, ok := q.inFlight[r]; !ok || visible.Sub(r.at) > maxVisibility {
		return false
	}
	q.renewals++
	r.visible = visible
	r.timer.Reset(q.cfg.lease)
	return true
}

// remove deletes the message. It reports false if the receipt is not valid any more, or the call failed.
func (q *fifo) remove(r *receipt) bool {
	if q.cfg.ackFault != nil && q.cfg.ackFault(r.taken.Item.uuid) != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.settle(r) && r.taken.Done()
}

// show makes the message visible after a delay: at most 12 hours after it was received, in whole seconds.
func (q *fifo) show(r *receipt, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.settle(r) {
		return
	}
	delay = (delay + time.Second - 1).Truncate(time.Second)
	left := (maxVisibility - time.Since(r.at)).Truncate(time.Second)
	r.taken.Retry(max(min(delay, left), 0))
}

// receipt is a message in flight: what the broker gave out, and the claim of the worker that has it.
type receipt struct {
	queue   *fifo
	taken   *partition.Taken[*received]
	times   int
	at      time.Time // received
	visible time.Time // again, unless renewed
	timer   *time.Timer

	by    *receiver
	after *receipt // the next one of the same key in the same batch
}

func (r *receipt) message() (*stored, int, int32) { return r.taken.Item.stored, r.times, -1 }

func (r *receipt) live() bool { return r.by.holds(r) }

// done deletes the message. If that fails the lease runs out, and what follows must not overtake.
func (r *receipt) done() claim {
	r.by.forget(r)
	if !r.queue.remove(r) {
		r.by.giveBack(r.after)
		return nil
	}
	r.taken.Item.settle.groupDone()
	if r.after == nil {
		return nil
	}
	return r.after
}

func (r *receipt) retry(delay time.Duration) {
	r.by.forget(r)
	r.queue.show(r, delay)
	r.by.giveBack(r.after)
}

// back makes the message visible at once, and with it the rest of its key.
func (r *receipt) back(_ *subscription, cause error) {
	if errors.Is(cause, transport.ErrLeaseLost) {
		r.by.forget(r)
		r.by.giveBack(r.after)
		return
	}
	r.by.giveBack(r)
}

// expire ends the lease at the broker only: the member hears of it when it renews.
func (r *receipt) expire(*worker) {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if r.queue.settle(r) {
		r.taken.Retry(0)
	}
}

// receiver is one member of an SQS queue: it receives in batches, keeps one key's messages of a batch for one worker, and
// renews the leases of everything it holds.
type receiver struct {
	queue   *fifo
	sub     *subscription
	turn    chan struct{} // whose token is held by the worker that receives
	waiting chan *receipt // the first of each key: at most nine, since only an empty hand receives

	mu   sync.Mutex
	held map[*receipt]struct{}
	beat *time.Timer // while anything is held
	dead bool
}

func (q *fifo) open(sub *subscription) source {
	r := &receiver{
		queue: q, sub: sub,
		turn: make(chan struct{}, 1), waiting: make(chan *receipt, maxReceive-1),
		held: make(map[*receipt]struct{}),
	}
	r.turn <- struct{}{}
	return r
}

func (r *receiver) take(ctx context.Context) (claim, error) {
	select {
	case first := <-r.waiting:
		return first, nil
	default:
	}
	select {
	case first := <-r.waiting:
		return first, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.turn:
	}
	defer func() { r.turn <- struct{}{} }()
	select {
	case first := <-r.waiting: // received by whoever had the turn before
		return first, nil
	default:
	}
	batch, err := r.queue.receive(ctx)
	if err != nil {
		return nil, err
	}
	r.hold(batch)
	firsts := link(batch)
	for _, first := range firsts[1:] {
		r.waiting <- first
	}
	return firsts[0], nil
}

// link ties the messages of each key to each other, and returns the first ones. All is tied before any is handed out: from
// then on its worker looks for what comes after it.
func link(batch []*receipt) (firsts []*receipt) {
	for i, next := range batch {
		if i > 0 && next.taken.Key != "" && batch[i-1].taken.Key == next.taken.Key {
			batch[i-1].after = next
			continue
		}
		firsts = append(firsts, next)
	}
	return firsts
}

func (r *receiver) hold(batch []*receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range batch {
		one.by = r
		if !r.dead {
			r.held[one] = struct{}{}
		}
	}
	if r.beat == nil && !r.dead {
		r.beat = time.AfterFunc(r.queue.cfg.lease/3, r.renew)
	}
}

// renew is the heartbeat: it extends the leases of all that is held, and tells those that are lost.
func (r *receiver) renew() {
	r.mu.Lock()
	var lost []*receipt
	for one := range r.held {
		if !r.queue.renew(one) {
			delete(r.held, one)
			lost = append(lost, one)
		}
	}
	if len(r.held) > 0 && !r.dead {
		r.beat.Reset(r.queue.cfg.lease / 3)
	} else {
		r.beat = nil
	}
	r.mu.Unlock()
	for _, one := range lost { // a worker that does not have it yet asks whether it is live
		for i := range r.sub.workers {
			r.sub.workers[i].stopIf(one, transport.ErrLeaseLost)
		}
	}
}

func (r *receiver) holds(one *receipt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.held[one]
	return ok
}

// forget ends the renewals of a receipt. The last one stops the heartbeat.
func (r *receiver) forget(one *receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, one)
	if len(r.held) == 0 && r.beat != nil && r.beat.Stop() {
		r.beat = nil
	}
}

// giveBack makes a receipt's message visible at once, and all that follow it in its key. The dead give nothing back.
func (r *receiver) giveBack(one *receipt) {
	for ; one != nil; one = one.after {
		r.forget(one)
		if !r.isDead() {
			r.queue.show(one, 0)
		}
	}
}

func (r *receiver) isDead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead
}

func (r *receiver) release() {
	for {
		select {
		case one := <-r.waiting:
			r.giveBack(one)
		default:
			return
		}
	}
}

// leave has nothing to do: SQS knows no membership, and what was held is given back by then.
func (r *receiver) leave() {}

// die ends the renewals: leases run out one by one.
func (r *receiver) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	clear(r.held)
	if r.beat != nil && r.beat.Stop() {
		r.beat = nil
	}
}

// Package drill proves the promises on a database: it runs the whole path from the order to the consumer's effect, lets one
// thing go wrong, and asks the tables afterwards.
package drill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/bus"
	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// The drills.
const (
	Rollback      = "rollback"       // every third order is rolled back after its event was recorded
	Outage        = "outage"         // the broker is away for a while
	RelayCrash    = "relay-crash"    // the relay is killed between publish and mark
	ConsumerCrash = "consumer-crash" // the consumer is killed between commit and ack
)

// Names returns all drills.
func Names() []string { return []string{Rollback, Outage, RelayCrash, ConsumerCrash} }

const (
	keys     = 40
	writers  = 4
	crashes  = 3 // of the relay
	every    = 7 // of how many events one meets its consumer's end
	patience = 60 * time.Second
)

// Config is what to do.
type Config struct {
	Name   string
	Orders int
	// For is how long an outage lasts; it is divided by Scale.
	For   time.Duration
	Scale int
	// Broker wraps the transport, so that a test sees a drill fail.
	Broker func(transport.Transport) transport.Transport
}

// Result is what a drill found. Durations are of an order's transaction, before and while the broker was away.
type Result struct {
	Drill      string   `json:"drill"`
	Created    int64    `json:"created"`
	Recorded   int64    `json:"recorded"`
	Published  int64    `json:"published"`
	Duplicates int64    `json:"duplicates"`
	Effect     int64    `json:"effect"`
	Lost       int64    `json:"lost"`
	OutOfOrder int64    `json:"out_of_order"`
	Faults     int64    `json:"faults"`
	P99Before  float64  `json:"order_p99_before_ms,omitempty"`
	P99During  float64  `json:"order_p99_during_ms,omitempty"`
	Broken     []string `json:"broken"`
}

// String is the line for people.
func (r *Result) String() string {
	s := fmt.Sprintf("%s: orders created %d · recorded %d · published after recovery %d · duplicates %d · consumer effect %d · lost %d · out of order %d",
		r.Drill, r.Created, r.Recorded, r.Published, r.Duplicates, r.Effect, r.Lost, r.OutOfOrder)
	if r.P99During > 0 {
		s += fmt.Sprintf("\n  order path p99: %.2f ms before the outage, %.2f ms during it", r.P99Before, r.P99During)
	}
	return strings.Join(append([]string{s}, r.Broken...), "\n  BROKEN: ")
}

type placed struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	N   int    `json:"n"`
}

func (placed) EventType() string      { return "drill.placed" }
func (p placed) EventID() string      { return p.ID }
func (p placed) PartitionKey() string { return p.Key }

// path is everything between an order and its effect.
type path struct {
	cfg    Config
	tables *dialect.Drill
	broker *broker
	box    *outbox.Outbox
	in     *inbox.Inbox
	bus    *bus.Bus
	topic  *event.Topic
	faults atomic.Int64
}

// Run carries a drill out on db, which must be empty and the drill's own.
func Run(ctx context.Context, db *sql.DB, cfg Config) (*Result, error) {
	p, err := newPath(ctx, db, cfg)
	if err != nil {
		return nil, fmt.Errorf("drill %s: %w", cfg.Name, err)
	}
	r, err := p.run(ctx)
	if err = errors.Join(err, p.broker.Close()); err != nil {
		return nil, fmt.Errorf("drill %s: %w", cfg.Name, err)
	}
	return r, nil
}

func newPath(ctx context.Context, db *sql.DB, cfg Config) (p *path, err error) {
	cfg.Scale = max(cfg.Scale, 1)
	p = &path{cfg: cfg, topic: event.NewTopic("drill", placed{})}
	if p.tables, err = dialect.OpenDrill(ctx, db); err != nil {
		return nil, err
	}
	p.broker = &broker{Transport: memory.New()}
	var t transport.Transport = p.broker
	if cfg.Broker != nil {
		t = cfg.Broker(t)
	}
	scaled := func(d, least time.Duration) time.Duration { return max(d/time.Duration(cfg.Scale), least) }
	p.box, err = outbox.New(db, t, outbox.WithLeaseTTL(scaled(10*time.Second, 500*time.Millisecond)),
		outbox.WithBackoff(scaled(500*time.Millisecond, 5*time.Millisecond), scaled(5*time.Minute, time.Second)),
		outbox.WithBatch(max(cfg.Orders/20, 1)))
	if err == nil {
		p.in, err = inbox.New(db)
	}
	if err == nil {
		p.bus, err = bus.New(p.broker.Transport, bus.WithInbox(p.in))
	}
	if err != nil {
		return nil, err
	}
	bus.Handle(p.bus, p.topic, "drill", func(ctx context.Context, e placed) error {
		return p.tables.Effect(ctx, inbox.Tx(ctx), e.ID, e.Key, e.N)
	}, bus.WithMiddleware(p.consumer))
	return p, nil
}

// consumer is middleware outside the inbox's transaction: the consumer is gone once that is committed, and the broker delivers
// again what it has not acknowledged.
func (p *path) consumer(next message.HandlerFunc) message.HandlerFunc {
	var mu sync.Mutex
	seen := make(map[string]bool)
	n := 0
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil || p.cfg.Name != ConsumerCrash {
			return out, err
		}
		mu.Lock()
		again := seen[msg.UUID]
		seen[msg.UUID] = true
		if !again {
			n++
		}
		strike := !again && n%every == 1
		mu.Unlock()
		if strike && p.broker.ExpireLease("drill", "drill", msg.UUID) {
			p.faults.Add(1)
		}
		return out, nil
	}
}

func (p *path) run(ctx context.Context) (r *Result, err error) {
	live, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	failed := make(chan error, 2)
	running.Go(func() { failed <- p.bus.Run(live) })
	running.Go(func() { failed <- p.relay(live) })
	defer func() {
		stop()
		running.Wait()
		err = errors.Join(err, <-failed, <-failed)
	}()
	select {
	case <-p.bus.Ready():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r = &Result{Drill: p.cfg.Name, Broken: []string{}}
	if p.cfg.Name == Outage {
		err = p.outage(ctx, r)
	} else {
		_, err = p.orders(ctx, 0, p.cfg.Orders, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	return r, p.judge(ctx, r)
}

// outage creates a tenth of the orders, and then the others spread over the time in which the broker is away.
func (p *path) outage(ctx context.Context, r *Result) error {
	length := p.cfg.For / time.Duration(p.cfg.Scale)
	first := max(p.cfg.Orders/10, 1)
	before, err := p.orders(ctx, 0, first, length/10)
	if err != nil {
		return err
	}
	p.broker.away.Store(true)
	p.faults.Add(1)
	over := time.After(length)
	during, err := p.orders(ctx, first, p.cfg.Orders, length)
	if err != nil {
		return err
	}
	select {
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.broker.away.Store(false)
	r.P99Before, r.P99During = p99(before), p99(during)
	return nil
}

func p99(took []time.Duration) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[(len(took)-1)*99/100].Microseconds()) / 1000
}

var errRollback = errors.New("drill: rolled back")

// orders creates the orders from one number to another, evenly over a time, and returns how long each took. A key has one writer.
func (p *path) orders(ctx context.Context, from, to int, over time.Duration) (took []time.Duration, err error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	var errs []error
	began := time.Now()
	for w := range writers {
		running.Go(func() {
			for i := from; i < to; i++ {
				if i%keys%writers != w {
					continue
				}
				due := began.Add(over * time.Duration(i-from) / time.Duration(max(to-from, 1)))
				err := sleep(ctx, time.Until(due))
				start := time.Now()
				if err == nil {
					err = p.order(ctx, i)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	running.Wait()
	return took, errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *path) order(ctx context.Context, i int) error {
	e := placed{ID: fmt.Sprintf("order-%d", i), Key: fmt.Sprintf("customer-%d", i%keys), N: i}
	err := p.box.InTx(ctx, func(tx *sql.Tx) error {
		if err := p.tables.Order(ctx, tx, e.ID, e.Key, e.N); err != nil {
			return err
		}
		if err := p.box.Record(ctx, tx, p.topic, e); err != nil {
			return err
		}
		if p.cfg.Name == Rollback && i%3 == 2 {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		p.faults.Add(1)
		return nil
	}
	return err
}

// relay runs the relay, and another one when that is killed.
func (p *path) relay(ctx context.Context) error {
	killed := errors.New("drill: the relay was killed")
	var calls, done atomic.Int64
	life := ctx
	if p.cfg.Name == RelayCrash {
		life = crash.With(ctx, func(_ context.Context, at crash.Point) error {
			if at == crash.Sent && calls.Add(1)%2 == 1 && done.Add(1) <= crashes {
				p.faults.Add(1)
				return killed
			}
			return nil
		})
	}
	for ctx.Err() == nil {
		if err := p.box.Run(life); err != nil && !errors.Is(err, killed) {
			return err
		}
	}
	return nil
}

// settle waits until nothing waits any more, or nothing has moved for a long time.
func (p *path) settle(ctx context.Context) error {
	last, moved := "", time.Now()
	for time.Since(moved) < patience {
		c, err := p.tables.Counts(ctx)
		if err != nil {
			return err
		}
		depth, err := p.box.Depth(ctx)
		if err != nil {
			return err
		}
		held := p.broker.Held()
		if depth == (outbox.Depth{}) && held == 0 {
			return nil
		}
		if now := fmt.Sprint(c, depth, held); now != last {
			last, moved = now, time.Now()
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// judge asks the tables whether the promises held.
func (p *path) judge(ctx context.Context, r *Result) error {
	c, err := p.tables.Counts(ctx)
	if err != nil {
		return err
	}
	r.Created, r.Recorded, r.Published, r.Effect = c.Created, c.Recorded, c.Published, c.Effects
	r.Lost, r.OutOfOrder, r.Duplicates, r.Faults = c.Lost, c.Disorder, p.in.Stats().Duplicates, p.faults.Load()
	for _, promise := range []struct {
		kept bool
		text string
	}{
		{r.Created > 0, "no order was created"},
		{r.Recorded == r.Created, "an order and its event did not commit together"},
		{r.Published == r.Recorded, "not every recorded event was published"},
		{r.Lost == 0, "events were lost"},
		{c.Ghosts == 0, "there are effects of orders that were rolled back"},
		{r.Effect == r.Created-r.Lost+c.Ghosts, "an event took effect twice"},
		{r.OutOfOrder == 0, "events took effect out of order"},
		{r.Faults > 0, "what was to go wrong did not: more orders are needed"},
	} {
		if !promise.kept {
			r.Broken = append(r.Broken, promise.text)
		}
	}
	return nil
}

// broker is the memory transport, which keeps what it has accepted for as long as the drill lasts. It can be away.
type broker struct {
	*memory.Transport
	away atomic.Bool
}

// Capabilities say so.
func (b *broker) Capabilities() transport.Capabilities {
	c := b.Transport.Capabilities()
	c.Durable = true
	return c
}

// Publisher returns one that fails while the broker is away.
func (b *broker) Publisher() message.Publisher { return publisher{b.Transport.Publisher(), b} }

type publisher struct {
	message.Publisher
	broker *broker
}

// Publish publishes, unless the broker is away.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.broker.away.Load() {
		return fmt.Errorf("drill: %w", transport.ErrUnavailable)
	}
	return p.Publisher.Publish(topic, msgs...)
}

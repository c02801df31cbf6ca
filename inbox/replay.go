package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
)

const (
	// replayLease is how long a process that died keeps a key's replay from others. It only spares them the work: that one
	// event is handled once, and after the one before it, is up to its row.
	replayLease = 10 * time.Second
	// replayRetry is how long a replay waits after the database failed.
	replayRetry = 5 * time.Second
	// The replay looks for what other processes opened after replayPollMin of idleness, then at doubling intervals.
	replayPollMin = time.Second
	replayPollMax = 5 * time.Minute
)

type replayKey struct{}

// replayed says in a message's context which parked event it is, and as of which decision about it: one that dies again and is
// redriven at once is another.
type replayed struct {
	sequence int64
	revision int
}

// Replay returns a member of the group that is fed from the parked events instead of a broker: of every key that was opened
// for replay it delivers what is parked, one after the other, and several keys at once. Its messages must reach this inbox's
// Middleware for the same group, which takes the parked event away in the handler's transaction. What its handler nacks is
// delivered again after the delay, before anything later of its key; a dead letter put meanwhile stays, and under [Inbox.Hold]
// ends its key's replay. It serves one Subscribe.
func (in *Inbox) Replay(cfg transport.SubscriberConfig) (transport.Subscriber, error) {
	if cfg.Group == "" {
		return nil, errors.New("inbox: replay: group is empty")
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = transport.DefaultConcurrency
	}
	return &replay{in: in, group: cfg.Group, slots: make(chan struct{}, cfg.Concurrency)}, nil
}

type replay struct {
	in    *Inbox
	group string
	slots chan struct{} // one for each key that is being replayed

	mu     sync.Mutex
	topic  string
	closed bool
	out    chan *message.Message
	taking context.Context // ended by Drain and Close
	stop   context.CancelFunc
	live   context.Context // of the deliveries; ended at the drain's deadline and by Close
	cut    context.CancelCauseFunc
	wake   chan struct{}
	keys   sync.WaitGroup
	ended  chan struct{} // closed when the loop and all keys have ended
}

// Subscribe starts the replay.
func (r *replay) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, fmt.Errorf("inbox: replay %q as %q: %w", topic, r.group, transport.ErrClosed)
	case r.out != nil:
		return nil, fmt.Errorf("inbox: replay %q as %q: subscribed twice", topic, r.group)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("inbox: replay %q as %q: %w", topic, r.group, ctx.Err())
	}
	r.topic, r.out, r.wake = topic, make(chan *message.Message), r.in.listen()
	r.ended = make(chan struct{})
	r.taking, r.stop = context.WithCancel(ctx)
	r.live, r.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		r.loop()
		r.keys.Wait()
		r.in.unlisten(r.wake)
		close(r.out)
		close(r.ended)
	}()
	return r.out, nil
}

// loop starts the replay of keys as they become due.
func (r *replay) loop() {
	idle := replayPollMin
	for r.taking.Err() == nil {
		started, full, err := r.startDue()
		next := idle
		switch {
		case r.taking.Err() != nil:
			return
		case err != nil:
			r.in.config.logger.WarnContext(r.taking, "replay of parked events failed", slog.Any("error", err))
			next = replayRetry
		case started:
			idle, next = replayPollMin, replayPollMin
		default:
			idle = min(2*idle, replayPollMax)
		}
		if due, ok := r.nextDue(); ok && !full { // else a key that ends wakes the loop
			next = min(next, max(due, 0))
		}
		timer := time.NewTimer(next)
		select {
		case <-r.wake:
			idle = replayPollMin
		case <-timer.C:
		case <-r.taking.Done():
		}
		timer.Stop()
	}
}

// startDue starts what is due, as far as there are slots, and reports whether it started any, and whether slots ran out.
func (r *replay) startDue() (started, full bool, err error) {
	due, err := r.dueKeys()
	for _, key := range due {
		select {
		case r.slots <- struct{}{}:
		default:
			return started, true, err
		}
		mine, leaseErr := affects(r.in.db.ExecContext(r.taking, r.in.sql.LeaseKey,
			append(r.in.sql.Now(), replayLease.Microseconds(), r.group, r.topic, key)...))
		if leaseErr != nil || !mine {
			<-r.slots
			err = errors.Join(err, leaseErr)
			continue
		}
		started = true
		r.keys.Go(func() {
			defer func() { <-r.slots; r.in.signal(r.wake) }()
			r.run(key)
		})
	}
	return started, false, err
}

func (r *replay) dueKeys() (due []string, err error) {
	args := append(r.in.sql.Now(), r.group, r.topic, cap(r.slots))
	rows, err := r.in.db.QueryContext(r.taking, r.in.sql.DueKeys, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Err(), rows.Close()) }()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return due, err
		}
		due = append(due, key)
	}
	return due, nil
}

// nextDue returns how long until a replay is due, if one is.
func (r *replay) nextDue() (time.Duration, bool) {
	var micros sql.NullInt64
	err := r.in.db.QueryRowContext(r.taking, r.in.sql.NextDue, append(r.in.sql.Now(), r.group, r.topic)...).Scan(&micros)
	return time.Duration(micros.Int64) * time.Microsecond, err == nil && micros.Valid
}

// run replays one key until it is open, blocked, postponed, or the replay ends.
func (r *replay) run(key string) {
	for {
		again, delay, err := r.step(key)
		switch {
		case err != nil && r.taking.Err() == nil:
			r.in.config.logger.WarnContext(r.taking, "replay of parked events failed", slog.Any("error", err))
			delay = replayRetry
		case err == nil && again && r.taking.Err() == nil:
			continue
		case err == nil && !again && delay < 0:
			return // open or blocked: there is no replay to postpone
		}
		r.postpone(key, max(delay, 0))
		return
	}
}

// step replays the head of a key. It reports whether to go on, and if not, when to come back; negative means never.
func (r *replay) step(key string) (again bool, delay time.Duration, err error) {
	head, err := scanParked(r.in.db.QueryRowContext(r.taking, r.in.sql.Head, r.group, r.topic, key))
	switch {
	case errors.Is(err, sql.ErrNoRows): // unless somebody has parked one more since
		ended, err := r.end(key, r.in.sql.Open, r.group, r.topic, key, r.group, r.topic, key)
		return !ended, -1, err
	case err != nil:
		return false, 0, err
	case head.State == StateDead: // unless somebody has redriven it since
		ended, err := r.end(key, r.in.sql.Block, r.group, r.topic, key, head.Sequence)
		return !ended, -1, err
	}
	acked, delay := r.deliver(&head)
	if !acked {
		return false, delay, nil
	}
	// It may have been acknowledged without the middleware, being of a type that the subscription ignores.
	_, err = r.in.db.ExecContext(context.WithoutCancel(r.taking), r.in.sql.Take, head.Sequence, head.Revision)
	return true, 0, err
}

// end ends the replay of a key by a statement that finds out whether it may, with nobody parking or redriving meanwhile. It
// reports whether the replay has ended.
func (r *replay) end(key, query string, args ...any) (ended bool, err error) {
	err = r.in.transact(r.taking, func(tx *sql.Tx) error {
		isHeld, err := affects(tx.ExecContext(r.taking, r.in.sql.LockHeld, r.group, r.topic, key))
		if err != nil {
			return err
		}
		ended, err = affects(tx.ExecContext(r.taking, query, args...))
		ended = ended || !isHeld // else whoever decided meanwhile has made the key's replay due
		return err
	})
	return ended, err
}

// deliver hands out one event and waits for its verdict.
func (r *replay) deliver(p *Parked) (acked bool, delay time.Duration) {
	d := &transport.Delivery{Topic: r.topic, Group: r.group, Key: p.Key, Partition: -1, Deliveries: max(p.Attempts, 1)}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.live, replayKey{}, replayed{p.Sequence, p.Revision}))
	defer cancel(context.Canceled)
	msg := p.Message
	msg.SetContext(transport.WithDelivery(ctx, d))
	select {
	case r.out <- msg:
	case <-r.taking.Done():
		return false, 0
	}
	renew := time.NewTicker(replayLease / 3)
	defer renew.Stop()
	for {
		select {
		case <-msg.Acked():
			return true, 0
		case <-msg.Nacked():
			return false, d.Delay()
		case <-r.live.Done():
			return false, 0
		case <-renew.C: // a handler may take longer than the lease
			r.postpone(p.Key, replayLease)
		}
	}
}

// postpone gives the key back, for whoever is there when its time comes, or keeps it for a while longer.
func (r *replay) postpone(key string, delay time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.taking), replayRetry)
	defer cancel()
	_, err := r.in.db.ExecContext(ctx, r.in.sql.Postpone, append(r.in.sql.Now(), delay.Microseconds(), r.group, r.topic, key)...)
	if err != nil { // its lease will end
		r.in.config.logger.WarnContext(ctx, "replay of parked events: key not given back", slog.Any("error", err))
	}
}

// Drain takes nothing more and waits for what is being handled; at the end of ctx it is cut off, and stays parked.
func (r *replay) Drain(ctx context.Context) error {
	r.mu.Lock()
	subscribed := r.out != nil
	r.mu.Unlock()
	if !subscribed {
		return nil
	}
	r.stop()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
	}
	r.cut(transport.ErrShutdown)
	<-r.ended
	return fmt.Errorf("inbox: drain replay of %q as %q: %w", r.topic, r.group, ctx.Err())
}

// Close cuts off what is being handled and closes the channel.
func (r *replay) Close() error {
	r.mu.Lock()
	r.closed = true
	subscribed := r.out != nil
	r.mu.Unlock()
	if !subscribed {
		return nil
	}
	r.stop()
	r.cut(transport.ErrShutdown)
	<-r.ended
	return nil
}

// listen returns a channel that gets a signal when something in this process may have made a replay due.
func (in *Inbox) listen() chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	wake := make(chan struct{}, 1)
	in.wakes[wake] = struct{}{}
	return wake
}

func (in *Inbox) unlisten(wake chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.wakes, wake)
}

func (in *Inbox) wakeAll() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for wake := range in.wakes {
		in.signal(wake)
	}
}

func (*Inbox) signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

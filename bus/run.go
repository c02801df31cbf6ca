package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/transport"
)

// lateProblems returns what was registered after Run had begun.
func (b *Bus) lateProblems() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.late...)
}

// member is one running subscription.
type member struct {
	*subscription
	chain      message.HandlerFunc
	pool       *pool
	subscriber transport.Subscriber
	messages   <-chan *message.Message
	handler    *message.Handler // behind the last door; all of them end together
	// main is the member on the broker where this one is fed from what the inbox has parked; they share a pool.
	main *member
}

// name tells the members of one subscription apart.
func (m *member) name() string {
	if m.main != nil {
		return m.subscription.name() + " replay"
	}
	return m.subscription.name()
}

// Subscribe hands the router the channel that is already open: subscribing is done before the router is built, because a
// router whose second Subscribe fails leaves goroutines behind.
func (m *member) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return m.messages, nil
}

// Close ends the subscription. The router calls it after the drain.
func (m *member) Close() error { return m.subscriber.Close() }

// Run subscribes everything, starts the relays, and blocks until ctx ends, [Bus.Shutdown] is called, or a part fails; then
// it drains and returns nil, or the errors that say what failed and what was left behind ([ErrDrain] holds). Everything
// that was registered wrongly is reported at once, before anything starts ([ErrConfig] holds). All goroutines have ended
// when it returns, save handlers that ignore their cancelled contexts, which the error names.
func (b *Bus) Run(ctx context.Context) error {
	b.mu.Lock()
	if b.started {
		b.mu.Unlock()
		return fmt.Errorf("bus: run: %w", ErrStarted)
	}
	b.started = true
	b.mu.Unlock()

	b.runErr = b.run(ctx)
	close(b.done)
	return b.runErr
}

// Shutdown makes Run stop taking in, lets handlers finish until ctx ends, and returns what Run returns. Called before Run
// it makes Run return at once. It may be called several times; the first call's deadline counts. A handler must not call it:
// it would wait for itself.
func (b *Bus) Shutdown(ctx context.Context) error {
	select {
	case b.shutdown <- ctx:
	default:
	}
	b.mu.Lock()
	started := b.started
	b.mu.Unlock()
	if !started {
		return nil
	}
	<-b.done
	return b.runErr
}

func (b *Bus) run(ctx context.Context) error {
	members, err := b.members()
	if err != nil {
		return fmt.Errorf("bus: %w: %w", ErrConfig, err)
	}
	// Nothing below may see ctx end: that would cut off every handler at once. The drain does it in good order.
	liveCtx, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	if err := subscribe(liveCtx, members); err != nil {
		closeAll(members)
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	host, err := b.newHost(liveCtx, members)
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	failed := make(chan error, 1)
	watching := watch(members, failed)
	background := b.startBackground(liveCtx, failed)
	close(b.ready)

	cause := b.wait(ctx, failed)
	deadline, cancel := b.deadline(ctx, cause)
	defer cancel()
	errs := []error{cause.err}
	background.cancel() // the relay takes nothing in any more either, while groups still acknowledge what it has sent
	errs = append(errs, drain(deadline, members))
	errs = append(errs, background.wait())
	cut()
	errs = append(errs, host.close())
	watching.Wait()
	errs = append(errs, b.lateProblems())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bus: run: %w", err)
	}
	return nil
}

// members checks everything that was registered and makes a subscriber for each subscription. On an error none is left
// open.
func (b *Bus) members() ([]*member, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := append([]error(nil), b.problems...)
	var members []*member
	for _, s := range b.subs {
		m, err := b.member(s)
		errs = append(errs, err)
		if err == nil {
			members = append(members, m...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		closeAll(members)
		return nil, err
	}
	return members, nil
}

// member returns the subscription's member on the broker, and the one that is fed by its inbox if there is one.
func (b *Bus) member(s *subscription) ([]*member, error) {
	chain, err := b.chain(s)
	if err = errors.Join(s.validate(), err); err != nil {
		return nil, err
	}
	cfg := transport.SubscriberConfig{Group: s.group, Concurrency: s.shared.concurrency}
	sub, err := b.transport.Subscriber(cfg)
	if err != nil {
		return nil, fmt.Errorf("subscription %s: %w", s.name(), err)
	}
	m := &member{subscription: s, chain: chain, subscriber: sub}
	if s.shared.inbox == nil {
		return []*member{m}, nil
	}
	replay, err := s.shared.inbox.Replay(cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscription %s: %w", s.name(), err), sub.Close())
	}
	return []*member{m, {subscription: s, chain: chain, subscriber: replay, main: m}}, nil
}

func subscribe(ctx context.Context, members []*member) error {
	errs := make([]error, len(members))
	for i, m := range members {
		messages, err := m.subscriber.Subscribe(ctx, m.topic.Name())
		if err != nil {
			errs[i] = fmt.Errorf("subscription %s: %w", m.name(), err)
		}
		m.messages = messages
	}
	return errors.Join(errs...)
}

// background is what runs beside the subscriptions: relays and sweepers.
type background struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func (b *Bus) startBackground(ctx context.Context, failed chan<- error) *background {
	bg := new(background)
	ctx, bg.cancel = context.WithCancel(ctx)
	start := func(what string, run func(context.Context) error) {
		bg.wg.Go(func() {
			err := run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("ended early")
			}
			if err == nil {
				return
			}
			err = fmt.Errorf("%s: %w", what, err)
			bg.mu.Lock()
			bg.errs = append(bg.errs, err)
			bg.mu.Unlock()
			report(failed, nil)
		})
	}
	for _, box := range b.config.boxes {
		start("relay "+box.Name(), box.Run)
	}
	for _, in := range b.inboxes() {
		start("inbox sweep", in.Run)
	}
	return bg
}

// inboxes returns each inbox in use once.
func (b *Bus) inboxes() []*inbox.Inbox {
	var all []*inbox.Inbox
	for _, s := range b.subs {
		if in := s.shared.inbox; in != nil && !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	return all
}

// wait returns what failed in the background work, once it has ended.
func (bg *background) wait() error {
	bg.wg.Wait()
	return errors.Join(bg.errs...)
}

// watch reports a subscription that ends by itself: Watermill's router would only note it and go on with the others.
func watch(members []*member, failed chan<- error) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for _, m := range members {
		wg.Go(func() {
			<-m.handler.Stopped()
			report(failed, fmt.Errorf("subscription %s ended by itself", m.name()))
		})
	}
	return wg
}

// report hands over the first failure and drops the rest, which come of it.
func report(failed chan<- error, err error) {
	select {
	case failed <- err:
	default:
	}
}

// stopCause says why Run stops: by whose context, and with which error if it is a failure.
type stopCause struct {
	by  context.Context // the context given to Shutdown, if it was called
	err error
}

func (b *Bus) wait(ctx context.Context, failed <-chan error) stopCause {
	select {
	case <-ctx.Done():
		return stopCause{}
	case by := <-b.shutdown:
		return stopCause{by: by}
	case err := <-failed:
		return stopCause{err: err}
	}
}

// deadline returns the context that bounds the drain.
func (b *Bus) deadline(ctx context.Context, cause stopCause) (context.Context, context.CancelFunc) {
	if cause.by != nil {
		return context.WithCancel(cause.by)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), b.config.drain)
}

// drain lets the deliveries in flight finish, all subscriptions at once.
func drain(ctx context.Context, members []*member) error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			if err := m.subscriber.Drain(ctx); err != nil {
				errs[i] = fmt.Errorf("%w: subscription %s: %w", ErrDrain, m.name(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func closeAll(members []*member) {
	for _, m := range members {
		_ = m.subscriber.Close() // idempotent; the router has reported what its own Close met
	}
}

package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// closeGrace is how long handlers whose contexts were cancelled at the drain deadline may take to notice.
	closeGrace = 5 * time.Second
	// doors is how many router handlers share the messages of a subscription. Behind a single one every message passes the
	// same two goroutines, one after the other, and a second processor has little to do; BenchmarkChain shows the difference.
	doors = 4
)

// host runs the subscriptions in Watermill routers, one for each door: so a handler has one name behind all of them.
type host struct {
	members []*member
	routers []*message.Router
	ended   []<-chan error // what each router's Run returned
}

// newHost returns once every router is up.
func (b *Bus) newHost(ctx context.Context, members []*member) (*host, error) {
	h := &host{members: members}
	for _, m := range members {
		if m.main != nil {
			m.pool = m.main.pool
			continue
		}
		m.pool = newPool(m.chain, m.shared.concurrency)
	}
	for range doors {
		if err := h.open(ctx, newRouterLogger(b.config.logger)); err != nil {
			return nil, errors.Join(fmt.Errorf("router did not start: %w", err), h.close())
		}
	}
	return h, nil
}

func (h *host) open(ctx context.Context, log routerLogger) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeGrace}, log)
	if err != nil {
		return err
	}
	for _, m := range h.members {
		m.handler = router.AddConsumerHandler(m.name(), m.topic.Name(), m, m.pool.handle)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
		h.routers, h.ended = append(h.routers, router), append(h.ended, ended)
		return nil
	case err := <-ended:
		return errors.Join(errors.New("ended at once"), err)
	}
}

// close ends the subscriptions, then the routers, then the pools. The subscriptions come first and from here: a router that
// is closed with its context at an end may forget to close them, and then waits for them in vain. A handler that ignores its
// cancelled context beyond the grace is left behind and named; its goroutine ends when it returns.
func (h *host) close() error {
	closeAll(h.members)
	var wg sync.WaitGroup
	for _, router := range h.routers {
		wg.Go(func() { _ = router.Close() }) // it runs into its timeout where handlers are left, which the pools know better
	}
	wg.Wait()
	var errs []error
	for _, ended := range h.ended {
		errs = append(errs, <-ended)
	}
	for _, m := range h.members {
		if m.main != nil {
			continue
		}
		if n := m.pool.close(); n > 0 {
			errs = append(errs, fmt.Errorf("%w: subscription %s: %d handlers ignore their cancelled contexts", ErrDrain, m.name(), n))
		}
	}
	return errors.Join(errs...)
}

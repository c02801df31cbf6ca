package bus

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	errGoexit = errors.New("bus: the handler ended its goroutine")
	errClosed = errors.New("bus: the subscription has ended")
)

// pool runs a subscription's chain on goroutines that live as long as the subscription. The router starts a goroutine for
// each message; the chain is deep enough to make such a new stack grow, and be copied, every time.
type pool struct {
	chain message.HandlerFunc
	calls chan *poolCall
	quit  chan struct{}
	spare sync.Pool
	wg    sync.WaitGroup
	busy  atomic.Int64
}

type poolCall struct {
	msg  *message.Message
	done chan error
}

func newPool(chain message.HandlerFunc, size int) *pool {
	p := &pool{chain: chain, calls: make(chan *poolCall), quit: make(chan struct{})}
	p.spare.New = func() any { return &poolCall{done: make(chan error, 1)} }
	for range size {
		p.wg.Go(p.work)
	}
	return p
}

func (p *pool) work() {
	ended := false
	defer func() {
		if !ended { // a handler called runtime.Goexit, as t.FailNow does: somebody must take this worker's place
			p.wg.Go(p.work)
		}
	}()
	for {
		select {
		case c := <-p.calls:
			p.call(c)
		case <-p.quit:
			ended = true
			return
		}
	}
}

func (p *pool) call(c *poolCall) {
	err := errGoexit
	p.busy.Add(1)
	defer func() {
		p.busy.Add(-1)
		c.done <- err
	}()
	_, err = p.chain(c.msg)
}

// handle is what the router calls. There are as many workers as there may be messages in flight, so it does not wait for
// one longer than a handler needs that ignores its cancelled context.
func (p *pool) handle(msg *message.Message) error {
	c := p.spare.Get().(*poolCall)
	c.msg = msg
	select {
	case p.calls <- c:
	case <-p.quit:
		return errClosed
	}
	err := <-c.done
	c.msg = nil
	p.spare.Put(c)
	return err
}

// close ends the workers, once the router has ended or given up waiting. It returns how many are still in a handler; these
// end when it returns.
func (p *pool) close() int {
	close(p.quit)
	if n := p.busy.Load(); n > 0 {
		return int(n)
	}
	p.wg.Wait()
	return 0
}

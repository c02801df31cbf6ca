package outbox

import (
	"context"
	"time"

	"github.com/seambus/seambus/internal/errtext"
)

const (
	announceAfter = 2 * time.Millisecond // so that the commits of a moment share one NOTIFY
	announceFor   = time.Second          // the longest a NOTIFY may take
	listenPause   = time.Second          // before listening again after the connection was lost
)

// announce tells relays of other processes. Commits that come while a NOTIFY is waiting to be sent are covered by it.
func (o *Outbox) announce() {
	alone := o.running.Load() && o.relays.Load() == 1
	if alone || o.store.Channel() == "" || !o.announcing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		time.Sleep(announceAfter)
		o.announcing.Store(false) // a commit from here on may have come too late for the statement below
		ctx, cancel := context.WithTimeout(context.Background(), announceFor)
		defer cancel()
		if err := o.store.Notify(ctx); err != nil {
			o.cfg.log.Warn("other relays could not be notified, they will look by themselves", "error", errtext.Clean(err))
		}
	}()
}

// listen wakes the reader when another process has committed.
func (r *relay) listen(ctx context.Context) {
	channel := r.box.store.Channel()
	if channel == "" || r.box.cfg.listener == nil {
		return
	}
	for ctx.Err() == nil {
		err := r.box.cfg.listener(ctx, channel, r.box.rouse)
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("listening for commits of other processes ended, polling meanwhile", "error", errtext.Clean(err))
		if sleep(ctx, listenPause) != nil {
			return
		}
		r.box.rouse() // for what was missed
	}
}

package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/crash"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// dice is a source of chance that several goroutines share.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) oneIn(n int) bool { return d.n(n) == 0 }

// TestNothingIsLostOrOvertaken lets relays crash at random points, the broker fail in every way it may, and transactions
// record meanwhile. In the end every event was accepted, and of each key the first acceptances are in order. Set
// SEAMBUS_SEED to repeat a run.
func TestNothingIsLostOrOvertaken(t *testing.T) {
	t.Parallel()
	seeds := []uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()}
	if s := os.Getenv("SEAMBUS_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		check(t, err)
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

const (
	chaosKeys   = 12
	chaosEvents = 60 // per key
)

func chaos(t *testing.T, seed uint64) {
	t.Logf("seed %d", seed)
	d := &dice{rng: rand.New(rand.NewPCG(seed, 1))}
	db, f := openDB(t), newFake()
	var calm atomic.Bool
	f.onCall = func(ctx context.Context, _ string, _ []*message.Message) error {
		time.Sleep(time.Duration(d.n(30)) * time.Millisecond)
		if !calm.Load() && d.oneIn(15) {
			return errors.New("broker away")
		}
		return nil
	}
	f.onOne = func(*message.Message) error {
		switch {
		case calm.Load():
			return nil
		case d.oneIn(12):
			return errors.New("not now")
		case d.oneIn(40):
			return fmt.Errorf("throttled: %w", transport.ErrUnavailable)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { mortal(t, ctx, i, d, f, &calm, db) })
	}
	box := newBox(t, db, f)
	for n := range chaosEvents {
		for k := range chaosKeys {
			key := fmt.Sprint("k", k)
			record(t, box, note{Key: key, N: n + 1, ID: fmt.Sprintf("%s-%d", key, n+1)})
		}
		time.Sleep(time.Duration(d.n(400)) * time.Millisecond)
	}
	calm.Store(true)
	time.Sleep(2 * time.Minute)
	cancel()
	wg.Wait()
	keys := perKey(f.all())
	for k := range chaosKeys {
		key := fmt.Sprint("k", k)
		wantOrder(t, keys[key], key, chaosEvents)
	}
	if n := count(t, db, "state = 3"); n != chaosKeys*chaosEvents {
		t.Errorf("%d rows are marked, want %d", n, chaosKeys*chaosEvents)
	}
}

// mortal runs relays one after the other, each until it crashes or is stopped.
func mortal(t *testing.T, ctx context.Context, i int, d *dice, f *fake, calm *atomic.Bool, db *sql.DB) {
	for ctx.Err() == nil {
		box, err := outbox.New(db, f, outbox.WithBatch(1+d.n(40)), outbox.WithWorkers(1+d.n(4)), outbox.WithLeaseTTL(2*time.Second),
			outbox.WithPoll(200*time.Millisecond), outbox.WithBackoff(50*time.Millisecond, 3*time.Second))
		if err != nil {
			t.Errorf("relay %d: %v", i, err)
			return
		}
		life, end := context.WithTimeout(ctx, time.Duration(1+d.n(5000))*time.Millisecond)
		if calm.Load() {
			life, end = context.WithCancel(ctx)
		}
		err = box.Run(crash.With(life, func(context.Context, crash.Point) error {
			if !calm.Load() && d.oneIn(60) {
				return errKilled
			}
			return nil
		}))
		end()
		if err != nil && !errors.Is(err, errKilled) {
			t.Errorf("relay %d: %v", i, err)
		}
		time.Sleep(time.Duration(d.n(300)) * time.Millisecond)
	}
}

var errKilled = errors.New("killed")

package outbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

// How a relay process of TestRelayProcessesKilledAtRandom finds its database and its broker.
const (
	relayDriver = "SEAMBUS_TEST_RELAY_DRIVER"
	relayDSN    = "SEAMBUS_TEST_RELAY_DSN"
	relayBroker = "SEAMBUS_TEST_RELAY_BROKER"
)

// wire is a broker of another process: it takes lines of "key id" and answers each call with a line.
type wire struct {
	*fake
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

func (w *wire) Publisher() message.Publisher { return w }

func (w *wire) Publish(_ string, msgs ...*message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, msg := range msgs {
		fmt.Fprintln(&b, transport.Key(msg), msg.UUID)
	}
	if _, err := fmt.Fprintf(w.conn, "%s.\n", &b); err != nil {
		return err
	}
	_, err := w.in.ReadString('\n')
	return err
}

// TestRelayProcess is no test: it is what the processes of the next one run.
func TestRelayProcess(t *testing.T) {
	if os.Getenv(relayDSN) == "" {
		t.Skip("runs only as a process of TestRelayProcessesKilledAtRandom")
	}
	db, err := sql.Open(os.Getenv(relayDriver), os.Getenv(relayDSN))
	check(t, err)
	conn, err := net.Dial("tcp", os.Getenv(relayBroker))
	check(t, err)
	box := newBox(t, db, &wire{fake: newFake(), conn: conn, in: bufio.NewReader(conn)},
		outbox.WithLeaseTTL(time.Second), outbox.WithBatch(50), outbox.WithWorkers(4))
	check(t, box.Run(context.Background()))
}

// serve takes connections until the listener is closed.
func serve(l net.Listener, f *fake) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			var call []sent
			for in := bufio.NewScanner(conn); in.Scan(); {
				if line := in.Text(); line != "." {
					key, id, _ := strings.Cut(line, " ")
					call = append(call, sent{key: key, id: id})
					continue
				}
				f.mu.Lock() // the call is accepted as a whole, whether or not its caller lives to hear of it
				f.sent = append(f.sent, call...)
				close(f.changed)
				f.changed = make(chan struct{})
				f.mu.Unlock()
				call = nil
				if _, err := fmt.Fprintln(conn, "ok"); err != nil {
					return
				}
			}
		})
	}
}

func relayProcess(t *testing.T, d dialecttest.Database, broker string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRelayProcess$")
	cmd.Env = append(os.Environ(), relayDriver+"="+d.Driver, relayDSN+"="+d.DSN, relayBroker+"="+broker)
	check(t, cmd.Start())
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestRelayProcessesKilledAtRandom has three relay processes and kills one of them with SIGKILL every now and then while
// events are recorded. SEAMBUS_TEST_KILL_FOR sets for how long, SEAMBUS_SEED repeats a run's choices.
func TestRelayProcessesKilledAtRandom(t *testing.T) { // C04, C07
	t.Parallel()
	if testing.Short() {
		t.Skip("starts and kills processes for seconds")
	}
	killFor := 4 * time.Second
	if s := os.Getenv("SEAMBUS_TEST_KILL_FOR"); s != "" {
		var err error
		killFor, err = time.ParseDuration(s)
		check(t, err)
	}
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		seed := seedOf(t)
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		db := d.Migrated(t, dialect.SetOutbox)
		f := newFake()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		var broker sync.WaitGroup
		broker.Go(func() { serve(l, f) })
		defer broker.Wait()
		defer func() { _ = l.Close() }()
		relays := make([]*exec.Cmd, 3)
		for i := range relays {
			relays[i] = relayProcess(t, d, l.Addr().String())
		}
		defer func() {
			for _, cmd := range relays {
				kill(cmd)
			}
		}()
		box := newBox(t, db, newFake())
		const keys = 20
		kills, n := 0, 0
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(killFor); time.Now().Before(end); {
			<-tick.C
			n++ // of each key: 400 events a second in all
			for k := range keys {
				key := fmt.Sprint("k", k)
				record(t, box, note{Key: key, N: n, ID: fmt.Sprintf("%s-%d", key, n)})
			}
			if rng.IntN(8) == 0 {
				i := rng.IntN(len(relays))
				kill(relays[i])
				relays[i] = relayProcess(t, d, l.Addr().String())
				kills++
			}
		}
		eventually(t, "all rows are marked", func() bool { return count(t, db, "state = 3") == keys*n })
		ids := perKey(f.all())
		for k := range keys {
			key := fmt.Sprint("k", k)
			wantOrder(t, ids[key], key, n)
		}
		t.Logf("%d events, %d kills, %d duplicates", keys*n, kills, len(f.all())-keys*n)
	})
}

func TestTakeoverAfterKill(t *testing.T) { // C07
	t.Parallel()
	dialecttest.EachServer(t, func(t *testing.T, d dialecttest.Database) {
		const ttl, poll = time.Second, 200 * time.Millisecond // the process's lease, the default poll
		db := d.Migrated(t, dialect.SetOutbox)
		f, stalled := newFake(), newFake()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		var broker sync.WaitGroup
		broker.Go(func() { serve(l, stalled) })
		defer broker.Wait()
		defer func() { _ = l.Close() }()
		first := relayProcess(t, d, l.Addr().String())
		box := newBox(t, db, f, outbox.WithLeaseTTL(ttl))
		record(t, box, keyed("a", 10)...)
		stalled.await(t, 10)
		kill(first)
		record(t, box, keyed("b", 10)...)
		killed := time.Now()
		start(t, t.Context(), box)
		f.await(t, 10)
		// half a second is for the work and for a machine that is shared
		if took := time.Since(killed); took > ttl+poll+500*time.Millisecond {
			t.Errorf("took %v, want at most the lease's %v and a poll of %v", took, ttl, poll)
		}
		eventually(t, "all rows are marked", func() bool { return count(t, db, "state = 3") == 20 })
	})
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("SEAMBUS_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		check(t, err)
	}
	return seed
}

package kafka_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

const (
	// soakVar says how long the soak lasts, as in "60s".
	soakVar = "SEAMBUS_TEST_SOAK"
	// memberVar makes the test binary a member of the soak: brokers, topic and the file that it writes to.
	memberVar = "SEAMBUS_TEST_KAFKA_MEMBER"
	// serviceVar is the script that can kill the real broker.
	serviceVar = "SEAMBUS_TEST_KAFKA_SERVICE"
)

// TestSoakMember is not a test: it is what the soak starts, stops and kills.
func TestSoakMember(t *testing.T) {
	args := strings.Split(os.Getenv(memberVar), "|")
	if len(args) != 3 {
		t.Skip("it is started by the soak")
	}
	journal, err := os.OpenFile(args[2], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tr, err := kafka.New(ctx, strings.Split(args[0], ","), quick(kafka.WithRevokeGrace(5*time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	sub, msgs := join(t, tr, args[1], "soak", 32)
	go func() {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := errors.Join(sub.Drain(drain), tr.Close()); err != nil {
			t.Error(err)
		}
	}()
	var handlers sync.WaitGroup
	for msg := range msgs {
		handlers.Go(func() { handle(msg, journal) })
	}
	handlers.Wait()
}

// handle writes down what came, at once and in one piece, and works for a while.
func handle(msg *message.Message, journal *os.File) {
	if msg.Context().Err() != nil {
		msg.Nack()
		return
	}
	line, fails := msg.UUID, rand.IntN(50) == 0
	if fails {
		line += " fails"
	}
	if _, err := fmt.Fprintln(journal, line); err != nil {
		msg.Nack()
		return
	}
	time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
	if fails {
		if d, ok := transport.FromContext(msg.Context()); ok {
			d.SetDelay(time.Duration(rand.IntN(50)) * time.Millisecond)
		}
		msg.Nack()
		return
	}
	msg.Ack()
}

// load publishes numbered messages on many keys until it is stopped, each until the broker has it, and counts.
type load struct {
	cancel context.CancelFunc
	done   chan struct{}
	sent   int // of each key
	failed int // calls
}

const soakKeys = 60

func startLoad(t *testing.T, tr transport.Transport, topic string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for ; ctx.Err() == nil; l.sent++ {
			left := make([]*message.Message, soakKeys)
			for k := range left {
				left[k] = keyed(strconv.Itoa(k), fmt.Sprintf("%d/%d", k, l.sent))
			}
			for len(left) > 0 {
				failed := transport.Failed(tr.Publisher().Publish(topic, left...), len(left))
				if len(failed) > 0 {
					l.failed++
				}
				var again []*message.Message
				for i, msg := range left {
					if failed[i] != nil {
						again = append(again, msg)
					}
				}
				left = again
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	return l
}

func (l *load) stop() int {
	l.cancel()
	<-l.done
	return l.sent
}

// verdict reads the journal: what is missing, what came before its predecessor, what came again.
func verdict(t *testing.T, journal string, each int) (lost, disordered, duplicates int) {
	t.Helper()
	f, err := os.Open(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	last, seen := make(map[string]int), make(map[string]bool)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		id, _, fails := strings.Cut(lines.Text(), " ")
		key, number, _ := strings.Cut(id, "/")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("line %q", lines.Text())
		}
		prev, any := last[key]
		if !any {
			prev = -1
		}
		if n > prev+1 {
			disordered++
			t.Logf("key %s: %d after %d", key, n, prev)
		}
		last[key] = n
		if fails {
			continue
		}
		if seen[id] {
			duplicates++
		}
		seen[id] = true
	}
	return each*soakKeys - len(seen), disordered, duplicates
}

func soakTime(t *testing.T) time.Duration {
	d, err := time.ParseDuration(os.Getenv(soakVar))
	if err != nil {
		d = 5 * time.Second
	}
	return d
}

// Members join, leave and are killed all the time, under load. Nothing is lost, no key is reordered.
func TestSoakOfRebalances(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	c := newCluster(t)
	topic := c.mustTopic(t, 8)
	journal := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(journal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := startLoad(t, c.open(t), topic)
	var members []*exec.Cmd
	start := func() {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestSoakMember$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%s", memberVar, strings.Join(c.brokers, ","), topic, journal))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		members = append(members, cmd)
	}
	end := func(i int, sig syscall.Signal) {
		_ = members[i].Process.Signal(sig)
		if err := members[i].Wait(); err != nil && sig == syscall.SIGTERM {
			t.Errorf("a member that was asked to stop: %v", err)
		}
		members = append(members[:i], members[i+1:]...)
	}
	defer func() {
		for len(members) > 0 {
			end(0, syscall.SIGKILL)
		}
	}()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	joined, left, killed := 1, 0, 0
	start()
	for deadline := time.Now().Add(soakTime(t)); time.Now().Before(deadline); {
		time.Sleep(time.Duration(500+rng.IntN(1500)) * time.Millisecond)
		switch n := rng.IntN(3); {
		case len(members) < 2 || n == 0 && len(members) < 5:
			start()
			joined++
		case n == 1:
			end(rng.IntN(len(members)), syscall.SIGTERM)
			left++
		default:
			end(rng.IntN(len(members)), syscall.SIGKILL)
			killed++
		}
	}
	each := l.stop()
	await(t, journal, each)
	lost, disordered, duplicates := verdict(t, journal, each)
	t.Logf("members: %d joined, %d left, %d killed; messages: %d, lost %d, out of order %d, duplicates %d",
		joined, left, killed, each*soakKeys, lost, disordered, duplicates)
	if lost > 0 || disordered > 0 {
		t.Error("a promise was broken")
	}
}

// await waits until the last message of every key was handled.
func await(t *testing.T, journal string, each int) {
	t.Helper()
	deadline := time.Now().Add(3 * patience) // a broker that was killed takes its time
	for handled := false; !handled; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the last message of some key was not handled")
		}
		b, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		handled = true
		for k := range soakKeys {
			handled = handled && strings.Contains(string(b), fmt.Sprintf("\n%d/%d\n", k, each-1))
		}
	}
}

// The real broker is killed under load and comes back. What was acknowledged is delivered, in order.
func TestBrokerKilledUnderLoad(t *testing.T) {
	service := os.Getenv(serviceVar)
	if service == "" || os.Getenv(brokersVar) == "" || testing.Short() {
		t.Skipf("it kills a real broker: eval \"$(scripts/services-kafka env)\" sets %s", serviceVar)
	}
	c := newCluster(t)
	topic := c.mustTopic(t, 4)
	journal := filepath.Join(t.TempDir(), "journal")
	f, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var handlers sync.WaitGroup
	t.Cleanup(handlers.Wait) // after the transport is closed
	_, msgs := join(t, c.open(t, kafka.WithLogger(logTo(t))), topic, topic, 32)
	handlers.Go(func() {
		for msg := range msgs {
			handlers.Go(func() { handle(msg, f) })
		}
	})
	tr := c.open(t, kafka.WithDeliveryTimeout(2*time.Second))
	l := startLoad(t, tr, topic)
	const kills = 2
	for range kills {
		time.Sleep(3 * time.Second)
		if out, err := exec.Command(service, "crash").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	time.Sleep(3 * time.Second)
	each := l.stop()
	await(t, journal, each)
	lost, disordered, duplicates := verdict(t, journal, each)
	t.Logf("broker killed %d times, %d publish calls failed; messages: %d, lost %d, out of order %d, duplicates %d",
		kills, l.failed, each*soakKeys, lost, disordered, duplicates)
	if lost > 0 || disordered > 0 {
		t.Error("a promise was broken")
	}
}

// logTo shows what the transport has to say, should the test fail.
func logTo(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

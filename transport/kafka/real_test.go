package kafka_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seambus/seambus/partition"
)

// needReal skips a test that a cluster in this process cannot serve.
func needReal(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv(brokersVar) == "" || os.Getenv(serviceVar) == "" {
		t.Skip(`it needs a real broker: scripts/services-kafka up; eval "$(scripts/services-kafka env)"`)
	}
	return newCluster(t)
}

// What Kafka's own console producer puts on a partition, this transport puts there too, and each reads the other.
func TestConsoleProducerPlacesKeysAlike(t *testing.T) {
	t.Parallel()
	c := needReal(t)
	topic := c.mustTopic(t, 7)
	var input strings.Builder
	const keys = 200
	for i := range keys {
		fmt.Fprintf(&input, "key-%d-żółć:%d\n", i, i)
	}
	cmd := exec.Command(os.Getenv(serviceVar), "tool", "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", c.brokers[0],
		"--topic", topic, "--property", "parse.key=true", "--property", "key.separator=:")
	cmd.Stdin = strings.NewReader(input.String())
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "JAVA_TOOL_OPTIONS=-Dfile.encoding=UTF-8 -Dsun.jnu.encoding=UTF-8")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, rec := range c.records(t, topic, keys) {
		if want := partition.Of(string(rec.Key), 7); int(rec.Partition) != want {
			t.Errorf("the console put key %q on partition %d, want %d", rec.Key, rec.Partition, want)
		}
	}
	_, msgs := c.reader(t, topic)
	for range keys {
		next(t, msgs).Ack()
	}
}

// A million messages of lag cost no more memory than what may be held.
func TestLagCostsNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it publishes a million messages")
	}
	c := needReal(t)
	topic := c.mustTopic(t, 4)
	t.Cleanup(func() { _, _ = c.admin.DeleteTopics(context.Background(), topic) }) // it is large
	tr := c.open(t)
	const batch, batches = 20_000, 50
	for range batches {
		publish(t, tr, topic, benchMessages(batch)...)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most := heap(), uint64(0)
	_, msgs := join(t, tr, topic, topic, 64)
	var handled atomic.Int64
	for range 64 {
		go func() {
			for msg := range msgs {
				time.Sleep(time.Millisecond)
				msg.Ack()
				handled.Add(1)
			}
		}()
	}
	for range 10 {
		time.Sleep(300 * time.Millisecond)
		most = max(most, heap())
	}
	t.Logf("heap %d MB before, %d MB at most, with %d of %d handled", before>>20, most>>20, handled.Load(), batch*batches)
	if handled.Load() == 0 || handled.Load() == batch*batches {
		t.Errorf("%d handled: there was no lag to measure", handled.Load())
	}
	if most > before+64<<20 {
		t.Errorf("the heap grew by %d MB", (most-before)>>20)
	}
}

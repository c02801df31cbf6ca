package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/outbox"
	"github.com/seambus/seambus/transport"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

type note struct {
	Key string `json:"key"`
	N   int    `json:"n"`
	Pad string `json:"pad,omitempty"`
	ID  string `json:"-"`
}

func (note) EventType() string      { return "note.taken" }
func (n note) PartitionKey() string { return n.Key }
func (n note) EventID() string      { return n.ID }

var notes = event.NewTopic("notes", note{})

func openFile(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+path+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func openDB(tb testing.TB) *sql.DB {
	tb.Helper()
	return openFile(tb, filepath.Join(tb.TempDir(), "x.db"))
}

func newBox(tb testing.TB, db *sql.DB, t transport.Transport, opts ...outbox.Option) *outbox.Outbox {
	tb.Helper()
	box, err := outbox.New(db, t, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return box
}

// start runs the relay until the returned function is called, which returns what Run returned.
func start(tb testing.TB, ctx context.Context, box *outbox.Outbox) (stop func() error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- box.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	tb.Cleanup(func() { _ = stop() })
	return stop
}

func record(tb testing.TB, box *outbox.Outbox, events ...event.Event) {
	tb.Helper()
	err := box.InTx(context.Background(), func(tx *sql.Tx) error {
		return box.Record(context.Background(), tx, notes, events...)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// sent is one message that the fake accepted or was asked to.
type sent struct {
	topic, id, key, payload string
	md                      message.Metadata
}

// fake is a scripted, durable transport.
type fake struct {
	limits  transport.Limits
	onCall  func(ctx context.Context, topic string, msgs []*message.Message) error
	onOne   func(msg *message.Message) error
	mu      sync.Mutex
	sent    []sent
	calls   int
	changed chan struct{}
}

func newFake() *fake { return &fake{changed: make(chan struct{})} }

func (f *fake) Publisher() message.Publisher { return f }
func (f *fake) Subscriber(transport.SubscriberConfig) (transport.Subscriber, error) {
	return nil, errors.New("fake: no subscriber")
}
func (f *fake) Capabilities() transport.Capabilities {
	return transport.Capabilities{Name: "fake", Durable: true, Limits: f.limits}
}
func (f *fake) Close() error { return nil }

func (f *fake) Publish(topic string, msgs ...*message.Message) error {
	f.mu.Lock()
	f.calls++
	f.mu.Unlock()
	if f.onCall != nil {
		if err := f.onCall(msgs[0].Context(), topic, msgs); err != nil {
			return err
		}
	}
	var failures []transport.Failure
	stopped := make(map[string]bool)
	for i, msg := range msgs {
		key := transport.Key(msg)
		var err error
		switch {
		case key != "" && stopped[key]:
			err = transport.ErrSkipped
		case f.onOne != nil:
			err = f.onOne(msg)
		}
		if err != nil {
			stopped[key] = true
			failures = append(failures, transport.Failure{Index: i, ID: msg.UUID, Err: err})
			continue
		}
		f.accept(topic, msg)
	}
	if failures != nil {
		return &transport.PublishError{Topic: topic, Failures: failures}
	}
	return nil
}

func (f *fake) accept(topic string, msg *message.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, sent{topic, msg.UUID, transport.Key(msg), string(msg.Payload), msg.Metadata})
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) all() []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sent(nil), f.sent...)
}

func (f *fake) ids() []string {
	var ids []string
	for _, s := range f.all() {
		ids = append(ids, s.id)
	}
	return ids
}

// await returns once n messages were accepted.
func (f *fake) await(tb testing.TB, n int) {
	tb.Helper()
	deadline := time.After(30 * time.Second)
	for {
		f.mu.Lock()
		have, changed := len(f.sent), f.changed
		f.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			tb.Fatalf("%d messages were accepted, want %d", have, n)
		}
	}
}

// eventually waits for a fact in the database.
func eventually(tb testing.TB, what string, fact func() bool) {
	tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !fact() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("never happened: %s", what)
		}
	}
}

func count(tb testing.TB, db *sql.DB, where string) int {
	tb.Helper()
	var n int
	if err := db.QueryRow("SELECT count(*) FROM seambus_outbox WHERE " + where).Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

func keyed(key string, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = note{Key: key, N: i + 1, ID: fmt.Sprintf("%s-%d", key, i+1)}
	}
	return events
}

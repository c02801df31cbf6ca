package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/partition"
	"github.com/seambus/seambus/transport"
)

const (
	// stall is how long fetching waits for a full partition before it asks whether the workers have enough to do. Pausing
	// throws away what was fetched ahead, and a resumed partition waits for the fetch under way to end, so it is for
	// partitions that are stuck, not for those that are merely busy.
	stall = 20 * time.Millisecond
	// leaveTimeout bounds leaving a group whose broker does not answer.
	leaveTimeout = 5 * time.Second
)

// member is this process in one group.
type member struct {
	transport *Transport
	group     string
	client    *kgo.Client

	ready   chan struct{} // closed when client is set, which begins to call back before
	stop    context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup
	room    chan struct{} // holds a token when a partition has become less full

	// committing is held during a commit and while partitions are released: nothing is committed for a partition that
	// somebody else may have.
	committing sync.Mutex

	mu       sync.Mutex
	streams  map[string]*stream
	assigned map[string]map[int32]*assignment
	number   uint64 // of the last assignment
}

// stream is a topic in a member: the messages that its subscriptions share.
type stream struct {
	member *member
	topic  string
	lanes  *partition.Lanes[entry]
	subs   int // under the transport's lock

	workers atomic.Int64 // that take messages
	busy    atomic.Int64 // of them, those that have one
}

// saturated reports whether hardly a worker is idle, so that nothing is gained by taking more in.
func (st *stream) saturated() bool { return 4*st.busy.Load() >= 3*st.workers.Load() }

// join finds or makes the stream of a topic, and the group's member with it.
func (t *Transport) join(group, topic string) (*stream, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	m, ok := t.members[group]
	if !ok {
		var err error
		if m, err = newMember(t, group, topic); err != nil {
			return nil, err
		}
		t.members[group] = m
	}
	st := m.stream(topic)
	st.subs++
	if !ok {
		m.start()
	} else if st.subs == 1 {
		m.client.AddConsumeTopics(topic)
	}
	return st, nil
}

func newMember(t *Transport, group, topic string) (*member, error) {
	m := &member{
		transport: t, group: group, ready: make(chan struct{}), room: make(chan struct{}, 1),
		streams: make(map[string]*stream), assigned: make(map[string]map[int32]*assignment),
	}
	m.stream(topic)
	heartbeat := min(3*time.Second, t.cfg.session/3)
	opts := append(t.cfg.common(),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(fetchWait),
		kgo.FetchMaxBytes(int32(max(fetchBytes, t.cfg.maxBytes+batchRoom))),
		kgo.FetchMaxPartitionBytes(int32(max(fetchPartitionBytes, t.cfg.maxBytes+batchRoom))),
		kgo.BrokerMaxReadBytes(int32(max(100<<20, 2*(t.cfg.maxBytes+batchRoom)))),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(t.cfg.session),
		kgo.HeartbeatInterval(heartbeat),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) { m.onAssigned(parts) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) { m.onRevoked(parts) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) { m.onLost(parts) }),
	)
	if t.cfg.instance != "" {
		opts = append(opts, kgo.InstanceID(t.cfg.instance))
	}
	client, err := kgo.NewClient(opts...)
	m.client = client
	close(m.ready)
	return m, err
}

// stream finds or makes the stream of topic.
func (m *member) stream(topic string) *stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	st, ok := m.streams[topic]
	if !ok {
		st = &stream{member: m, topic: topic, lanes: partition.NewLanes[entry](partition.LanesConfig{})}
		m.streams[topic] = st
	}
	return st
}

func (m *member) start() {
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.running.Go(m.poll)
	m.running.Go(m.commitLoop)
}

// leave says that one subscription of st is over. The last one gives the topic up, and the group if it has no other.
func (m *member) leave(st *stream) {
	m.transport.mu.Lock()
	st.subs--
	lastOfTopic := st.subs == 0
	last := false
	if lastOfTopic {
		m.mu.Lock()
		delete(m.streams, st.topic)
		last = len(m.streams) == 0
		m.mu.Unlock()
	}
	if last {
		delete(m.transport.members, m.group)
	}
	m.transport.mu.Unlock()
	if !lastOfTopic {
		return
	}
	st.lanes.Close()
	if err := m.commitNow(); err != nil {
		m.log(slog.LevelWarn, "commit before leaving", slog.Any("error", err))
	}
	if last {
		m.close()
		return
	}
	m.client.PurgeTopicsFromConsuming(st.topic)
}

func (m *member) close() {
	m.stop()
	m.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := m.client.LeaveGroupContext(ctx); err != nil {
		m.log(slog.LevelWarn, "leave the group", slog.Any("error", err))
	}
	m.client.CloseAllowingRebalance()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, parts := range m.assigned { // if leaving has failed
		for _, a := range parts {
			a.cut()
		}
	}
}

func (m *member) log(level slog.Level, msg string, attrs ...slog.Attr) {
	m.transport.cfg.logger.LogAttrs(context.Background(), level, "kafka: "+msg, append(attrs, slog.String("group", m.group))...)
}

// poll takes records in until the member is closed.
func (m *member) poll() {
	for m.waitForRoom() {
		fetches := m.client.PollRecords(m.ctx, m.transport.cfg.maxWaiting)
		fetches.EachError(m.fetchFailed)
		fetches.EachPartition(m.take)
		m.client.AllowRebalance() // it was barred, so that nothing is taken in for a partition that is gone
		if m.ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
	}
}

func (m *member) fetchFailed(topic string, number int32, err error) {
	switch {
	case m.ctx.Err() != nil, errors.Is(err, kgo.ErrClientClosed):
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed),
		errors.Is(err, kerr.SaslAuthenticationFailed):
		m.log(slog.LevelError, "not allowed to consume", slog.String("topic", topic), slog.Any("error", err))
	default:
		m.log(slog.LevelWarn, "fetch", slog.String("topic", topic), slog.Int("partition", int(number)), slog.Any("error", err))
	}
}

func (m *member) take(p kgo.FetchTopicPartition) {
	if len(p.Records) == 0 {
		return
	}
	where := []slog.Attr{slog.String("topic", p.Topic), slog.Int("partition", int(p.Partition))}
	a := m.assignment(p.Topic, p.Partition)
	if a == nil {
		m.log(slog.LevelError, "records of a partition that is not assigned", where...)
		return
	}
	for left := a.add(p.Records); len(left) > 0 && a != nil; left = a.add(left) {
		m.log(slog.LevelWarn, "the log goes back: it was cut off or made anew", append(where, slog.Int64("offset", left[0].Offset))...)
		a.retire(transport.ErrLeaseLost)
		a.cut()
		if a = m.assign(p.Topic, p.Partition); a == nil {
			return
		}
	}
}

func (m *member) assignment(topic string, number int32) *assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assigned[topic][number]
}

// assign begins a new assignment, or returns nil if nobody subscribes to the topic any more.
func (m *member) assign(topic string, number int32) *assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	st, ok := m.streams[topic]
	if !ok {
		return nil
	}
	m.number++
	prefix := binary.BigEndian.AppendUint64(nil, m.number)
	a := newAssignment(m, st, number, string(prefix))
	if m.assigned[topic] == nil {
		m.assigned[topic] = make(map[int32]*assignment)
	}
	m.assigned[topic][number] = a
	return a
}

// waitForRoom waits while a partition is full and the workers have enough to do. If they have not, the full partition is
// stuck behind some of its keys: it is paused, and the others go on. It reports false when the member is closed.
func (m *member) waitForRoom() bool {
	var ticker *time.Ticker
	for {
		full := m.full()
		if len(full) == 0 {
			return m.ctx.Err() == nil
		}
		if ticker == nil {
			ticker = time.NewTicker(stall)
			defer ticker.Stop()
		}
		select {
		case <-m.room:
		case <-m.ctx.Done():
			return false
		case <-ticker.C:
			if m.saturated() {
				continue
			}
			for _, a := range full {
				a.pause()
			}
		}
	}
}

func (m *member) full() (full []*assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range m.assigned {
		for _, a := range of {
			if a.blocks() {
				full = append(full, a)
			}
		}
	}
	return full
}

func (m *member) saturated() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, st := range m.streams {
		if !st.saturated() {
			return false
		}
	}
	return true
}

// poke says that a partition has become less full.
func (m *member) poke() {
	select {
	case m.room <- struct{}{}:
	default:
	}
}

// assignments returns those of parts, or all if parts is nil.
func (m *member) assignments(parts map[string][]int32) []*assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*assignment
	if parts == nil {
		for _, of := range m.assigned {
			for _, a := range of {
				all = append(all, a)
			}
		}
		return all
	}
	for topic, numbers := range parts {
		for _, n := range numbers {
			if a, ok := m.assigned[topic][n]; ok {
				all = append(all, a)
			}
		}
	}
	return all
}

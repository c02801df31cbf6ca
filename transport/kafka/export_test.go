package kafka

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/seambus/seambus/partition"
)

// Gate lets a test cut a transport off from its broker, as a killed process is.
type Gate struct {
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

// WithGate makes the transport's connections pass g.
func WithGate(g *Gate) Option {
	return option(func(c *config) {
		c.dialer = func(d *net.Dialer) dialFunc {
			return func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := d.DialContext(ctx, network, address)
				g.mu.Lock()
				defer g.mu.Unlock()
				if err == nil && g.shut {
					_ = conn.Close()
					err = &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
				}
				if err != nil {
					return nil, err
				}
				g.conns = append(g.conns, conn)
				return conn, nil
			}
		}
	})
}

// Shut cuts every connection and refuses new ones.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.conns {
		_ = c.Close()
	}
}

// Open lets connections pass again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// MemberID returns what the group calls this transport's member, or nothing if there is none.
func (t *Transport) MemberID(group string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[group]
	if m == nil {
		return ""
	}
	id, _ := m.client.GroupMetadata()
	return id
}

// Expel makes the broker put the transport's member out of the group, as if its session had run out.
func (t *Transport) Expel(ctx context.Context, group string) error {
	id := t.MemberID(group)
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = group, id
	req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: id}}
	_, err := req.RequestWith(ctx, t.client)
	return err
}

func (t *Transport) find(group, topic string, number int32) *assignment {
	t.mu.Lock()
	m := t.members[group]
	t.mu.Unlock()
	if m == nil {
		return nil
	}
	return m.assignment(topic, number)
}

// Paused reports whether the partition is paused.
func (t *Transport) Paused(group, topic string, number int32) bool {
	a := t.find(group, topic, number)
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paused
}

// Held returns how many of the partition's messages are in memory and not finished.
func (t *Transport) Held(group, topic string, number int32) int {
	a := t.find(group, topic, number)
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// Revoke does what the group does when it takes a topic's partitions away.
func (t *Transport) Revoke(group, topic string) {
	t.mu.Lock()
	m := t.members[group]
	t.mu.Unlock()
	m.client.PurgeTopicsFromConsuming(topic)
}

// KeyOn returns a key that is placed on partition p of n, and is none of not.
func KeyOn(p, n int, not ...string) string {
	for i := 'a'; ; i++ {
		if key := string(i); partition.Of(key, n) == p && !slices.Contains(not, key) {
			return key
		}
	}
}

// Generation returns how many times the transport's group has rebalanced, as its member knows it.
func (t *Transport) Generation(group string) int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, generation := t.members[group].client.GroupMetadata()
	return generation
}

package kafka

import (
	"context"
	"log/slog"
	"time"

	"github.com/seambus/seambus/transport"
)

func (m *member) onAssigned(parts map[string][]int32) {
	<-m.ready
	for topic, numbers := range parts {
		for _, n := range numbers {
			m.assign(topic, n)
		}
	}
	if len(parts) > 0 {
		m.log(slog.LevelDebug, "assigned", slog.Any("partitions", parts))
	}
}

// onRevoked runs while the partitions are still this member's: what is finished in time is committed before they go.
func (m *member) onRevoked(parts map[string][]int32) {
	<-m.ready
	revoked := m.assignments(parts)
	if len(parts) == 0 || len(revoked) == 0 {
		return
	}
	m.log(slog.LevelDebug, "revoked", slog.Any("partitions", parts))
	timer := time.NewTimer(m.transport.cfg.grace)
	defer timer.Stop()
	idle := make([]<-chan struct{}, len(revoked))
	for i, a := range revoked {
		idle[i] = a.retire(transport.ErrLeaseLost)
	}
wait:
	for _, settled := range idle {
		select {
		case <-settled:
		default:
			select {
			case <-settled:
			case <-timer.C:
				break wait
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	m.committing.Lock()
	defer m.committing.Unlock()
	if err := m.commit(ctx, revoked); err != nil {
		m.log(slog.LevelWarn, "commit before release", slog.Any("error", err))
	}
	m.release(revoked)
}

// onLost runs when the partitions may be somebody else's already: nothing more can be committed.
func (m *member) onLost(parts map[string][]int32) {
	<-m.ready
	lost := m.assignments(parts)
	if len(lost) == 0 {
		return
	}
	m.log(slog.LevelWarn, "lost", slog.Any("partitions", parts))
	m.committing.Lock()
	defer m.committing.Unlock()
	for _, a := range lost {
		a.retire(transport.ErrLeaseLost)
	}
	m.release(lost)
}

func (m *member) release(gone []*assignment) {
	for _, a := range gone {
		a.cut()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range gone {
		if m.assigned[a.stream.topic][a.number] == a {
			delete(m.assigned[a.stream.topic], a.number)
		}
	}
}

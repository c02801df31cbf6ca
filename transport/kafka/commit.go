package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (m *member) commitLoop() {
	ticker := time.NewTicker(m.transport.cfg.commit)
	defer ticker.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-ticker.C:
		}
		if err := m.commitAll(m.ctx); err != nil && m.ctx.Err() == nil {
			m.log(slog.LevelWarn, "commit", slog.Any("error", err))
		}
	}
}

// commitNow commits what is finished.
func (m *member) commitNow() error {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	return m.commitAll(ctx)
}

func (m *member) commitAll(ctx context.Context) error {
	m.committing.Lock()
	defer m.committing.Unlock()
	return m.commit(ctx, m.assignments(nil))
}

// commit commits the watermarks of parts that have moved. committing is held.
func (m *member) commit(ctx context.Context, parts []*assignment) error {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for _, a := range parts {
		at, moved := a.pending()
		if !moved {
			continue
		}
		if offsets[a.stream.topic] == nil {
			offsets[a.stream.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[a.stream.topic][a.number] = at
	}
	if len(offsets) == 0 {
		return nil
	}
	var refused []error
	m.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			refused, offsets = []error{classify(err)}, nil
			return
		}
		refused = dropRefused(offsets, resp)
	})
	for _, a := range parts {
		if at, ok := offsets[a.stream.topic][a.number]; ok {
			a.hasCommitted(at.Offset)
		}
	}
	return errors.Join(refused...)
}

// dropRefused takes out of offsets what the broker refused to commit, and says why it did.
func dropRefused(offsets map[string]map[int32]kgo.EpochOffset, resp *kmsg.OffsetCommitResponse) (refused []error) {
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				refused = append(refused, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, classify(err)))
				delete(offsets[t.Topic], p.Partition)
			}
		}
	}
	return refused
}

package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A log that was cut off or made anew is taken from where it goes on, as another assignment.
func TestLogThatGoesBackIsTakenAgain(t *testing.T) {
	t.Parallel()
	m := &member{
		transport: &Transport{cfg: defaults(nil)},
		streams:   make(map[string]*stream), assigned: make(map[string]map[int32]*assignment),
	}
	st := m.stream("orders")
	before := m.assign("orders", 0)
	fetch := func(offsets ...int64) {
		p := kgo.FetchTopicPartition{Topic: "orders"}
		for _, o := range offsets {
			p.Records = append(p.Records, &kgo.Record{Topic: "orders", Offset: o, Key: []byte("k")})
		}
		m.take(p)
	}
	fetch(7, 8, 9)
	d := &delivery{worker: new(worker)}
	d.Init(context.Background(), time.Time{})
	before.enter(d)
	fetch(0, 1)
	after := m.assignment("orders", 0)
	if after == before || context.Cause(d) == nil {
		t.Fatal("the assignment goes on as if nothing had happened")
	}
	before.finish(7)
	if at, moved := before.pending(); moved {
		t.Errorf("an assignment that is gone wants to commit %v", at)
	}
	var got []int64
	for range 5 {
		taken, err := st.lanes.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if taken.Item.assigned == after {
			got = append(got, taken.Item.Offset)
			after.finish(taken.Item.Offset)
		}
		taken.Done()
	}
	if at, moved := after.pending(); len(got) != 2 || !moved || at.Offset != 2 {
		t.Errorf("took %v and would commit %v, want 0 and 1, and 2", got, at)
	}
}

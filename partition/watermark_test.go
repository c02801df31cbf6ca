package partition_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seambus/seambus/partition"
)

func TestWatermarkNeverPassesUnfinishedWork(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var w partition.Watermark
	if _, ok := w.Low(); ok {
		t.Error("Low before the first Begin = true")
	}
	var open []int64
	next := int64(100)
	for range 20_000 {
		if len(open) == 0 || rng.IntN(2) == 0 {
			if !w.Begin(next) {
				t.Fatalf("Begin(%d) = false", next)
			}
			open = append(open, next)
			next += 1 + rng.Int64N(3) // compacted logs have gaps
			continue
		}
		i := rng.IntN(len(open))
		before, _ := w.Low()
		moved := w.Done(open[i])
		open = append(open[:i], open[i+1:]...)
		low, _ := w.Low()
		if len(open) > 0 && low != open[0] {
			t.Fatalf("low = %d with %d unfinished", low, open[0])
		}
		if moved != (low != before) {
			t.Fatalf("Done said moved %t, low went from %d to %d", moved, before, low)
		}
	}
	for _, o := range open {
		w.Done(o)
	}
	if w.Gap() != 0 {
		t.Errorf("gap = %d after all is done", w.Gap())
	}
}

func TestWatermarkIgnoresNonsense(t *testing.T) {
	t.Parallel()
	var w partition.Watermark
	w.Begin(5)
	if w.Begin(5) || w.Begin(4) {
		t.Error("Begin of an offset that is not higher = true")
	}
	if w.Done(7) {
		t.Error("Done of an offset that was not begun = true")
	}
	if !w.Done(5) || w.Done(5) {
		t.Error("Done twice did not say true, then false")
	}
	if low, _ := w.Low(); low != 6 {
		t.Errorf("low = %d, want 6", low)
	}
}

func ExampleWatermark() {
	var w partition.Watermark
	for offset := range int64(3) {
		w.Begin(offset)
	}
	w.Done(1)
	w.Done(2)
	low, _ := w.Low()
	fmt.Println("with 0 unfinished, commit", low)
	w.Done(0)
	low, _ = w.Low()
	fmt.Println("with all finished, commit", low)
	// Output:
	// with 0 unfinished, commit 0
	// with all finished, commit 3
}

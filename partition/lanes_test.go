package partition_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seambus/seambus/partition"
)

// Many workers take, fail, delay and finish items at random: of each key every item is finished, in order, and never two
// items of a key are in flight at once.
func TestLanesKeepOrderPerKeyUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	for run := range 20 {
		seed := uint64(time.Now().UnixNano()) + uint64(run)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomSchedule(t, seed) })
		})
	}
}

type item struct{ key, n int }

func randomSchedule(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	keys, perKey, workers := 1+rng.IntN(20), 1+rng.IntN(50), 1+rng.IntN(16)
	maxInFlight := rng.IntN(8) // 0 is unlimited
	lanes := partition.NewLanes[item](partition.LanesConfig{MaxInFlight: maxInFlight, MaxHeld: 1 + rng.IntN(100)})
	var mu sync.Mutex
	done, busy := make(map[int]int), make(map[int]int)
	var wg, left sync.WaitGroup
	left.Add(keys * perKey)
	for w := range workers {
		wrng := rand.New(rand.NewPCG(seed, uint64(100+w)))
		wg.Go(func() {
			for {
				batch, err := lanes.TakeBatch(t.Context(), 1+wrng.IntN(5))
				if err != nil {
					return
				}
				mu.Lock()
				if n := lanes.InFlight(); maxInFlight > 0 && n > maxInFlight {
					t.Errorf("%d in flight, want at most %d", n, maxInFlight)
				}
				owned := make(map[int]bool)
				for _, taken := range batch {
					if k := taken.Item.key; !owned[k] {
						owned[k] = true
						if busy[k]++; busy[k] > 1 {
							t.Errorf("key %d is in flight twice", k)
						}
					}
				}
				mu.Unlock()
				time.Sleep(time.Duration(wrng.IntN(20)) * time.Millisecond) // virtual
				settleBatch(t, wrng, &mu, batch, done, busy, &left)
			}
		})
	}
	for n := range perKey {
		for k := range keys {
			if err := lanes.Add(t.Context(), strconv.Itoa(k), item{k, n}); err != nil {
				t.Error(err)
			}
		}
	}
	left.Wait()
	lanes.Close()
	wg.Wait()
	if lanes.Len() != 0 || lanes.InFlight() != 0 {
		t.Errorf("len %d, in flight %d at the end", lanes.Len(), lanes.InFlight())
	}
}

// settleBatch finishes a prefix of each key's run and gives the rest back, as a partly failed batch does.
func settleBatch(
	t *testing.T, rng *rand.Rand, mu *sync.Mutex, batch []*partition.Taken[item], done, busy map[int]int, left *sync.WaitGroup,
) {
	mu.Lock()
	defer mu.Unlock()
	failed := make(map[int]bool)
	for _, taken := range batch {
		busy[taken.Item.key] = 0
	}
	order := rng.Perm(len(batch)) // settled in any order
	verdict := make([]bool, len(batch))
	for i, taken := range batch {
		k := taken.Item.key
		failed[k] = failed[k] || rng.IntN(4) == 0
		if verdict[i] = !failed[k]; verdict[i] {
			if taken.Item.n != done[k] {
				t.Errorf("key %d: item %d after %d", k, taken.Item.n, done[k]-1)
			}
			done[k]++
		}
	}
	for _, i := range order {
		if verdict[i] {
			batch[i].Done()
			left.Done()
		} else {
			batch[i].Retry(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
		if batch[i].Done() || batch[i].Retry(0) {
			t.Error("settled twice")
		}
	}
}

func TestDelayedKeyStopsItselfOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes := partition.NewLanes[string](partition.LanesConfig{})
		for _, s := range []string{"a1", "a2", "b1"} {
			if err := lanes.TryAdd(s[:1], s); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		a1, _ := lanes.Take(t.Context())
		a1.Retry(time.Hour)
		var got []string
		for range 3 {
			taken, err := lanes.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s after %v", taken.Item, time.Since(began)))
			taken.Done()
		}
		if want := "[b1 after 0s a1 after 1h0m0s a2 after 1h0m0s]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

func TestKeylessItemsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	lanes := partition.NewLanes[int](partition.LanesConfig{})
	for i := range 3 {
		if err := lanes.TryAdd("", i); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := lanes.TakeBatch(t.Context(), 10)
	if err != nil || len(batch) != 3 {
		t.Errorf("TakeBatch = %d items, %v", len(batch), err)
	}
}

func TestAddBlocksWhileFullAndTryAddRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes := partition.NewLanes[int](partition.LanesConfig{MaxHeld: 1})
		if err := lanes.TryAdd("k", 1); err != nil {
			t.Fatal(err)
		}
		if err := lanes.TryAdd("k", 2); !errors.Is(err, partition.ErrFull) {
			t.Errorf("TryAdd = %v, want ErrFull", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lanes.Add(ctx, "k", 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Add = %v, want the context's error", err)
		}
		added := make(chan error, 1)
		go func() { added <- lanes.Add(t.Context(), "k", 3) }()
		synctest.Wait()
		taken, _ := lanes.Take(t.Context())
		taken.Done()
		if err := <-added; err != nil {
			t.Errorf("Add = %v", err)
		}
	})
}

func TestCloseWakesEveryone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes := partition.NewLanes[int](partition.LanesConfig{MaxHeld: 1, MaxInFlight: 1})
		if err := lanes.TryAdd("k", 1); err != nil {
			t.Fatal(err)
		}
		taken, _ := lanes.Take(t.Context())
		errs := make(chan error, 6)
		for range 3 {
			go func() { errs <- lanes.Add(t.Context(), "k", 2) }()
			go func() { _, err := lanes.Take(t.Context()); errs <- err }()
		}
		synctest.Wait()
		lanes.Close()
		lanes.Close()
		for range 6 {
			if err := <-errs; !errors.Is(err, partition.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		if !taken.Done() {
			t.Error("an item in flight could not be settled after Close")
		}
	})
}

func TestCancelledTakeLosesNoWakeUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes := partition.NewLanes[int](partition.LanesConfig{})
		defer lanes.Close()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 2)
		go func() { _, err := lanes.Take(ctx); got <- err }()
		go func() { _, err := lanes.Take(t.Context()); got <- err }()
		synctest.Wait()
		cancel()
		if err := lanes.TryAdd("k", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := <-got; err == nil {
			return // the cancelled call was faster: the item is taken, nothing is lost
		}
		if err := <-got; err != nil {
			t.Errorf("the other call got %v, want the item", err)
		}
	})
}

// It is not parallel: the heap it measures is everybody's.
func TestMillionKeysLeaveNoMemoryBehind(t *testing.T) { //nolint:paralleltest // see above
	lanes := partition.NewLanes[int](partition.LanesConfig{MaxHeld: 100_000})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const keys, at = 1_000_000, 50_000
	for i := range keys {
		if err := lanes.TryAdd(strconv.Itoa(i), i); err != nil {
			t.Fatal(err)
		}
		if i%at == at-1 {
			for lanes.Len() > 0 {
				taken, err := lanes.Take(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				taken.Done()
			}
		}
	}
	after := heap()
	t.Logf("heap %d kB before, %d kB after", before>>10, after>>10)
	if lanes.Len() != 0 {
		t.Errorf("%d items left", lanes.Len())
	}
	if after > before+2<<20 {
		t.Errorf("heap grew by %d kB over %d keys", (after-before)>>10, keys)
	}
	runtime.KeepAlive(lanes)
}

func FuzzLanes(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0, 0, 9, 200, 17})
	f.Fuzz(func(t *testing.T, script []byte) {
		lanes := partition.NewLanes[item](partition.LanesConfig{})
		added, done := make(map[int]int), make(map[int]int)
		var inFlight []*partition.Taken[item]
		for _, op := range script {
			key := int(op>>2) % 4
			switch {
			case op&3 < 2:
				_ = lanes.TryAdd(strconv.Itoa(key), item{key, added[key]})
				added[key]++
			case len(inFlight) > 0 && op&3 == 2:
				taken := inFlight[0]
				inFlight = inFlight[1:]
				if op>>7 == 1 {
					taken.Retry(0)
					continue
				}
				if taken.Item.n != done[taken.Item.key] {
					t.Fatalf("key %d: %d finished after %d", taken.Item.key, taken.Item.n, done[taken.Item.key]-1)
				}
				done[taken.Item.key]++
				taken.Done()
			case lanes.Len() > lanes.InFlight():
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if taken, err := lanes.Take(ctx); err == nil {
					inFlight = append(inFlight, taken)
				}
			}
		}
		finishAll(t, lanes, inFlight, done)
		if !maps.Equal(done, added) {
			t.Fatalf("finished %v of %v", done, added)
		}
	})
}

// finishAll gives back what is in flight, last item first, and finishes whatever the lanes hold.
func finishAll(t *testing.T, lanes *partition.Lanes[item], inFlight []*partition.Taken[item], done map[int]int) {
	t.Helper()
	for _, taken := range slices.Backward(inFlight) {
		taken.Retry(0)
	}
	for lanes.Len() > 0 {
		if lanes.InFlight() > 0 {
			t.Fatalf("%d in flight after all was settled", lanes.InFlight())
		}
		taken, err := lanes.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if taken.Item.n != done[taken.Item.key] {
			t.Fatalf("key %d: %d came after %d", taken.Item.key, taken.Item.n, done[taken.Item.key]-1)
		}
		done[taken.Item.key]++
		taken.Done()
	}
}

func BenchmarkLanes(b *testing.B) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	lanes := partition.NewLanes[int](partition.LanesConfig{})
	b.ReportAllocs()
	for i := range b.N {
		if err := lanes.TryAdd(keys[i%len(keys)], i); err != nil {
			b.Fatal(err)
		}
		taken, err := lanes.Take(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		taken.Done()
	}
}

func ExampleLanes() {
	lanes := partition.NewLanes[string](partition.LanesConfig{})
	ctx := context.Background()
	for _, step := range []string{"41 preparing", "41 ready", "42 preparing"} {
		if err := lanes.Add(ctx, step[:2], step); err != nil {
			fmt.Println(err)
		}
	}
	first, _ := lanes.Take(ctx)
	second, _ := lanes.Take(ctx) // of another order: 41 is busy
	fmt.Println(first.Item, "|", second.Item)
	first.Done()
	third, _ := lanes.Take(ctx)
	fmt.Println(third.Item)
	// Output:
	// 41 preparing | 42 preparing
	// 41 ready
}

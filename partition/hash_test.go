package partition_test

import (
	"fmt"
	"testing"

	"github.com/seambus/seambus/partition"
)

// The vectors are those of the Java client's own test of murmur2, as signed 32-bit numbers.
func TestHashEqualsTheJavaClients(t *testing.T) {
	t.Parallel()
	for key, signed := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got, want := partition.Hash(key), uint32(signed)&0x7fffffff; got != want {
			t.Errorf("Hash(%q) = %d, want %d", key, got, want)
		}
		if got, want := partition.Of(key, 7), int(uint32(signed)&0x7fffffff)%7; got != want {
			t.Errorf("Of(%q, 7) = %d, want %d", key, got, want)
		}
	}
}

func TestShardsAreAllUsedAndIndependentOfPartitions(t *testing.T) {
	t.Parallel()
	const partitions = 8
	seen := make(map[int]int)
	perPartition := make(map[int]map[int]bool)
	for i := range 200_000 {
		key := fmt.Sprint(i)
		s, p := partition.Shard(key), partition.Of(key, partitions)
		if s < 0 || s >= partition.Shards {
			t.Fatalf("Shard(%q) = %d", key, s)
		}
		seen[s]++
		if perPartition[s] == nil {
			perPartition[s] = make(map[int]bool)
		}
		perPartition[s][p] = true
	}
	for s := range partition.Shards {
		if seen[s] < 100 || seen[s] > 320 {
			t.Errorf("shard %d has %d of 200,000 keys, want about 195", s, seen[s])
		}
		if len(perPartition[s]) != partitions {
			t.Errorf("keys of shard %d lie on %d of %d partitions", s, len(perPartition[s]), partitions)
		}
	}
}

func TestOfRefusesNoPartitions(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("Of(key, 0) did not panic")
		}
	}()
	partition.Of("key", 0)
}

func FuzzHash(f *testing.F) {
	for _, s := range []string{"", "a", "ab", "abc", "abcd", "\x00\xff", "4711"} {
		f.Add(s, 3)
	}
	f.Add("", 1<<31-1)
	f.Fuzz(func(t *testing.T, key string, n int) {
		if n < 1 {
			return
		}
		if p := partition.Of(key, n); p < 0 || p >= n || p != partition.Of(key, n) {
			t.Errorf("Of(%q, %d) = %d", key, n, p)
		}
		if s := partition.Shard(key); s < 0 || s >= partition.Shards {
			t.Errorf("Shard(%q) = %d", key, s)
		}
	})
}

func TestOfTakesAnyPositiveNumber(t *testing.T) {
	t.Parallel()
	for n := 1; n > 0; n <<= 1 { // of 1<<32 the lower 32 bits are zero
		if got, want := partition.Of("foobar", n), int(partition.Hash("foobar"))%n; got != want {
			t.Errorf("Of(foobar, %d) = %d, want %d", n, got, want)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	for _, key := range []string{"4711", "018f9c1e-7b6a-7c3d-9a52-0d2f6b1c8e4a"} {
		b.Run(fmt.Sprintf("%d bytes", len(key)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				partition.Hash(key)
			}
		})
	}
}

func ExampleOf() {
	fmt.Println(partition.Of("order-41", 4) == partition.Of("order-41", 4))
	// Output: true
}

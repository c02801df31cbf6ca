package partition

// Shards is the number of shards that an outbox's leases cover by range: a 10-bit hash of the key.
const Shards = 1024

// Hash returns the hash that Kafka's Java client places a keyed record by: 32-bit MurmurHash2 of the key's bytes with the
// client's seed, the sign bit cleared. Producers in other languages that follow it agree on the partition.
//
// The algorithm is Austin Appleby's MurmurHash2, in the public domain; the seed and the masking are Kafka's.
func Hash(key string) uint32 { return murmur2(key) & 0x7fffffff }

// Of returns the partition, from 0 to n-1, on which Kafka's Java client places key. It panics if n is less than 1.
func Of(key string, n int) int {
	if n < 1 {
		panic("partition: number of partitions must be at least 1")
	}
	return int(Hash(key)) % n // 31 bits: never negative, and n may be any int
}

// Shard returns the shard of key, from 0 to [Shards]-1. It takes other bits of the hash than [Of] does for the usual
// numbers of partitions, so that one shard's keys spread over partitions.
func Shard(key string) int { return int(Hash(key)>>16) % Shards }

func murmur2(key string) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := uint32(key[0]) | uint32(key[1])<<8 | uint32(key[2])<<16 | uint32(key[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

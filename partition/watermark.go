package partition

import "sync"

// Watermark finds the offset below which everything is finished, while work finishes in any order: what a consumer of a
// log may commit. Offsets are begun in ascending order; gaps between them count as finished. The zero value is ready to
// use, and it is safe for concurrent use. Memory is bounded by the distance between the oldest unfinished and the newest
// offset begun.
type Watermark struct {
	mu      sync.Mutex
	entries []mark // ascending; the first one is unfinished
	low     int64
	begun   bool
}

type mark struct {
	offset int64
	done   bool
}

// Begin says that the work at offset has begun. It reports false, and changes nothing, if offset is not higher than every
// offset begun before.
func (w *Watermark) Begin(offset int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.entries); n > 0 && w.entries[n-1].offset >= offset || n == 0 && w.begun && offset < w.low {
		return false
	}
	if len(w.entries) == 0 {
		w.low = offset
	}
	w.begun = true
	w.entries = append(w.entries, mark{offset: offset})
	return true
}

// Done says that the work at offset has finished. It reports whether the low watermark moved. An offset that was not
// begun, or is done already, is ignored.
func (w *Watermark) Done(offset int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, ok := w.find(offset)
	if !ok {
		return false
	}
	w.entries[i].done = true
	if i > 0 {
		return false
	}
	n := 0
	for n < len(w.entries) && w.entries[n].done {
		n++
	}
	if n == len(w.entries) {
		w.low = w.entries[n-1].offset + 1
		w.entries = w.entries[:0]
		return true
	}
	w.entries = w.entries[n:]
	w.low = w.entries[0].offset
	return true
}

func (w *Watermark) find(offset int64) (int, bool) {
	lo, hi := 0, len(w.entries)
	for lo < hi {
		if mid := (lo + hi) / 2; w.entries[mid].offset < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(w.entries) && w.entries[lo].offset == offset
}

// Low returns the lowest unfinished offset, or one past the highest begun where all are finished: the position to commit.
// It reports false before the first Begin.
func (w *Watermark) Low() (offset int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low, w.begun
}

// Gap returns how many begun offsets there are from the low watermark on, finished ones included.
func (w *Watermark) Gap() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.entries)
}

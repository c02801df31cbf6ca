package middleware

// keyed is a map by [Key]. Nearly all keys have one group and source, so it is a map by id for each of these, the last one at
// hand: looking up one string costs half of looking up three. It is not safe for concurrent use.
type keyed[V any] struct {
	all  map[origin]map[string]V
	last map[string]V // of at
	at   origin
	n    int
}

type origin struct{ group, source string }

// of returns the ids of k's origin, or nil.
func (m *keyed[V]) of(k Key) map[string]V {
	o := origin{k.Group, k.Source}
	if o == m.at {
		return m.last
	}
	return m.all[o]
}

func (m *keyed[V]) get(k Key) (V, bool) {
	v, ok := m.of(k)[k.ID]
	return v, ok
}

func (m *keyed[V]) put(k Key, v V) {
	ids := m.of(k)
	if ids == nil {
		ids = make(map[string]V)
		if m.all == nil {
			m.all = make(map[origin]map[string]V)
		}
		m.all[origin{k.Group, k.Source}] = ids
	}
	if o := (origin{k.Group, k.Source}); o != m.at || m.last == nil {
		if len(m.last) == 0 {
			delete(m.all, m.at)
		}
		m.at, m.last = o, ids
	}
	before := len(ids)
	ids[k.ID] = v
	m.n += len(ids) - before
}

func (m *keyed[V]) drop(k Key) {
	ids := m.of(k)
	before := len(ids)
	delete(ids, k.ID)
	m.n += len(ids) - before
	if o := (origin{k.Group, k.Source}); len(ids) == 0 && o != m.at {
		delete(m.all, o)
	}
}

func (m *keyed[V]) len() int { return m.n }

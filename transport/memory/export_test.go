package memory

// FailAcks makes the broker fail the deletes of a mode SQS for which fail returns an error.
func FailAcks(fail func(id string) error) Option {
	return option(func(c *config) { c.ackFault = fail })
}

// Renewals returns how many leases the members of a group have extended so far, and how many receipts are in flight.
func (t *Transport) Renewals(topic, group string) (renewals, inFlight int) {
	for _, g := range t.topics[topic].groups {
		if q, ok := g.queue.(*fifo); ok && g.name == group {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.renewals, len(q.inFlight)
		}
	}
	return 0, 0
}

// Committed returns the committed offset of each partition of a group.
func (t *Transport) Committed(topic, group string) []int64 {
	var offsets []int64
	for _, g := range t.topics[topic].groups {
		if q, ok := g.queue.(*partitionLog); ok && g.name == group {
			q.mu.Lock()
			for _, p := range q.parts {
				offsets = append(offsets, p.committed)
			}
			q.mu.Unlock()
		}
	}
	return offsets
}

package memory

// ExpireLease ends the lease of the message called id that a member of the group has in flight: its handler's context is
// cancelled with transport.ErrLeaseLost, its ack is ignored, and the message is delivered again before later ones of its key. It
// reports whether there was such a delivery. Strict modes do it as their broker would: SQS makes the message visible, and the
// handler learns of it when its member next renews; Kafka takes the message's partition from the member. It is a fault to
// inject in tests.
func (t *Transport) ExpireLease(topic, group, id string) bool {
	for _, s := range t.live() {
		for _, sub := range s.all(false) {
			if sub.topic != topic || sub.group.name != group {
				continue
			}
			for i := range sub.workers {
				c := sub.workers[i].holds()
				if c == nil {
					continue
				}
				if s, _, _ := c.message(); s.uuid == id {
					c.expire(&sub.workers[i])
					return true
				}
			}
		}
	}
	return false
}

// Rebalance takes every partition of the group from its member and gives all of them out anew, to other members where there
// are any: contexts of the handlers that run are cancelled with transport.ErrLeaseLost, what is finished is committed before,
// what is acknowledged later is ignored, and everything beyond the committed offsets is delivered again. It returns how many
// partitions were taken: none without WithStrict(Kafka), since only Kafka has them. It is a fault to inject in tests.
func (t *Transport) Rebalance(topic, group string) int {
	t.mu.Lock()
	tp := t.topics[topic]
	t.mu.Unlock()
	if tp == nil {
		return 0
	}
	tp.mu.Lock()
	groups := tp.groups
	tp.mu.Unlock()
	for _, g := range groups {
		if g.name == group {
			return g.queue.rebalance()
		}
	}
	return 0
}

// Crash makes the group's members vanish as killed processes would: they settle nothing more, and what they hold is
// delivered to others once its lease is over. It returns how many subscriptions it ended; their channels stay open until
// they are closed. It is a fault to inject in tests.
func (t *Transport) Crash(group string) int {
	n := 0
	for _, s := range t.live() {
		if s.cfg.Group != group {
			continue
		}
		n += s.Crash()
	}
	return n
}

// Crash makes this one member vanish, as [Transport.Crash] does a group's.
func (s *Subscriber) Crash() int {
	subs := s.all(true)
	for _, sub := range subs {
		sub.crash()
	}
	return len(subs)
}

func (t *Transport) live() []*Subscriber {
	t.mu.Lock()
	defer t.mu.Unlock()
	members := make([]*Subscriber, 0, len(t.members))
	for s := range t.members {
		members = append(members, s)
	}
	return members
}

package memory

// ExpireLease ends the lease of the message called id that a member of the group has in flight: its handler's context is
// cancelled with transport.ErrLeaseLost, its ack is ignored, and the message is delivered again before later ones of its key. It
// reports whether there was such a delivery. It is a fault to inject in tests.
func (t *Transport) ExpireLease(topic, group, id string) bool {
	for _, s := range t.live() {
		for _, sub := range s.all(false) {
			if sub.topic != topic || sub.group.name != group {
				continue
			}
			for i := range sub.workers {
				if sub.workers[i].expire(id) {
					return true
				}
			}
		}
	}
	return false
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

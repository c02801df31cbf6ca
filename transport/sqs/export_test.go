package sqs

// ClientOf returns what t calls.
func ClientOf(t *Transport) Client { return t.client }

// Crash makes t's members of a group vanish as killed processes would.
func Crash(t *Transport, group string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.members {
		if s.cfg.Group != group {
			continue
		}
		for _, sub := range s.all(true) {
			sub.crash()
		}
	}
}

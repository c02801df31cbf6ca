package fakeaws

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

type queue struct {
	name     string
	url      string
	arn      string
	attrs    map[string]string
	messages []*message // in order
	dedup    map[string]accepted
	changed  chan struct{} // closed and replaced when something may have become visible
}

type accepted struct {
	id string
	at time.Time
}

type message struct {
	id       string
	sequence string
	body     string
	attrs    map[string]sqstypes.MessageAttributeValue
	group    string
	dedup    string
	sent     time.Time
	first    time.Time // receipt
	current  time.Time // receipt
	visible  time.Time
	receives int
	receipt  string
}

func (m *message) inFlight(now time.Time) bool { return m.receives > 0 && m.visible.After(now) }

// text is what a test calls a message by: its Watermill UUID, else its body.
func (m *message) text() string {
	if a, ok := m.attrs["_watermill_message_uuid"]; ok && a.StringValue != nil {
		return *a.StringValue
	}
	return m.body
}

func (q *queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// put accepts a message unless its deduplication id is taken; then it answers as for the first one.
func (b *Broker) put(q *queue, m *message) (id, sequence string) {
	now := time.Now()
	scope := m.dedup
	if q.attrs["DeduplicationScope"] == "messageGroup" {
		scope = m.group + "\x00" + m.dedup
	}
	if seen, ok := q.dedup[scope]; ok && now.Sub(seen.at) < dedupWindow {
		return seen.id, ""
	}
	m.id, m.sequence, m.sent = "m-"+b.next(), b.next(), now
	q.dedup[scope] = accepted{m.id, now}
	q.messages = append(q.messages, m)
	q.wake()
	return m.id, m.sequence
}

// collect receives what is visible: groups that are not locked, each in order.
func (b *Broker) collect(q *queue, most int, visibility time.Duration) []*message {
	now := time.Now()
	locked := make(map[string]bool)
	for _, m := range q.messages {
		if m.inFlight(now) {
			locked[m.group] = true
		}
	}
	var got []*message
	for _, m := range slices.Clone(q.messages) {
		if len(got) == most {
			break
		}
		if locked[m.group] || b.redriven(q, m) {
			continue
		}
		if m.receives++; m.receives == 1 {
			m.first = now
		}
		m.current, m.visible = now, now.Add(visibility)
		m.receipt = q.name + "|" + m.id + "|" + b.next()
		got = append(got, m)
	}
	return got
}

// redriven moves a message that was received too often to the dead-letter queue.
func (b *Broker) redriven(q *queue, m *message) bool {
	var p struct {
		Target string          `json:"deadLetterTargetArn"`
		Max    json.RawMessage `json:"maxReceiveCount"`
	}
	if q.attrs["RedrivePolicy"] == "" || json.Unmarshal([]byte(q.attrs["RedrivePolicy"]), &p) != nil {
		return false
	}
	limit, err := strconv.Atoi(strings.Trim(string(p.Max), `"`))
	if err != nil || m.receives < limit {
		return false
	}
	q.remove(m)
	for _, dead := range b.queues {
		if dead.arn == p.Target {
			moved := *m
			moved.receives, moved.visible = 0, time.Time{}
			dead.messages = append(dead.messages, &moved)
			dead.wake()
		}
	}
	return true
}

func (q *queue) remove(m *message) {
	q.messages = slices.DeleteFunc(q.messages, func(x *message) bool { return x == m })
	q.wake()
}

// nextVisible returns when the first message in flight becomes visible by itself.
func (q *queue) nextVisible(now time.Time) (time.Time, bool) {
	var at time.Time
	for _, m := range q.messages {
		if m.inFlight(now) && (at.IsZero() || m.visible.Before(at)) {
			at = m.visible
		}
	}
	return at, !at.IsZero()
}

// byReceipt finds the message that a receipt handle still stands for.
func (q *queue) byReceipt(receipt string) (*message, bool) {
	for _, m := range q.messages {
		if m.receipt == receipt && m.inFlight(time.Now()) {
			return m, true
		}
	}
	return nil, false
}

// Expire ends the lease of the message that a test calls text in every queue whose name contains part. It reports whether
// there was one in flight.
func (b *Broker) Expire(part, text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := false
	for _, q := range b.queues {
		if !strings.Contains(q.name, part) {
			continue
		}
		for _, m := range q.messages {
			if m.text() == text && m.inFlight(time.Now()) {
				m.visible, found = time.Now(), true
				q.wake()
			}
		}
	}
	return found
}

// Left returns what is in a queue, in order, by what a test calls messages.
func (b *Broker) Left(name string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var left []string
	if q := b.queues[name]; q != nil {
		for _, m := range q.messages {
			left = append(left, m.text())
		}
	}
	return left
}

// Invisible returns for how long a message stays invisible.
func (b *Broker) Invisible(name, text string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		for _, m := range q.messages {
			if m.text() == text && m.inFlight(time.Now()) {
				return time.Until(m.visible)
			}
		}
	}
	return 0
}

// Steal makes another consumer's what a test calls text, as if the lease had run out and that consumer had been quicker. It
// reports whether there was such a message.
func (b *Broker) Steal(name, text string, visibility time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for _, m := range b.queues[name].messages {
		if m.text() == text {
			m.receives++
			m.current, m.visible, m.receipt = now, now.Add(visibility), "stolen|"+b.next()
			return true
		}
	}
	return false
}

package sqs

import "github.com/ThreeDotsLabs/watermill/message"

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

const (
	AttrUUID       = attrUUID
	AttrHeaders    = attrHeaders
	AttrPayload    = attrPayload
	PackingReserve = packingReserve
)

// Pack returns what travels: the body, and each attribute's value as text.
func Pack(msg *message.Message) (string, map[string]string) {
	p := pack(msg)
	attrs := make(map[string]string)
	for _, a := range p.attrs {
		attrs[a.name] = a.text + string(a.bytes)
	}
	return p.body, attrs
}

// Repack returns what arrives of msg.
func Repack(msg *message.Message) *message.Message {
	p := pack(msg)
	return unpack(p.body, p.attrs)
}

// UnpackHeaders returns what arrives with b as its packed headers.
func UnpackHeaders(b []byte) *message.Message {
	return unpack("body", []attribute{{name: attrHeaders, bytes: b, binary: true}})
}

// PackedSize is what SQS counts.
func PackedSize(msg *message.Message) int { return pack(msg).size() }

// IDs returns the message group and deduplication ids.
func IDs(key, id, generation string) (group, dedup string) {
	return groupID(key, id), dedupID(id, generation)
}

// Hash is what SQS makes of a body where it deduplicates by content.
func Hash(s string) string { return hash(s) }

package sqs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	wmsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/transport"
)

// Attributes beyond those of watermill-aws.
const (
	attrUUID    = wmsqs.UUIDAttribute
	attrHeaders = "_seambus_headers" // Binary: headers that cannot be attributes, see packHeaders
	attrPayload = "_seambus_payload" // Binary: a payload that is not text; String "empty": an empty one

	emptyPayload = "empty"
	placeholder  = "-" // the body beside attrPayload: SQS refuses an empty one
)

// What SQS and SNS allow.
const (
	maxAttributes  = 10
	maxGroupBytes  = 128
	maxDedupBytes  = 128
	maxNameBytes   = 256
	maxHeaders     = 256
	maxBatch       = 10
	packingReserve = 2048 // what packing adds at most to a message of maxHeaders headers
)

// attribute is a message attribute of either service.
type attribute struct {
	name   string
	text   string
	bytes  []byte
	binary bool
}

func (a attribute) dataType() string {
	if a.binary {
		return wmsqs.AWSBinaryDataType
	}
	return wmsqs.AWSStringDataType
}

func (a attribute) size() int { return len(a.name) + len(a.dataType()) + len(a.text) + len(a.bytes) }

// packed is a message as it travels.
type packed struct {
	body  string
	attrs []attribute
	group string
	dedup string
}

// size is what SQS and SNS count against their limits.
func (p *packed) size() int {
	n := len(p.body)
	for _, a := range p.attrs {
		n += a.size()
	}
	return n
}

func pack(msg *message.Message) *packed {
	p := &packed{
		group: groupID(transport.Key(msg), msg.UUID),
		dedup: dedupID(msg.UUID, msg.Metadata[event.MetaGeneration]),
	}
	switch {
	case len(msg.Payload) == 0:
		p.body = placeholder
		p.attrs = append(p.attrs, attribute{name: attrPayload, text: emptyPayload})
	case !carriesText(string(msg.Payload)):
		p.body = placeholder
		p.attrs = append(p.attrs, attribute{name: attrPayload, bytes: slices.Clone(msg.Payload), binary: true})
	default:
		p.body = string(msg.Payload)
	}
	var rest []string // alternating names and values
	if carriesText(msg.UUID) && msg.UUID != "" {
		p.attrs = append(p.attrs, attribute{name: attrUUID, text: msg.UUID})
	} else {
		rest = append(rest, attrUUID, msg.UUID)
	}
	p.packMetadata(msg.Metadata, rest)
	return p
}

// packMetadata makes attributes of as many entries as there is room for and one of all others.
func (p *packed) packMetadata(md message.Metadata, rest []string) {
	var plain []string
	for name, value := range md {
		if isAttribute(name, value) {
			plain = append(plain, name)
		} else {
			rest = append(rest, name, value)
		}
	}
	slices.SortFunc(plain, byRank)
	room := maxAttributes - len(p.attrs)
	if len(rest) > 0 || len(plain) > room {
		room--
	}
	for i, name := range plain {
		if i < room {
			p.attrs = append(p.attrs, attribute{name: name, text: md[name]})
		} else {
			rest = append(rest, name, md[name])
		}
	}
	if len(rest) > 0 {
		p.attrs = append(p.attrs, attribute{name: attrHeaders, bytes: packHeaders(rest), binary: true})
	}
}

// byRank puts first what filters and foreign readers look for.
func byRank(a, b string) int {
	rank := func(name string) int {
		if i := slices.Index(firstAttributes, name); i >= 0 {
			return i
		}
		return len(firstAttributes)
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

var firstAttributes = []string{
	event.MetaType, event.MetaID, event.MetaSource, event.MetaPartitionKey, event.MetaSpecVersion, event.MetaContentType,
	event.MetaTime, event.MetaTraceParent, event.MetaSequence,
}

// packHeaders writes names and values, each after its length as a varint.
func packHeaders(alternating []string) []byte {
	var b []byte
	for _, s := range alternating {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

var errPacked = errors.New("the attribute " + attrHeaders + " is cut off or not ours")

// unpackHeaders returns what packHeaders was given, or as much of it as can be read.
func unpackHeaders(b []byte) (alternating []string, err error) {
	for len(b) > 0 {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return alternating[:len(alternating)&^1], errPacked
		}
		alternating = append(alternating, string(b[used:used+int(n)]))
		b = b[used+int(n):]
	}
	if len(alternating)%2 != 0 {
		return alternating[:len(alternating)-1], errPacked
	}
	return alternating, nil
}

// unpack is the reverse of pack. A message that others sent keeps its attributes as metadata; what claims to be packed and
// is not becomes an envelope that nobody takes for whole: a contract break, with its body as it came.
func unpack(body string, attrs []attribute) *message.Message {
	msg := message.NewMessage("", []byte(body))
	var headers []byte
	for _, a := range attrs {
		switch {
		case a.name == attrUUID:
			msg.UUID = a.text
		case a.name == attrPayload && a.binary:
			msg.Payload = a.bytes
		case a.name == attrPayload && a.text == emptyPayload:
			msg.Payload = nil
		case a.name == attrHeaders && a.binary:
			headers = a.bytes
		case a.binary:
			msg.Metadata[a.name] = string(a.bytes)
		default:
			msg.Metadata[a.name] = a.text
		}
	}
	rest, err := unpackHeaders(headers)
	if len(rest) > 0 && msg.UUID == "" && rest[0] == attrUUID { // it comes first
		msg.UUID, rest = rest[1], rest[2:]
	}
	for i := 0; i < len(rest); i += 2 {
		msg.Metadata[rest[i]] = rest[i+1]
	}
	if err != nil {
		msg.Metadata[event.MetaSpecVersion] = fmt.Sprintf("unreadable: %v", err)
	}
	return msg
}

// groupID is the message group of a key. Without a key each message is a group of its own.
func groupID(key, id string) string {
	if key == "" {
		key = id
	}
	return token(key, maxGroupBytes)
}

// dedupID is the same for every sending of one event and differs between its deliberate repetitions.
func dedupID(id, generation string) string {
	if generation != "" && generation != "0" {
		return hash(id + "\x00" + generation)
	}
	return token(id, maxDedupBytes)
}

// token returns s where SQS takes it for a group or deduplication id, and else its hash.
func token(s string, most int) string {
	ok := s != "" && len(s) <= most
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] > ' ' && s[i] < 0x7f
	}
	if ok {
		return s
	}
	return hash(s)
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// isAttribute reports whether SQS takes name and value as a String attribute.
func isAttribute(name, value string) bool {
	if value == "" || name == "" || len(name) > maxNameBytes || !carriesText(value) {
		return false
	}
	if name == attrUUID || name == attrHeaders || name == attrPayload {
		return false
	}
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "aws.") || strings.HasPrefix(lower, "amazon.") ||
		name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// carriesText reports whether SQS carries s unchanged: the characters of XML 1.0, except the carriage return, which some
// readers of XML turn into a newline.
func carriesText(s string) bool {
	for i, r := range s {
		switch {
		case r == '\t' || r == '\n' || r >= 0x20 && r < 0xFFFD || r >= 0x10000:
		case r == utf8.RuneError && strings.HasPrefix(s[i:], "\uFFFD"):
		default:
			return false
		}
	}
	return true
}

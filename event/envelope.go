package event

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const specVersion = "1.0"

// Envelope is an event in transit: its attributes and its encoded data. It converts to and from a Watermill message
// without loss. An Envelope is not safe for concurrent modification; once on its way it must be treated as read-only.
type Envelope struct {
	ID            string
	Source        string
	Type          string
	Subject       string
	Time          time.Time
	ContentType   string
	SchemaVersion string
	PartitionKey  string
	CorrelationID string
	CausationID   string
	// Version is the aggregate version; it means something only where HasVersion is true, since zero is a version too.
	Version    uint64
	HasVersion bool
	// Metadata holds everything else that travels as a header, trace context included. It may be nil.
	Metadata map[string]string
	// Data is the payload, byte for byte. Nil and empty are the same on the wire.
	Data []byte
}

// Message returns a new message that carries e. The payload is shared, not copied. The fields of e alone say what its
// attributes are: an attribute that Metadata has beside them, as that of [FromMessage] does, is overridden or left out.
func (e *Envelope) Message() *message.Message {
	msg := message.NewMessage(e.ID, e.Data)
	maps.Copy(msg.Metadata, e.Metadata)
	e.writeTo(msg.Metadata)
	return msg
}

func (e *Envelope) writeTo(md message.Metadata) {
	md[MetaSpecVersion] = specVersion
	md[MetaID] = e.ID
	set := func(key, value string) {
		if value == "" {
			delete(md, key)
			return
		}
		md[key] = value
	}
	set(MetaSource, e.Source)
	set(MetaType, e.Type)
	set(MetaSubject, e.Subject)
	set(MetaContentType, e.ContentType)
	set(MetaSchemaVersion, e.SchemaVersion)
	set(MetaPartitionKey, e.PartitionKey)
	set(MetaCorrelationID, e.CorrelationID)
	set(MetaCausationID, e.CausationID)
	set(MetaTime, formatTime(e.Time))
	sequence := ""
	if e.HasVersion {
		sequence = FormatSequence(e.Version)
	}
	set(MetaSequence, sequence)
}

// FromMessage reads the envelope of msg. A message without CloudEvents attributes, from a plain Watermill service, gives
// an envelope whose ID is the message's UUID and whose Type may be empty. The result shares payload and metadata with
// msg. A malformed attribute, one that cannot be kept as text, or a missing id is a contract break ([ErrContract] holds).
func FromMessage(msg *message.Message) (*Envelope, error) {
	e := new(Envelope)
	if err := e.read(msg); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Envelope) read(msg *message.Message) error {
	md := msg.Metadata
	if v, ok := md[MetaSpecVersion]; ok && v != specVersion {
		return Contract(fmt.Errorf("event: %s is %q, want %q", MetaSpecVersion, v, specVersion))
	}
	*e = Envelope{
		ID: md[MetaID], Source: md[MetaSource], Type: md[MetaType], Subject: md[MetaSubject],
		ContentType: md[MetaContentType], SchemaVersion: md[MetaSchemaVersion], PartitionKey: md[MetaPartitionKey],
		CorrelationID: md[MetaCorrelationID], CausationID: md[MetaCausationID],
		Metadata: md, Data: msg.Payload,
	}
	if e.ID == "" {
		e.ID = msg.UUID
	}
	if err := e.check(); err != nil {
		return Contract(fmt.Errorf("event: read envelope: %w", err))
	}
	if err := e.parse(md); err != nil {
		return Contract(fmt.Errorf("event: read envelope: %w", err))
	}
	return nil
}

func (e *Envelope) parse(md message.Metadata) error {
	if v, ok := md[MetaTime]; ok {
		t, err := time.Parse(time.RFC3339Nano, v)
		t = t.UTC() // whose year may have five digits where the local one had four
		if err != nil || t.Year() < 0 || t.Year() > 9999 {
			return fmt.Errorf("%s is %.40q, want RFC 3339: %w", MetaTime, v, ErrInvalid)
		}
		e.Time = t
	}
	if v, ok := md[MetaSequence]; ok {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return fmt.Errorf("%s is %.40q, want digits: %w", MetaSequence, v, ErrInvalid)
		}
		e.Version, e.HasVersion = n, true
	}
	return nil
}

// FormatSequence returns version as the wire has it: zero-padded, so that text order is number order.
func FormatSequence(version uint64) string { return fmt.Sprintf("%020d", version) }

// Decoder turns a raw message into an envelope, for topics whose producer does not speak CloudEvents. It must not modify
// the message and may share its payload. An error is a contract break, and so is an envelope without an id: no inbox could
// tell such events apart. It is called once per delivery and must be safe
// for concurrent use.
type Decoder func(*message.Message) (*Envelope, error)

type envelopeKey struct{}

// parsed is what became of a message's envelope. Being a context itself it costs one layer in the message's.
type parsed struct {
	context.Context
	env *Envelope
	err error
	own Envelope // where the envelope lies if no decoder made it
}

// Value answers for the envelope and passes every other question on.
func (p *parsed) Value(key any) any {
	if key == (envelopeKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// Attach parses msg with decode (nil means [FromMessage]) and keeps the result, error included, in the message's context,
// where [Of] finds it. The bus calls it once per delivery, so that middleware need not parse again.
func Attach(msg *message.Message, decode Decoder) {
	p := &parsed{Context: msg.Context()}
	if decode == nil {
		p.env, p.err = &p.own, p.own.read(msg)
	} else {
		p.env, p.err = decode(msg)
		p.vet()
	}
	if p.err != nil {
		p.env, p.err = nil, Contract(p.err)
	}
	msg.SetContext(p)
}

// vet makes a decoder that breaks its contract a contract break of the message.
func (p *parsed) vet() {
	switch {
	case p.err != nil:
	case p.env == nil:
		p.err = errors.New("event: the decoder returned no envelope")
	default:
		if err := p.env.check(); err != nil {
			p.err = fmt.Errorf("event: the decoder's envelope: %w", err)
		}
	}
}

// Of returns the envelope of a message that is being handled: what [Attach] kept, or else a fresh parse. Its error is a
// contract break.
func Of(msg *message.Message) (*Envelope, error) {
	if p, ok := msg.Context().Value(envelopeKey{}).(*parsed); ok {
		return p.env, p.err
	}
	return FromMessage(msg)
}

// FromContext returns the envelope of the event that ctx's handler is handling. It reports false outside a handler.
func FromContext(ctx context.Context) (*Envelope, bool) {
	p, ok := ctx.Value(envelopeKey{}).(*parsed)
	if !ok || p.env == nil {
		return nil, false
	}
	return p.env, true
}

package event

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"reflect"
	"regexp"
	"slices"
)

// MaxNameBytes is the longest name of a topic or a group. With the suffixes that transports add, it fits every broker's
// own limit.
const MaxNameBytes = 30

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,29}$`)

// CheckName reports whether name can name a topic or a group on every transport. The error names what it is (for
// example "topic"), the value and the rule; [ErrName] holds.
func CheckName(what, name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("event: %s %.80q: %w", what, name, ErrName)
	}
	return nil
}

// Topic is a named stream and the closed union of the event types on it. It is immutable and safe for concurrent use.
type Topic struct {
	name   string
	types  map[string]reflect.Type
	names  map[reflect.Type]string
	order  []string
	codecs []Codec
}

// NewTopic returns the topic called name whose events have the types of the examples, usually zero values. It panics if
// [TryTopic] returns an error: a contract package calls it in a variable's initialiser, where a wrong topic is a
// programmer's mistake.
func NewTopic(name string, examples ...Event) *Topic {
	t, err := TryTopic(name, examples...)
	if err != nil {
		panic(err)
	}
	return t
}

// TryTopic is [NewTopic] with an error, which names every problem at once: an invalid name, no types, a nil example, an
// empty, unprintable or repeated wire name, a type listed twice, a pointer, an optional method with a pointer receiver.
func TryTopic(name string, examples ...Event) (*Topic, error) {
	t := &Topic{
		name:  name,
		types: make(map[string]reflect.Type, len(examples)), names: make(map[reflect.Type]string, len(examples)),
		codecs: []Codec{JSON{}},
	}
	errs := []error{CheckName("topic", name)}
	if len(examples) == 0 {
		errs = append(errs, fmt.Errorf("event: topic %q has no event types", name))
	}
	for i, ex := range examples {
		errs = append(errs, t.add(i, ex))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Topic) add(i int, ex Event) error {
	if ex == nil {
		return fmt.Errorf("event: topic %q: type %d is nil", t.name, i+1)
	}
	rt := reflect.TypeOf(ex)
	if rt.Kind() == reflect.Pointer {
		return fmt.Errorf("event: topic %q: %s is a pointer, list the value", t.name, rt)
	}
	wire := ex.EventType()
	switch _, taken := t.types[wire]; {
	case wire == "" || len(wire) > MaxTypeBytes:
		return fmt.Errorf("event: topic %q: wire name of %s has %d bytes, want 1 to %d", t.name, rt, len(wire), MaxTypeBytes)
	case taken:
		return fmt.Errorf("event: topic %q: wire name %q of %s is taken by %s", t.name, wire, rt, t.types[wire])
	}
	if !printable(wire) {
		return fmt.Errorf("event: topic %q: wire name %.80q of %s has control characters or invalid UTF-8", t.name, wire, rt)
	}
	if method := onPointerOnly(rt); method != "" {
		return fmt.Errorf("event: topic %q: %s of %s has a pointer receiver and would be passed over, give it a value receiver",
			t.name, method, rt)
	}
	if other, ok := t.names[rt]; ok {
		return fmt.Errorf("event: topic %q: %s is listed twice, as %q and %q", t.name, rt, other, wire)
	}
	t.types[wire], t.names[rt] = rt, wire
	t.order = append(t.order, wire)
	return nil
}

// onPointerOnly names an optional method that a pointer to rt has and rt itself has not: recording the value would ignore
// it without a word.
func onPointerOnly(rt reflect.Type) string {
	for _, optional := range []struct {
		of     reflect.Type
		method string
	}{
		{reflect.TypeFor[Versioned](), "AggregateVersion"},
		{reflect.TypeFor[Identified](), "EventID"},
		{reflect.TypeFor[Schematic](), "SchemaVersion"},
	} {
		if reflect.PointerTo(rt).Implements(optional.of) && !rt.Implements(optional.of) {
			return optional.method
		}
	}
	return ""
}

// WithCodec returns a copy of t that encodes with c, and decodes with c whatever carries its content type. Payloads in
// the codecs it had before stay readable.
func (t *Topic) WithCodec(c Codec) *Topic {
	u := *t
	u.codecs = append([]Codec{c}, t.codecs...)
	return &u
}

// Name returns the topic's name.
func (t *Topic) Name() string { return t.name }

// Types returns the wire names in the order in which they were listed.
func (t *Topic) Types() []string { return slices.Clone(t.order) }

// TypeName returns the wire name under which the topic knows the Go type rt.
func (t *Topic) TypeName(rt reflect.Type) (wire string, ok bool) {
	wire, ok = t.names[rt]
	return wire, ok
}

// Encode returns e in its envelope: a new id unless e is [Identified], the current time, and correlation and causation
// from the event whose handler ctx belongs to. Source is left empty for the publisher to fill. Errors name the value and
// the rule; [ErrUnknownType] holds for a type that the topic does not list.
func (t *Topic) Encode(ctx context.Context, e Event) (*Envelope, error) {
	wire, err := t.wireName(e)
	if err != nil {
		return nil, err
	}
	env := &Envelope{Type: wire, Time: now(), PartitionKey: e.PartitionKey(), ContentType: t.codecs[0].ContentType()}
	env.Subject = env.PartitionKey
	if v, ok := e.(Identified); ok {
		env.ID = v.EventID()
	}
	if env.ID == "" {
		env.ID = NewID()
	}
	if v, ok := e.(Versioned); ok {
		env.Version, env.HasVersion = v.AggregateVersion(), true
	}
	if v, ok := e.(Schematic); ok {
		env.SchemaVersion = v.SchemaVersion()
	}
	env.correlate(ctx)
	if err := env.check(); err != nil {
		return nil, fmt.Errorf("event: encode %q for topic %q: %w", wire, t.name, err)
	}
	if env.Data, err = t.codecs[0].Marshal(e); err != nil {
		return nil, fmt.Errorf("event: encode %q for topic %q: %w", wire, t.name, err)
	}
	return env, nil
}

func (t *Topic) wireName(e Event) (string, error) {
	if e == nil {
		return "", fmt.Errorf("event: nil event for topic %q: %w", t.name, ErrUnknownType)
	}
	rt := reflect.TypeOf(e)
	if rt.Kind() == reflect.Pointer {
		if reflect.ValueOf(e).IsNil() {
			return "", fmt.Errorf("event: nil %s for topic %q: %w", rt, t.name, ErrUnknownType)
		}
		rt = rt.Elem()
	}
	wire, ok := t.names[rt]
	if !ok {
		return "", fmt.Errorf("event: %s is not in topic %q, which has %v: %w", rt, t.name, t.order, ErrUnknownType)
	}
	return wire, nil
}

func (e *Envelope) correlate(ctx context.Context) {
	cause, ok := FromContext(ctx)
	if !ok {
		e.CorrelationID = e.ID
		return
	}
	e.CausationID = cause.ID
	if e.CorrelationID = cause.CorrelationID; e.CorrelationID == "" {
		e.CorrelationID = cause.ID
	}
}

// Decode returns the event value in env. Every error is a contract break: an unlisted type ([ErrUnknownType] holds too),
// a content type without a codec, data that does not decode, or an event that fails its own [Validator].
func (t *Topic) Decode(env *Envelope) (Event, error) {
	rt, ok := t.types[env.Type]
	if !ok {
		return nil, Contract(fmt.Errorf("event: decode %.80q: topic %q has %v: %w", env.Type, t.name, t.order, ErrUnknownType))
	}
	codec, err := t.codec(env.ContentType)
	if err != nil {
		return nil, Contract(fmt.Errorf("event: decode %q: %w", env.Type, err))
	}
	ptr := reflect.New(rt)
	if err := codec.Unmarshal(env.Data, ptr.Interface()); err != nil {
		return nil, Contract(fmt.Errorf("event: decode %q: %w", env.Type, err))
	}
	if v, ok := reflect.TypeAssert[Validator](ptr); ok { // asked of the pointer, which has the methods of both receivers
		if err := v.Validate(); err != nil {
			return nil, Contract(fmt.Errorf("event: validate %q: %w", env.Type, err))
		}
	}
	e, ok := reflect.TypeAssert[Event](ptr.Elem())
	if !ok {
		return nil, Contract(fmt.Errorf("event: decode %q: %s is no event", env.Type, rt))
	}
	return e, nil
}

// codec finds the codec of a content type; parameters are ignored and an absent type means the topic's own.
func (t *Topic) codec(contentType string) (Codec, error) {
	if contentType == "" || contentType == t.codecs[0].ContentType() {
		return t.codecs[0], nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("%s is %.80q: %w", MetaContentType, contentType, err)
	}
	for _, c := range t.codecs {
		if own := c.ContentType(); own == media || own == contentType {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%s is %.80q, for which topic %q has no codec", MetaContentType, contentType, t.name)
}

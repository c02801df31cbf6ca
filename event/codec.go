package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// Codec turns event values into payload bytes and back. It must be safe for concurrent use.
type Codec interface {
	// ContentType returns the media type that names this codec on the wire.
	ContentType() string
	// Marshal encodes v. The result must not be kept or changed afterwards.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data into the pointer v. It must not keep data.
	Unmarshal(data []byte, v any) error
}

// JSON is the default codec: encoding/json, unknown fields ignored, so that a producer may add fields first.
type JSON struct{}

// ContentType returns "application/json".
func (JSON) ContentType() string { return "application/json" }

// Marshal encodes v without HTML escaping or a trailing newline.
func (JSON) Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Unmarshal decodes the one JSON value in data into v. An empty payload is an error, and so is null where v points to a
// struct: encoding/json would leave it as it was, and the event would be handled as if all its fields were zero.
func (JSON) Unmarshal(data []byte, v any) error {
	switch text := bytes.TrimSpace(data); {
	case len(text) == 0:
		return fmt.Errorf("empty payload: %w", io.ErrUnexpectedEOF)
	case string(text) == "null" && reflect.Indirect(reflect.ValueOf(v)).Kind() == reflect.Struct:
		return errors.New("payload is null, want an object")
	}
	return json.Unmarshal(data, v)
}

package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
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

// Unmarshal decodes the one JSON value in data into v. An empty payload is an error.
func (JSON) Unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.Join(errors.New("empty payload"), io.ErrUnexpectedEOF)
	}
	return err
}

package monolith

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seambus/seambus/examples/fulfillment/contract"
)

// maxLine is the longest line that can be an event.
const maxLine = 1 << 20

// ErrLine holds for a line that is no event.
var ErrLine = errors.New("not an order event")

// ErrEmpty holds for an input without a single line.
var ErrEmpty = errors.New("the input is empty: want one JSON object a line")

// Line is one line of an input: an event, or what is wrong with it.
type Line struct {
	Event contract.OrderStatusChanged
	// ID names the line, as "file:line".
	ID  string
	Raw []byte
	Err error
}

// Input reads a stream of order changes, a line each.
type Input struct {
	name   string
	reader *bufio.Reader
	close  []io.Closer
	line   int
	some   bool // a line that was not blank
}

// OpenInput opens a .jsonl or .jsonl.gz file, or standard input for "-".
func OpenInput(path string) (*Input, error) {
	if path == "-" {
		return NewInput("stdin", os.Stdin), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	in := NewInput(filepath.Base(path), f)
	in.close = append(in.close, f)
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("input %s: %w", path, err), f.Close())
		}
		in.reader = bufio.NewReaderSize(z, 1<<16)
		in.close = append(in.close, z)
	}
	return in, nil
}

// NewInput reads r, whose lines are called name:1 and so on.
func NewInput(name string, r io.Reader) *Input {
	return &Input{name: name, reader: bufio.NewReaderSize(r, 1<<16)}
}

// Next returns the next line that is not blank. At the end it returns io.EOF, or [ErrEmpty] if there was no line at all.
func (in *Input) Next() (Line, error) {
	for {
		raw, err := in.reader.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return Line{}, fmt.Errorf("input %s:%d: %w", in.name, in.line+1, err)
		}
		if len(raw) == 0 {
			if !in.some {
				return Line{}, fmt.Errorf("input %s: %w", in.name, ErrEmpty)
			}
			return Line{}, io.EOF
		}
		in.line++
		raw = []byte(strings.TrimRight(string(raw), "\r\n"))
		if len(raw) == 0 {
			continue
		}
		in.some = true
		l := Line{ID: fmt.Sprintf("%s:%d", in.name, in.line), Raw: raw}
		l.Event, l.Err = parse(raw)
		if l.Err != nil {
			l.Err = fmt.Errorf("%w: %w", ErrLine, l.Err)
		}
		return l, nil
	}
}

// Close closes the file.
func (in *Input) Close() error {
	var errs []error
	for _, c := range slices.Backward(in.close) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// parse reads one line. What it lets pass can be recorded; whether the status is one of the contract's is for the consumer.
func parse(raw []byte) (e contract.OrderStatusChanged, err error) {
	if len(raw) > maxLine {
		return e, fmt.Errorf("the line has %d bytes, want at most %d", len(raw), maxLine)
	}
	var fields struct {
		ID         *string `json:"eventId"`
		OrderID    *int64  `json:"orderId"`
		Status     *string `json:"status"`
		Version    *uint64 `json:"version"`
		OccurredAt string  `json:"occurredAt"`
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return e, err
	}
	var missing []string
	for _, f := range []struct {
		name   string
		absent bool
	}{
		{"eventId", fields.ID == nil || *fields.ID == ""},
		{"orderId", fields.OrderID == nil},
		{"status", fields.Status == nil},
		{"version", fields.Version == nil},
	} {
		if f.absent {
			missing = append(missing, f.name)
		}
	}
	if missing != nil {
		return e, fmt.Errorf("%s missing", strings.Join(missing, ", "))
	}
	if *fields.Version > math.MaxInt64 {
		return e, fmt.Errorf("version is %d, want at most %d", *fields.Version, math.MaxInt64)
	}
	return contract.OrderStatusChanged{
		ID: *fields.ID, OrderID: *fields.OrderID, Status: *fields.Status, Version: *fields.Version, OccurredAt: fields.OccurredAt,
	}, nil
}

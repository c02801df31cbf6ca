package errtext_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seambus/seambus/internal/errtext"
)

type panics struct{}

func (panics) Error() string { panic("no text") }

func TestCleanIsSafeToKeep(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "two\nlines": "two lines", "nul\x00": "nul", "bad\xffutf": "bad utf", "zażółć": "zażółć",
	} {
		if got := errtext.Clean(errors.New(in)); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := errtext.Clean(nil); got != "" {
		t.Errorf("Clean(nil) = %q", got)
	}
	for name, err := range map[string]error{"empty": errors.New(""), "panics": panics{}, "nil pointer": (*pointer)(nil)} {
		if got := errtext.Clean(err); got == "" {
			t.Errorf("%s: no text", name)
		}
	}
}

type pointer struct{ text string }

func (p *pointer) Error() string { return p.text }

func FuzzClean(f *testing.F) {
	f.Add("text", 1)
	f.Add(strings.Repeat("é", 10), 1000)
	f.Fuzz(func(t *testing.T, s string, n int) {
		got := errtext.Clean(errors.New(strings.Repeat(s, max(0, min(n, 5000)))))
		if got == "" || len(got) > errtext.MaxBytes || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n\r") {
			t.Errorf("Clean gave %q of %d bytes", got, len(got))
		}
	})
}

// circle wraps itself, at some distance.
type circle struct{ inner error }

func (*circle) Error() string   { return "round" }
func (c *circle) Unwrap() error { return c.inner }

func TestBoundedEndsWhatWrapsItself(t *testing.T) {
	t.Parallel()
	round := &circle{}
	round.inner = errors.Join(errors.New("beside"), round)
	got := errtext.Bounded(round)
	if errors.Is(got, errtext.Bounded(nil)) || !strings.Contains(got.Error(), "round") || errors.Unwrap(got) != nil {
		t.Errorf("got %v", got)
	}
	deep := errors.New("deep")
	for range 100 {
		deep = &circle{deep}
	}
	if errtext.Bounded(deep) != deep {
		t.Error("an error that ends was replaced")
	}
}

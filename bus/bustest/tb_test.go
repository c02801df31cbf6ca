package bustest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fakeTB notes what a kit says about a test that fails.
type fakeTB struct {
	testing.TB // nil: whatever else a kit calls panics
	said       []string
	cleanups   []func()
}

func (*fakeTB) Helper()               {}
func (f *fakeTB) Logf(string, ...any) {}

func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }

func (f *fakeTB) Error(args ...any) { f.said = append(f.said, fmt.Sprint(args...)) }

func (f *fakeTB) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

// fatal is how Fatalf ends the test.
type fatal struct{}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(fatal{})
}

// run runs a test to its end and returns what was said.
func (f *fakeTB) run(test func()) string {
	func() {
		defer func() {
			if p := recover(); p != nil && p != (fatal{}) {
				panic(p)
			}
		}()
		test()
	}()
	for _, fn := range slices.Backward(f.cleanups) {
		fn()
	}
	return strings.Join(f.said, "\n")
}

// wantSaid fails the test unless all of want were said.
func wantSaid(t *testing.T, said string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("a failure does not say %q:\n%s", w, said)
		}
	}
	if len(want) == 0 && said != "" {
		t.Errorf("said:\n%s", said)
	}
}

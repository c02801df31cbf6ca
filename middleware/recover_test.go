package middleware_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
)

func TestRecoverMakesAnyPanicAnError(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"error": io.EOF, "string": "text", "int": 42, "struct": struct{ A int }{1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := chain(func(*message.Message) ([]*message.Message, error) { panic(value) }, middleware.Recover())(newMessage("1"))
			pe, ok := errors.AsType[*middleware.PanicError](err)
			if !ok || out != nil {
				t.Fatalf("got %v, %v", out, err)
			}
			if event.Class(err) != event.ClassPanic || !strings.Contains(err.Error(), fmt.Sprint(value)) ||
				strings.Contains(err.Error(), "goroutine") || !strings.Contains(string(pe.Stack), "recover_test.go") {
				t.Errorf("class %s, text %q", event.Class(err), err)
			}
		})
	}
	if _, err := chain(func(*message.Message) ([]*message.Message, error) { panic(io.EOF) }, middleware.Recover())(newMessage("1")); !errors.Is(err, io.EOF) {
		t.Errorf("%v does not unwrap to the error it panicked with", err)
	}
}

func ExampleRecover() {
	calls := 0
	route(func(*message.Message) ([]*message.Message, error) {
		if calls++; calls == 1 {
			panic("first call")
		}
		fmt.Println("handled at call", calls)
		return nil, nil
	}, middleware.Recover())
	// Output: handled at call 2
}

package middleware

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/internal/errtext"
)

// PanicError is a handler's panic as an error. Its text is the panic's value; the stack is kept apart, so that it does
// not travel in headers.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if the handler panicked with an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Panicked marks the error's class; see event.Class.
func (*PanicError) Panicked() bool { return true }

// Recover turns a panic below it into a [PanicError], which is retried like any other error. runtime.Goexit is not a
// panic and passes. An error that wraps itself, about which nobody could ask anything, becomes its text.
func Recover() message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			defer func() {
				if v := recover(); v != nil {
					out, err = nil, errtext.Bounded(&PanicError{Value: v, Stack: debug.Stack()})
				}
			}()
			out, err = next(msg)
			return out, errtext.Bounded(err)
		}
	}
}

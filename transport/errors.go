package transport

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrTooLarge holds for a message that breaks one of the transport's limits. It is permanent.
	ErrTooLarge = errors.New("message exceeds a limit of the transport")
	// ErrRefused holds for a message that the broker will never accept, for a reason other than size. It is permanent.
	ErrRefused = errors.New("message refused for good")
	// ErrUnavailable holds where the broker as a whole could not be reached or is throttling: the message is not to blame.
	ErrUnavailable = errors.New("broker unavailable")
	// ErrSkipped holds for a message that was not sent because an earlier one of its key failed.
	ErrSkipped = errors.New("not sent: an earlier message of the key failed")
	// ErrClosed holds for a call on a closed transport, publisher or subscriber.
	ErrClosed = errors.New("closed")
	// ErrLeaseLost is the cause of a message context that ended because another consumer may have the message now.
	ErrLeaseLost = errors.New("lease lost")
	// ErrShutdown is the cause of a message context that ended because the drain deadline passed.
	ErrShutdown = errors.New("shutting down")
)

// Permanent reports whether publishing again cannot help.
func Permanent(err error) bool { return errors.Is(err, ErrTooLarge) || errors.Is(err, ErrRefused) }

// Failure is one message that was not published. ErrSkipped marks those that were held back to keep order.
type Failure struct {
	// Index is the message's place in the call, from 0.
	Index int
	ID    string
	Err   error
}

// PublishError says which messages of one Publish call were not accepted; all others were. errors.Is and errors.As see
// every cause.
type PublishError struct {
	Topic    string
	Failures []Failure
}

func (e *PublishError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "transport: publish %q: %d failed", e.Topic, len(e.Failures))
	for i, f := range e.Failures {
		if i == 3 {
			b.WriteString("; …")
			break
		}
		fmt.Fprintf(&b, "; %s: %v", f.ID, f.Err)
	}
	return b.String()
}

// Unwrap returns the causes.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failures))
	for i, f := range e.Failures {
		errs[i] = f.Err
	}
	return errs
}

// Failed returns the failures of err by index: those of a [PublishError], or, for any other error, err for each of n
// messages, since a publisher that says no more may have sent nothing. The same holds for a PublishError that is joined
// with other errors, names no message, or names one that was not in the call: taking a lost message for sent is the one
// mistake that nobody could mend. A nil err gives nil; no value of the result is nil.
func Failed(err error, n int) map[int]error {
	if err == nil {
		return nil
	}
	failed := make(map[int]error, n)
	if pe := soleCause(err); pe != nil && pe.covers(n) {
		for _, f := range pe.Failures {
			if failed[f.Index] = f.Err; f.Err == nil {
				failed[f.Index] = err
			}
		}
		return failed
	}
	for i := range n {
		failed[i] = err
	}
	return failed
}

// soleCause returns the PublishError that err wraps and nothing else beside it, or nil.
func soleCause(err error) *PublishError {
	for ; err != nil; err = errors.Unwrap(err) {
		if pe, ok := any(err).(*PublishError); ok {
			return pe
		}
	}
	return nil
}

func (e *PublishError) covers(n int) bool {
	for _, f := range e.Failures {
		if f.Index < 0 || f.Index >= n {
			return false
		}
	}
	return len(e.Failures) > 0
}

package event

import (
	"context"
	"errors"
	"time"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrName holds for a topic or group name outside [a-z0-9][a-z0-9-]{0,29}.
	ErrName = errors.New("name must match [a-z0-9][a-z0-9-]{0,29}")
	// ErrUnknownType holds for an event whose type the topic does not list.
	ErrUnknownType = errors.New("unknown event type")
	// ErrInvalid holds for an id, key, type or schema version that cannot travel.
	ErrInvalid = errors.New("invalid event")
	// ErrPermanent holds for an error that no further attempt can heal.
	ErrPermanent = errors.New("permanent failure")
	// ErrContract holds for a contract break: a message that cannot be decoded, fails validation or has an unknown type.
	// Every contract break is permanent too.
	ErrContract = errors.New("contract break")
)

// verdictError adds a verdict to an error and keeps its text.
type verdictError struct {
	err     error
	verdict []error
	delay   time.Duration
}

func (e *verdictError) Error() string { return e.err.Error() }

func (e *verdictError) Unwrap() []error { return append([]error{e.err}, e.verdict...) }

// Permanent marks err as beyond healing: the event goes to the dead letters at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, verdict: []error{ErrPermanent}}
}

// Contract marks err as a contract break, which is permanent too. Contract(nil) is nil; a contract break is returned
// unchanged.
func Contract(err error) error {
	if err == nil || errors.Is(err, ErrContract) {
		return err
	}
	return &verdictError{err: err, verdict: []error{ErrContract, ErrPermanent}}
}

// RetryAfter asks that the next attempt come no sooner than d from now, instead of after the schedule's own delay. It
// spends an attempt like any failure. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, delay: max(d, 0)}
}

// Delay returns the delay that [RetryAfter] asked for, and whether it did, however the error was wrapped since. Of one
// delay inside another the outer counts, of several joined errors the longest.
func Delay(err error) (delay time.Duration, asked bool) {
	switch e := any(err).(type) {
	case *verdictError:
		if e.verdict == nil {
			return e.delay, true
		}
		return Delay(e.err)
	case interface{ Unwrap() error }:
		return Delay(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			if d, ok := Delay(joined); ok {
				delay, asked = max(delay, d), true
			}
		}
	}
	return delay, asked
}

// Error classes, as metrics and dead letters name them.
const (
	ClassContract  = "contract"
	ClassPermanent = "permanent"
	ClassPanic     = "panic"
	ClassTimeout   = "timeout"
	ClassTransient = "transient"
)

// Class returns the class of a handler's error. A panic is recognised by a method Panicked() bool on any wrapped error,
// which the recover middleware's error has.
func Class(err error) string {
	p, isPanic := errors.AsType[interface {
		error
		Panicked() bool
	}](err)
	switch {
	case errors.Is(err, ErrContract):
		return ClassContract
	case isPanic && p.Panicked():
		return ClassPanic
	case errors.Is(err, ErrPermanent):
		return ClassPermanent
	case errors.Is(err, context.DeadlineExceeded):
		return ClassTimeout
	default:
		return ClassTransient
	}
}

package event_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seambus/seambus/event"
)

func TestVerdictsKeepTheirErrorAndSurviveWrapping(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, tc := range map[string]struct {
		err   error
		class string
		delay time.Duration
	}{
		"plain":             {cause, event.ClassTransient, 0},
		"permanent":         {event.Permanent(cause), event.ClassPermanent, 0},
		"contract":          {event.Contract(cause), event.ClassContract, 0},
		"retry after":       {event.RetryAfter(cause, time.Minute), event.ClassTransient, time.Minute},
		"delay in verdict":  {event.Permanent(fmt.Errorf("w: %w", event.RetryAfter(cause, time.Minute))), event.ClassPermanent, time.Minute},
		"verdict in delay":  {event.RetryAfter(fmt.Errorf("w: %w", event.Permanent(cause)), time.Minute), event.ClassPermanent, time.Minute},
		"negative is zero":  {event.RetryAfter(cause, -time.Minute), event.ClassTransient, 0},
		"timeout":           {fmt.Errorf("%w: %w", cause, context.DeadlineExceeded), event.ClassTimeout, 0},
		"contract stays so": {event.Permanent(event.Contract(cause)), event.ClassContract, 0},
	} {
		wrapped := fmt.Errorf("outer: %w", tc.err)
		d, _ := event.Delay(wrapped)
		if !errors.Is(wrapped, cause) || event.Class(wrapped) != tc.class || d != tc.delay {
			t.Errorf("%s: class %s, delay %v", name, event.Class(wrapped), d)
		}
		if tc.err.Error() == "" {
			t.Errorf("%s: no text", name)
		}
	}
	if event.Permanent(nil) != nil || event.Contract(nil) != nil || event.RetryAfter(nil, 1) != nil {
		t.Error("a verdict on nil is not nil")
	}
}

func TestDelayIsFoundHoweverTheErrorWasWrapped(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	minute, hour := event.RetryAfter(cause, time.Minute), event.RetryAfter(cause, time.Hour)
	for name, tc := range map[string]struct {
		err   error
		delay time.Duration
		asked bool
	}{
		"nil":                       {nil, 0, false},
		"not asked":                 {event.Permanent(cause), 0, false},
		"zero is an answer":         {event.RetryAfter(cause, 0), 0, true},
		"joined behind another":     {errors.Join(cause, minute), time.Minute, true},
		"joined behind a verdict":   {errors.Join(event.Permanent(cause), minute), time.Minute, true},
		"the longest of several":    {errors.Join(minute, hour, minute), time.Hour, true},
		"two in one text":           {fmt.Errorf("%w and %w", minute, hour), time.Hour, true},
		"the outer of two":          {event.RetryAfter(fmt.Errorf("w: %w", hour), time.Minute), time.Minute, true},
		"deep in verdicts and text": {event.Contract(fmt.Errorf("w: %w", errors.Join(cause, event.Permanent(minute)))), time.Minute, true},
	} {
		if d, ok := event.Delay(tc.err); d != tc.delay || ok != tc.asked {
			t.Errorf("%s: Delay = %v, %t; want %v, %t", name, d, ok, tc.delay, tc.asked)
		}
	}
}

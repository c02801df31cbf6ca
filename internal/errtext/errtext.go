// Package errtext makes an error's text safe to keep in a header or a column.
package errtext

import (
	"fmt"
	"strings"
	"unicode"
)

// MaxBytes is the longest text that Clean returns.
const MaxBytes = 1024

// Clean returns err's text as valid UTF-8 on one line, without control characters, at most [MaxBytes] long and never empty
// for a non-nil error. An Error method that panics gives a text that says so.
func Clean(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("%T: its Error method panicked", err)
		}
	}()
	return clean(err.Error(), fmt.Sprintf("%T", err))
}

func clean(s, empty string) string {
	const ellipsis = "…"
	cut := len(s) > MaxBytes
	if cut {
		s = s[:MaxBytes-len(ellipsis)]
	}
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if s = strings.TrimSpace(s); s == "" {
		return empty
	}
	if cut {
		s += ellipsis
	}
	return s
}

// maxWraps is how many errors one may wrap before nobody meant it.
const maxWraps = 1000

// Bounded returns err, or, where it wraps itself or more errors than anybody means to, its text alone: errors.Is and
// errors.As would never return.
func Bounded(err error) error {
	if left := maxWraps; count(err, &left) {
		return err
	}
	return fmt.Errorf("%T that wraps itself: %s", err, Clean(err))
}

// count walks what err wraps and reports whether it came to an end.
func count(err error, left *int) bool {
	if err == nil {
		return true
	}
	if *left--; *left < 0 {
		return false
	}
	switch e := err.(type) { //nolint:errorlint // it is wrapping itself that is looked at
	case interface{ Unwrap() error }:
		return count(e.Unwrap(), left)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if !count(inner, left) {
				return false
			}
		}
	}
	return true
}

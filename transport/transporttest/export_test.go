package transporttest

import "context"

// Check runs the case called name once.
func Check(ctx context.Context, h Harness, c Case) error { return h.withDefaults().check(ctx, c) }

// Validate reports what is wrong with a harness.
func Validate(h Harness) error { return h.withDefaults().validate() }

// Features returns every capability that a harness may declare.
func Features() []Feature { return features() }

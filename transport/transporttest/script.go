package transporttest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
)

//go:embed testdata/script.txt
var scriptText string

//go:embed testdata/script.golden
var scriptTrace string

// Step is one event of the failure script.
type Step struct {
	// Event is the event's id, and Key its partition key.
	Event, Key string
	// Verdicts has one word for each attempt: "ok"; "slow" is ok after 3 units; "fail" is an error, "panic" a panic; "later" asks
	// for no attempt within 7 units; "permanent" and "contract" give the event up at once.
	Verdicts []string
}

// The times of the script, in units.
const (
	scriptSlow  = 3
	scriptLater = 7
	// scriptAttempts is how many attempts an event has.
	scriptAttempts = 4
)

// Script returns the failure script: events to publish in this order, and what the handler is to say to each attempt. Whatever
// the transport, its trace must be [ScriptTrace]. It is written in testdata/script.txt.
func Script() []Step {
	var steps []Step
	for line := range strings.Lines(scriptText) {
		if words := strings.Fields(line); len(words) > 1 && words[0] != "#" {
			steps = append(steps, Step{Event: words[0], Key: words[0][:1], Verdicts: words[1:]})
		}
	}
	return steps
}

// ScriptTrace returns the trace that the failure script must leave on every transport: of each key every attempt in order, and
// the dead letters.
func ScriptTrace() string { return scriptTrace }

// ScriptRetry returns the retry policy that the script is written for, with delays of one to four units.
func ScriptRetry(unit time.Duration) middleware.RetryPolicy {
	return middleware.RetryPolicy{
		MaxAttempts: scriptAttempts, InitialDelay: unit, MaxDelay: 4 * unit, Multiplier: 2, Jitter: func() float64 { return 1 },
	}
}

// Player gives the script's verdicts and records what happens. It is an event.DeadLetters, and safe for concurrent use.
type Player struct {
	unit  time.Duration
	steps map[string]Step

	mu       sync.Mutex
	keys     map[string][]string
	dead     []string
	notSoon  map[string]time.Time
	open     map[string]bool // events without a final verdict
	finished chan struct{}
}

// NewPlayer returns a player of [Script] with this unit of time.
func NewPlayer(unit time.Duration) *Player {
	p := &Player{
		unit: unit, steps: make(map[string]Step), keys: make(map[string][]string), notSoon: make(map[string]time.Time),
		open: make(map[string]bool), finished: make(chan struct{}),
	}
	for _, s := range Script() {
		p.steps[s.Event], p.open[s.Event] = s, true
	}
	return p
}

// Handle is the handler of the event called id: it returns the verdict of this attempt, which it learns from
// middleware.Attempts.
func (p *Player) Handle(ctx context.Context, id string) error {
	step, ok := p.steps[id]
	if !ok {
		return event.Permanent(fmt.Errorf("event %q is not in the script", id))
	}
	attempt, verdict := middleware.Attempt(ctx), "beyond the script"
	if attempt >= 1 && attempt <= len(step.Verdicts) {
		verdict = step.Verdicts[attempt-1]
	}
	p.record(step, attempt, verdict)
	err := p.verdict(ctx, verdict)
	if err == nil {
		p.final(id)
	}
	return err
}

func (p *Player) record(step Step, attempt int, verdict string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%s attempt %d: %s", step.Event, attempt, verdict)
	now := time.Now()
	if now.Before(p.notSoon[step.Event]) {
		line += ", too soon"
	}
	if verdict == "later" {
		p.notSoon[step.Event] = now.Add(scriptLater * p.unit)
	}
	p.keys[step.Key] = append(p.keys[step.Key], line)
}

func (p *Player) verdict(ctx context.Context, verdict string) error {
	boom := errors.New("boom")
	switch verdict {
	case "ok":
		return nil
	case "slow":
		timer := time.NewTimer(scriptSlow * p.unit)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case "panic":
		panic("boom")
	case "later":
		return event.RetryAfter(boom, scriptLater*p.unit)
	case "permanent":
		return event.Permanent(boom)
	case "contract":
		return event.Contract(boom)
	default:
		return boom
	}
}

// Put records a dead letter.
func (p *Player) Put(_ context.Context, letter *event.DeadLetter) error {
	p.letter(letter.ID, letter.Key, letter.Class, fmt.Sprint(letter.Attempts))
	return nil
}

func (p *Player) letter(id, key, class, attempts string) {
	p.mu.Lock()
	p.dead = append(p.dead, fmt.Sprintf("%s of key %s: %s after attempt %s", id, key, class, attempts))
	p.mu.Unlock()
	p.final(id)
}

func (p *Player) final(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open[id] {
		return
	}
	if delete(p.open, id); len(p.open) == 0 {
		close(p.finished)
	}
}

// Finished is closed once every event has its final verdict.
func (p *Player) Finished() <-chan struct{} { return p.finished }

// Trace returns what happened so far, to be compared with [ScriptTrace].
func (p *Player) Trace() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	section := func(title string, lines []string) {
		fmt.Fprintf(&b, "%s\n", title)
		for _, line := range lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.keys)) {
		section("key "+key, p.keys[key])
	}
	section("dead letters", slices.Sorted(slices.Values(p.dead)))
	return b.String()
}

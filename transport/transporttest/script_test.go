package transporttest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport/transporttest"
)

// C39: of a key whose first event fails twice, the trace is 1 1 1 2 3.
func TestScriptHasTheKeyWhoseFirstEventFailsTwice(t *testing.T) {
	t.Parallel()
	want := "key k\n  k1 attempt 1: fail\n  k1 attempt 2: fail\n  k1 attempt 3: ok\n  k2 attempt 1: ok\n  k3 attempt 1: ok\n"
	if !strings.Contains(transporttest.ScriptTrace(), want) {
		t.Errorf("the trace lacks\n%s", want)
	}
}

// Every event is in the trace, and every verdict of the script is asked for: nothing in it is written in vain.
func TestScriptAndItsTraceSayTheSame(t *testing.T) {
	t.Parallel()
	trace := transporttest.ScriptTrace()
	keys := make(map[string]bool)
	for _, s := range transporttest.Script() {
		keys[s.Key] = true
		for i, verdict := range s.Verdicts {
			if line := fmt.Sprintf("  %s attempt %d: %s\n", s.Event, i+1, verdict); strings.Count(trace, line) != 1 {
				t.Errorf("the trace has %q %d times", line, strings.Count(trace, line))
			}
		}
		given := s.Verdicts[len(s.Verdicts)-1]
		if dead := given != "ok" && given != "slow"; strings.Contains(trace, fmt.Sprintf("  %s of key %s:", s.Event, s.Key)) != dead {
			t.Errorf("%s ends with %q: dead letter is %t", s.Event, given, !dead)
		}
	}
	if len(keys) != 4 || strings.Contains(trace, "beyond the script") || strings.Contains(trace, "too soon") {
		t.Errorf("%d keys, or a trace of something gone wrong", len(keys))
	}
}

// Play the script below any chain and over any transport: here event by event, in a plain loop.
func ExampleScript() {
	unit := time.Microsecond
	player := transporttest.NewPlayer(unit)
	retry, err := middleware.Retry(transporttest.ScriptRetry(unit))
	if err != nil {
		fmt.Println(err)
		return
	}
	chain := middleware.DeadLetter(player)(retry(middleware.Attempts(middleware.NewMemoryAttempts())(
		middleware.Recover()(func(msg *message.Message) ([]*message.Message, error) {
			return nil, player.Handle(msg.Context(), msg.UUID)
		}))))
	for _, step := range transporttest.Script() {
		env := event.Envelope{ID: step.Event, Type: "script.step", PartitionKey: step.Key}
		msg := env.Message()
		msg.SetContext(context.Background())
		if _, err := chain(msg); err != nil {
			fmt.Println(step.Event, err)
		}
	}
	<-player.Finished()
	fmt.Println("the same trace as everywhere:", player.Trace() == transporttest.ScriptTrace())
	// Output: the same trace as everywhere: true
}

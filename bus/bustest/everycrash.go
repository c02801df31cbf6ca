package bustest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// EveryCrash runs scenario once undisturbed and then once for each of [Points], where whoever comes first dies once and is
// started again; each run is a subtest named after the point, in a synctest bubble and with a kit of its own. The scenario
// registers handlers, starts, records and asserts, and must do the same each time it runs. After it the kit settles and
// checks that
//
//   - nothing is lost: every group of a topic has acknowledged every event that was recorded or published there;
//   - each key kept its order: every group was done with its events in the order in which they were recorded in one outbox,
//     or published without any;
//   - the effect came once: each inbox committed each event's handling once, and as many of each type and key as undisturbed.
//
// A point that the scenario does not pass is skipped by name: without an outbox nothing is claimed, and without an inbox
// nothing is committed by it, so that effects are not checked. It must not be called inside a bubble.
func EveryCrash(t *testing.T, scenario func(t *testing.T, k *Kit), opts ...Option) {
	t.Helper()
	var calm *outcome
	ok := t.Run("undisturbed", func(t *testing.T) {
		calm = rehearse(t, "", scenario, opts)
		calm.check(t, nil)
	})
	if !ok || calm == nil {
		t.Error("bustest: the scenario fails undisturbed: no crash was tried")
		return
	}
	for _, p := range Points() {
		t.Run(string(p), func(t *testing.T) {
			if calm.passes[p] == 0 {
				t.Skipf("nothing passes the point %q in this scenario", p)
			}
			o := rehearse(t, p, scenario, opts)
			if len(o.deaths) != 1 {
				t.Errorf("nobody died at %q", p)
			}
			o.check(t, calm)
			if !t.Failed() {
				t.Log(o.summary())
			}
		})
	}
}

// rehearse runs the scenario in a bubble and returns what came of it.
func rehearse(t *testing.T, p Point, scenario func(*testing.T, *Kit), opts []Option) (o *outcome) {
	t.Helper()
	o = new(outcome) // in case the scenario ends the test
	synctest.Test(t, func(t *testing.T) {
		k := New(t, opts...)
		if p != "" {
			k.CrashAt(p)
		}
		scenario(t, k)
		k.Settle()
		o = k.outcome()
	})
	return o
}

// outcome is what a run left behind.
type outcome struct {
	recorded []Entry
	sent     []Entry
	groups   map[string][]string
	acked    []place
	passes   map[Point]int
	effects  map[effect]int
	deaths   []string
}

func (k *Kit) outcome() *outcome {
	o := &outcome{recorded: k.Recorded().list, sent: k.Published().list}
	k.seen.mu.Lock()
	defer k.seen.mu.Unlock()
	o.groups, o.acked = maps.Clone(k.seen.groups), slices.Clone(k.seen.acked)
	o.passes, o.effects = maps.Clone(k.seen.passes), maps.Clone(k.seen.effects)
	k.faults.mu.Lock()
	defer k.faults.mu.Unlock()
	o.deaths = slices.Clone(k.faults.happened)
	return o
}

// check reports every promise that was broken. Calm is the undisturbed run, nil for that run itself.
func (o *outcome) check(tb testing.TB, calm *outcome) {
	tb.Helper()
	for _, problem := range slices.Concat(o.lost(), o.disordered(), o.repeated(), o.differs(calm)) {
		tb.Error(problem)
	}
}

// events returns what was recorded, and then what was published without an outbox, each once.
func (o *outcome) events() (all []Entry) {
	type name struct{ topic, id string }
	seen := make(map[name]bool)
	for _, e := range slices.Concat(o.recorded, o.sent) {
		if n := (name{e.Topic, e.ID}); !seen[n] {
			seen[n] = true
			all = append(all, e)
		}
	}
	return all
}

func (o *outcome) lost() (problems []string) {
	acked := make(map[place]bool, len(o.acked))
	for _, at := range o.acked {
		acked[at] = true
	}
	for _, e := range o.events() {
		for _, g := range o.groups[e.Topic] {
			if !acked[place{e.Topic, g, e.Key, e.ID}] {
				problems = append(problems, fmt.Sprintf("lost: group %s never acknowledged %s", g, e))
			}
		}
	}
	return problems
}

// disordered compares, for each group and key, the order of first acknowledgements with the order of recording. Between two
// outboxes, or an outbox and what went past it, there is none.
func (o *outcome) disordered() (problems []string) {
	number := make(map[place]int)
	origin := make(map[place]int)
	for i, e := range o.events() {
		event := place{e.Topic, "", e.Key, e.ID}
		number[event], origin[event] = i+1, e.origin
	}
	type lane struct {
		at     place
		origin int
	}
	seen := make(map[place]bool)
	last := make(map[lane]place)
	for _, at := range o.acked {
		event := place{at.topic, "", at.key, at.id}
		lane := lane{place{at.topic, at.group, at.key, ""}, origin[event]}
		if at.key == "" || seen[at] || number[event] == 0 {
			continue
		}
		seen[at] = true
		before := last[lane]
		if number[place{at.topic, "", at.key, before.id}] > number[event] {
			problems = append(problems, fmt.Sprintf("out of order: group %s was done with %s of topic %s, key %s, before %s",
				at.group, before.id, at.topic, at.key, at.id))
		}
		last[lane] = at
	}
	return problems
}

func (o *outcome) repeated() (problems []string) {
	for e, n := range o.effects {
		if n > 1 {
			problems = append(problems, fmt.Sprintf("repeated: group %s committed the effect of %s %s, key %s, id %s, %d times",
				e.group, e.topic, e.typ, e.key, e.id, n))
		}
	}
	slices.Sort(problems)
	return problems
}

// kinds counts effects of each group, topic, type and key: ids differ from run to run.
func (o *outcome) kinds() map[effect]int {
	counts := make(map[effect]int)
	for e, n := range o.effects {
		e.source, e.id = "", ""
		counts[e] += n
	}
	return counts
}

func (o *outcome) differs(calm *outcome) (problems []string) {
	if calm == nil {
		return nil
	}
	is, was := o.kinds(), calm.kinds()
	all := maps.Clone(was)
	maps.Copy(all, is)
	for e := range all {
		if is[e] != was[e] {
			problems = append(problems, fmt.Sprintf("effects of %s %s, key %s, in group %s: %d, undisturbed %d",
				e.topic, e.typ, e.key, e.group, is[e], was[e]))
		}
	}
	slices.Sort(problems)
	return problems
}

func (o *outcome) summary() string {
	events := o.events()
	keys := make(map[place]bool)
	for _, e := range events {
		if e.Key != "" {
			keys[place{topic: e.Topic, key: e.Key}] = true
		}
	}
	effects := 0
	for _, n := range o.effects {
		effects += n
	}
	return fmt.Sprintf("%s: %d events of %d keys, none lost, each key in order, %d effects, each once, %d of %d sent again",
		cmp.Or(strings.Join(o.deaths, ", "), "undisturbed"), len(events), len(keys), effects, len(o.sent)-len(events), len(events))
}

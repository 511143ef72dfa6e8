package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ago is ms since the epoch at d before t0.
func ago(d time.Duration) int64 { return t0.Add(-d).UnixMilli() }

func mustNew(t testing.TB, rules ...Rule) *Policy {
	t.Helper()
	p, err := New(Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func balanced() Rule {
	attempts, delays, _ := Preset("balanced")
	return Rule{Name: "default", Target: "ledger", Attempts: attempts, Delays: delays, MaxAge: DefaultSLA}
}

func with(change func(*Rule)) Rule {
	r := balanced()
	change(&r)
	return r
}

func TestEveryFaultOfTheRulesIsReportedAtOnceWithItsPlace(t *testing.T) {
	_, err := New(Options{Rules: []Rule{
		{Category: "[", Attempts: -1, MaxAge: -1, OnBreach: 9},
		{Name: "a", Category: "amount_*", Attempts: 2, Delays: []time.Duration{0, 150 * time.Millisecond, 31 * 24 * time.Hour}, MaxAge: time.Hour},
		{Name: "a", Category: "amount_differs", Target: "t", Attempts: 2},
		{Name: "manual", Category: "x", Delays: []time.Duration{time.Second}},
		{Name: "many", Category: "y", Target: "t", Attempts: MaxAttempts + 1, MaxAge: 1},
	}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"rules[0].name: missing",
		"rules[0].match.category: \"[\" is no valid glob",
		"rules[0].attempts: -1",
		"rules[0].sla.on_breach: unknown value 9",
		"rules[0].sla.max_age: -1ns",
		"rules[1].target: missing",
		"rules[1].delays[0]: 0s",
		"rules[1].delays[1]: 150ms",
		"rules[1].delays[2]: 744h0m0s",
		"rules[2].name: \"a\" is already the name of rules[1]",
		"rules[2].match.category: no record reaches this rule, rules[1] takes them all",
		"rules[2].delays: missing",
		"rules[2].sla.max_age: 0s",
		"rules[3].delays: attempts is 0",
		"rules[4].attempts: 1001",
		"rules: a record that none of them matches has no rule: add a last one",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %q", want)
		}
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 16 {
		t.Errorf("%d faults, want 16:\n%v", got, err)
	}
}

func TestARuleThatNoRecordReachesIsAFault(t *testing.T) {
	for _, c := range []struct {
		name         string
		first, later string
		fault        bool
	}{
		{"after a rule without match", "", "amount", true},
		{"after a star", "*", "a/b", true},
		{"the same glob again", "a_*", "a_*", true},
		{"a plain category that a glob before it takes", "a_*", "a_b", true},
		{"two catch-alls", "*", "", true},
		{"a glob after a plain category", "a_b", "a_*", false},
		{"other globs", "a_*", "b_*", false},
		{"globs that overlap in part", "a_*", "*_b", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := []Rule{
				with(func(r *Rule) { r.Name, r.Category = "first", c.first }),
				with(func(r *Rule) { r.Name, r.Category = "later", c.later }),
			}
			if c.first != "" && c.first != "*" && c.later != "" {
				rules = append(rules, balanced())
			}
			_, err := New(Options{Rules: rules})
			if fault := err != nil && strings.Contains(err.Error(), "rules[1].match.category: no record reaches this rule"); fault != c.fault {
				t.Errorf("fault %v, want %v: %v", fault, c.fault, err)
			}
			if !c.fault && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAPolicyWithoutRulesIsAFaultThatNamesTheFix(t *testing.T) {
	_, err := New(Options{})
	if err == nil || !strings.Contains(err.Error(), "add one without match") {
		t.Errorf("got %v", err)
	}
}

func TestAPolicyKeepsNoHoldOfTheSlicesItWasMadeFrom(t *testing.T) {
	rules := []Rule{balanced()}
	p := mustNew(t, rules...)
	rules[0].Name, rules[0].Delays[0] = "changed", time.Hour
	p.Tiers()[0] = time.Hour
	r := p.Rule(&deadletter.Record{})
	if r.Name != "default" || r.Delays[0] != 10*time.Second || p.Tiers()[0] != 10*time.Second {
		t.Errorf("changed from outside: %+v, tiers %v", r, p.Tiers())
	}
}

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	p := mustNew(t,
		Rule{Name: "people", Category: "schema_*"},
		with(func(r *Rule) { r.Name, r.Category = "one", "amount_?" }),
		with(func(r *Rule) { r.Name, r.Category = "all amounts", "amount_*" }),
		with(func(r *Rule) { r.Category = "*" }),
	)
	for category, want := range map[string]string{
		"schema_drift": "people",
		"amount_1":     "one",
		"amount_12":    "all amounts",
		"amount_1/2":   "default", // a glob stops at a slash
		"a/b/c":        "default", // a sole star does not
		"":             "default",
		"Schema_x":     "default",
	} {
		if got := p.Rule(&deadletter.Record{Category: category}).Name; got != want {
			t.Errorf("category %q: rule %q, want %q", category, got, want)
		}
	}
}

func TestPresetsAreValidAndAsDesigned(t *testing.T) {
	for name, want := range map[string]struct {
		attempts int
		delays   string
	}{
		"aggressive": {8, "1s 10s 30s 1m 5m 10m 1h"},
		"balanced":   {5, "10s 1m 10m 1h"},
		"gentle":     {5, "10m 1h 6h 24h"},
		"manual":     {0, ""},
	} {
		attempts, delays, ok := Preset(name)
		var names []string
		for _, d := range delays {
			names = append(names, FormatDelay(d))
		}
		if got := strings.Join(names, " "); !ok || attempts != want.attempts || got != want.delays {
			t.Errorf("%s: %d calls, %q, %v", name, attempts, got, ok)
		}
		mustNew(t, with(func(r *Rule) { r.Attempts, r.Delays = attempts, delays }))
	}
	if _, _, ok := Preset("Balanced"); ok {
		t.Error("an unknown preset was found")
	}
	if _, _, ok := Preset(DefaultPreset); !ok {
		t.Error("the default preset does not exist")
	}
}

func TestTheValueCanLowerTheCapAndNotRaiseIt(t *testing.T) {
	p := mustNew(t, Rule{Name: "people", Category: "manual"}, balanced())
	for _, c := range []struct {
		category         string
		maxAttempts, cap int
	}{
		{"x", 0, 5}, {"x", 2, 2}, {"x", 1, 1}, {"x", 5, 5}, {"x", 9, 5}, {"x", -3, 5},
		{"manual", 0, 0}, {"manual", 3, 0},
	} {
		if got := p.Cap(&deadletter.Record{Category: c.category, MaxAttempts: c.maxAttempts}); got != c.cap {
			t.Errorf("%s, max_attempts %d: cap %d, want %d", c.category, c.maxAttempts, got, c.cap)
		}
	}
}

func TestCountingStartsSoThatEachRecordOfASourceIsTriedOnce(t *testing.T) {
	p := mustNew(t, balanced())
	for _, c := range []struct {
		kind                        deadletter.Kind
		attempts, maxAttempts, want int
	}{
		{deadletter.Source, 0, 0, 0},
		{deadletter.Source, 3, 0, 3},
		{deadletter.Source, 4, 0, 4},
		{deadletter.Source, 5, 0, 4},
		{deadletter.Source, 1 << 40, 0, 4},
		{deadletter.Source, 2, 2, 1},
		{deadletter.Source, -1, 0, 0},
		{deadletter.Tier, 5, 0, 5},
		{deadletter.Hold, 7, 2, 7},
		{deadletter.Tier, -1, 0, 0},
	} {
		r := &deadletter.Record{Kind: c.kind, Attempt: c.attempts, MaxAttempts: c.maxAttempts}
		if got := p.Start(r); got != c.want {
			t.Errorf("kind %d, attempts %d of %d: start %d, want %d", c.kind, c.attempts, c.maxAttempts, got, c.want)
		}
		if d, _ := p.Admit(Breaker{}, r, t0); c.kind == deadletter.Source && d.Action != Call {
			t.Errorf("attempts %d of %d on a source: %s, want a call", c.attempts, c.maxAttempts, d.Action)
		}
	}
}

func TestAgeCountsFromTheLaterOfEntryAndRedrive(t *testing.T) {
	p := mustNew(t, balanced())
	const day = DefaultSLA
	for _, c := range []struct {
		name string
		r    deadletter.Record
		want bool
	}{
		{"just not", deadletter.Record{Enqueued: ago(day)}, false},
		{"by a millisecond", deadletter.Record{Enqueued: ago(day + time.Millisecond)}, true},
		{"redriven since", deadletter.Record{Enqueued: ago(3 * day), Redriven: ago(time.Hour)}, false},
		{"redriven long ago", deadletter.Record{Enqueued: ago(3 * day), Redriven: ago(2 * day)}, true},
		{"entry unknown, old arrival", deadletter.Record{Timestamp: ago(2 * day)}, true},
		{"entry unknown, new arrival", deadletter.Record{Timestamp: ago(time.Hour)}, false},
		{"nothing known", deadletter.Record{}, false},
	} {
		if got := p.Overdue(&c.r, t0); got != c.want {
			t.Errorf("%s: overdue %v, want %v", c.name, got, c.want)
		}
	}
}

func TestEveryWordOfAnEnumIsNamedAndDifferent(t *testing.T) {
	var words []string
	for a := Call; a <= ToPoison; a++ {
		words = append(words, a.String())
	}
	for _, s := range BreakerStates {
		words = append(words, "breaker "+s.String())
	}
	if len(BreakerStates) != int(BreakerProbing)+1 {
		t.Errorf("BreakerStates has %d states", len(BreakerStates))
	}
	slices.Sort(words)
	if n := len(slices.Compact(slices.Clone(words))); n != len(words) || slices.Contains(words, "unknown") {
		t.Errorf("words: %v", words)
	}
	if Action(99).String() != "unknown" || BreakerState(99).String() != "unknown" {
		t.Error("a value out of range has a word")
	}
}

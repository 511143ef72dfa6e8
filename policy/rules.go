package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// DefaultSLA is the MaxAge of a rule that names none.
const DefaultSLA = 24 * time.Hour

// Bounds of a rule.
const (
	MinDelay    = 100 * time.Millisecond // also the granularity of delays
	MaxDelay    = 30 * 24 * time.Hour
	MaxAttempts = 1000
)

// Breach says what a breached SLA does.
type Breach uint8

// What an SLA breach does to a record that failed after it.
const (
	BreachPoison Breach = iota // poison as sla_breached
	BreachAlert                // alert only, go on
)

// Rule is one policy rule. The first whose Category matches decides.
type Rule struct {
	Name     string
	Category string          // glob, path.Match syntax ("*" within a word stops at a slash); empty or "*" matches all
	Target   string          // name of the handler; empty only where Attempts is 0
	Attempts int             // handler calls, the first included, at most MaxAttempts; 0: straight to people
	Delays   []time.Duration // between the calls, multiples of MinDelay up to MaxDelay; a short list repeats its last
	MaxAge   time.Duration   // SLA; 0 only where Attempts is 0
	OnBreach Breach
}

// DefaultPreset is the strategy of a rule that names none.
const DefaultPreset = "balanced"

// Preset gives the attempts and delays of a named strategy: aggressive,
// balanced, gentle or manual. The slice is the caller's own.
func Preset(name string) (attempts int, delays []time.Duration, ok bool) {
	const s, m, h = time.Second, time.Minute, time.Hour
	switch name {
	case "aggressive":
		return 8, []time.Duration{s, 10 * s, 30 * s, m, 5 * m, 10 * m, h}, true
	case "balanced":
		return 5, []time.Duration{10 * s, m, 10 * m, h}, true
	case "gentle":
		return 5, []time.Duration{10 * m, h, 6 * h, 24 * h}, true
	case "manual":
		return 0, nil, true
	}
	return 0, nil, false
}

// Rule is the rule that decides about r: the first that matches. It is never nil and must not be changed.
func (p *Policy) Rule(r *deadletter.Record) *Rule {
	for i := range p.rules {
		if p.rules[i].matches(r.Category) {
			return &p.rules[i]
		}
	}
	panic("no rule matches") // the last matches everything, see check
}

// Targets are the names of the handlers that the rules call, in their order.
func (p *Policy) Targets() (names []string) {
	for _, u := range p.rules {
		if u.Target != "" && !slices.Contains(names, u.Target) {
			names = append(names, u.Target)
		}
	}
	return names
}

// Cap is how many counted attempts r gets: its rule's, or fewer if its value
// asks for fewer. 0 means straight to people, and only the rule can say so.
func (p *Policy) Cap(r *deadletter.Record) int {
	return p.Rule(r).limit(r)
}

// Start is how many attempts of r count as made before the next one. On a
// source topic it is the value's attempts, clamped so that at least one call is
// left; everywhere else it is what the header says.
func (p *Policy) Start(r *deadletter.Record) int {
	return p.Rule(r).start(r)
}

// Overdue says whether r is older than its rule's MaxAge: counted from the later
// of its first entry into the queue (its arrival where that is not known) and
// its last redrive. A record of unknown age, or under a rule without MaxAge, is never overdue.
func (p *Policy) Overdue(r *deadletter.Record, now time.Time) bool {
	return p.Rule(r).overdue(r, now)
}

func (u *Rule) limit(r *deadletter.Record) int {
	if r.MaxAttempts > 0 {
		return min(u.Attempts, r.MaxAttempts)
	}
	return u.Attempts
}

func (u *Rule) start(r *deadletter.Record) int {
	attempt := max(0, r.Attempt)
	if limit := u.limit(r); r.Kind == deadletter.Source && limit > 0 {
		return min(attempt, limit-1)
	}
	return attempt
}

func (u *Rule) overdue(r *deadletter.Record, now time.Time) bool {
	since := r.Enqueued
	if since == 0 {
		since = r.Timestamp
	}
	since = max(since, r.Redriven)
	return u.MaxAge > 0 && since > 0 && now.After(time.UnixMilli(since).Add(u.MaxAge))
}

func (u *Rule) catchAll() bool {
	return u.Category == "" || u.Category == "*"
}

func (u *Rule) matches(category string) bool {
	if u.catchAll() {
		return true
	}
	ok, _ := path.Match(u.Category, category) // its only error is a bad pattern, which check refuses
	return ok
}

// shadows says whether no record can reach v when u stands before it. It finds
// what can be found without comparing globs: a rule for everything, the same
// glob again, and a plain category that u's glob matches.
func (u *Rule) shadows(v *Rule) bool {
	plain := !strings.ContainsAny(v.Category, `*?[\`)
	return u.catchAll() || u.Category == v.Category || v.Category != "" && plain && u.matches(v.Category)
}

// check returns every fault of the rules.
func check(rules []Rule) []error {
	if len(rules) == 0 {
		return []error{errors.New("rules: there is none: add one without match, such as {name: default, target: <name>}")}
	}
	var faults []error
	for i := range rules {
		u := &rules[i]
		fault := func(field, format string, args ...any) {
			faults = append(faults, fmt.Errorf("rules[%d].%s: %s", i, field, fmt.Sprintf(format, args...)))
		}
		if u.Name == "" {
			fault("name", "missing: decisions and audit events name their rule")
		} else if j := slices.IndexFunc(rules[:i], func(v Rule) bool { return v.Name == u.Name }); j >= 0 {
			fault("name", "%q is already the name of rules[%d]", u.Name, j)
		}
		if _, err := path.Match(u.Category, ""); err != nil {
			fault("match.category", "%q is no valid glob: close its [ and end no pattern with a backslash", u.Category)
		} else if j := slices.IndexFunc(rules[:i], func(v Rule) bool { return v.shadows(u) }); j >= 0 {
			fault("match.category", "no record reaches this rule, rules[%d] takes them all: put this one before it or remove it", j)
		}
		u.checkCalls(fault)
		if u.OnBreach > BreachAlert {
			fault("sla.on_breach", "unknown value %d: use poison or alert", u.OnBreach)
		}
		if u.MaxAge < 0 || u.MaxAge == 0 && u.Attempts > 0 {
			fault("sla.max_age", "%s: must be more than 0, such as %s", u.MaxAge, FormatDelay(DefaultSLA))
		}
	}
	if !slices.ContainsFunc(rules, func(u Rule) bool { return u.catchAll() }) {
		faults = append(faults, errors.New("rules: a record of another category has no rule: add a last one without match, such as {name: default, target: <name>}"))
	}
	return faults
}

// checkCalls reports what is wrong with a rule's target, attempts and delays.
func (u *Rule) checkCalls(fault func(field, format string, args ...any)) {
	switch {
	case u.Attempts < 0 || u.Attempts > MaxAttempts:
		fault("attempts", "%d: must be 0 (straight to people) to %d", u.Attempts, MaxAttempts)
	case u.Attempts == 0 && len(u.Delays) > 0:
		fault("delays", "attempts is 0, so nothing is ever delayed: remove delays or raise attempts")
	case u.Attempts > 1 && len(u.Delays) == 0:
		fault("delays", "missing: %d attempts need at least one delay between them", u.Attempts)
	}
	if u.Attempts > 0 && u.Target == "" {
		fault("target", "missing: name a target, or use strategy manual")
	}
	for j, d := range u.Delays {
		if d < MinDelay || d > MaxDelay || d%MinDelay != 0 {
			fault(fmt.Sprintf("delays[%d]", j), "%s: must be a multiple of %s, at most %s", d, FormatDelay(MinDelay), FormatDelay(MaxDelay))
		}
	}
}

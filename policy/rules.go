package policy

import (
	"slices"
	"strconv"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// DefaultSLA is the MaxAge of a rule that names none.
const DefaultSLA = 24 * time.Hour

// Bounds of a policy and its rules.
const (
	MaxRules    = 10_000
	MinDelay    = 100 * time.Millisecond // also the granularity of delays
	MaxDelay    = 30 * 24 * time.Hour
	MaxAttempts = 1000
	MaxPatterns = 100 // in one list of a rule
)

// Breach says what a breached SLA does.
type Breach uint8

// What an SLA breach does to a record that failed after it.
const (
	BreachPoison Breach = iota // poison as sla_breached
	BreachAlert                // alert only, go on
)

// Rule is one policy rule. The first whose Category and Match match decides.
type Rule struct {
	Name     string
	Category string          // glob, path.Match syntax ("*" within a word stops at a slash); empty or "*" matches all
	Match    Match           // what else must be so
	Target   string          // name of the handler; empty where Attempts is 0, and where Match is on something that changes
	Attempts int             // handler calls, the first included, at most MaxAttempts; 0: straight to people
	Delays   []time.Duration // between the calls, multiples of MinDelay up to MaxDelay; a short list repeats its last
	// Permanent says which outcomes are permanent: globs over an outcome's cause, its
	// code, and "http_" with its status; DefaultPermanent stands for those that are
	// without it. nil: those alone. What a handler asks to poison always is.
	Permanent []string
	MaxAge    time.Duration // SLA; 0 only where Attempts is 0
	OnBreach  Breach
}

// DefaultPermanent is the word in Rule.Permanent for what the handler contract calls permanent.
const DefaultPermanent = "default"

// poisonRequested is the cause of a handler's own word that a record will never succeed.
const poisonRequested = "poison_requested"

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

// Rule is the rule that decides about r while its age does not count: the first
// that matches, those with OlderThan left out. It is never nil and must not be changed.
func (p *Policy) Rule(r *deadletter.Record) *Rule { return p.RuleAt(r, time.Time{}) }

// RuleAt is the rule that decides about r at now, its last failure being the one
// that it carries. It is never nil and must not be changed.
func (p *Policy) RuleAt(r *deadletter.Record, now time.Time) *Rule {
	i, _ := p.find(r, lastFailure(r), now)
	return &p.rules[i]
}

// Target is the name of the handler that r is sent to, the same for all its
// life; empty where it goes straight to people.
func (p *Policy) Target(r *deadletter.Record) string {
	v := view{r: r}
	p.route(&v)
	return v.target
}

// ChoosesTarget says whether the rule names the target of the records it matches:
// it does unless it matches on something that changes, see the package comment.
func (u *Rule) ChoosesTarget() bool { return !u.Match.moving() }

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
// asks for fewer. 0 means straight to people, and only the rule can say so. The
// rule is that of [Policy.Rule].
func (p *Policy) Cap(r *deadletter.Record) int {
	return p.Rule(r).limit(r)
}

// Start is how many attempts of r count as made before the next one. On a
// source topic it is the value's attempts, clamped so that at least one call is
// left; everywhere else it is what the header says. The rule is that of [Policy.Rule].
func (p *Policy) Start(r *deadletter.Record) int {
	return p.Rule(r).start(r)
}

// Overdue says whether r is older than its rule's MaxAge: counted from the later
// of its first entry into the queue (its arrival where that is not known) and
// its last redrive. A record of unknown age, or under a rule without MaxAge, is never overdue.
func (p *Policy) Overdue(r *deadletter.Record, now time.Time) bool {
	return p.RuleAt(r, now).overdue(r, now)
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
	return u.MaxAge > 0 && age(r, now) > u.MaxAge
}

// permanence is a rule's Permanent, compiled.
type permanence struct {
	usual bool // what the handler contract calls permanent
	words []glob
}

// has says whether an outcome that counts is permanent.
func (p *permanence) has(o deadletter.Outcome) bool {
	if p.usual && (o.Class == deadletter.Permanent || o.PermanentIfCounted) || o.Cause == poisonRequested {
		return true
	}
	if len(p.words) == 0 {
		return false
	}
	var room [24]byte
	status := string(strconv.AppendInt(append(room[:0], "http_"...), int64(o.Status), 10))
	for i := range p.words {
		if w := &p.words[i]; o.Cause != "" && w.match(o.Cause) || o.Code != "" && w.match(o.Code) || o.Status > 0 && w.match(status) {
			return true
		}
	}
	return false
}

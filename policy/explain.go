package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Explanation says which rule decides about a record and why, and what becomes of it.
type Explanation struct {
	Rule   *Rule    // decides now; must not be changed
	Passed []Passed // the rules before it, in order
	Target string   // empty: it goes straight to people
	Cap    int      // counted attempts it gets under this rule
	Steps  []Step   // from now to its end
	// Approximate: the record has no id yet, so each wait in a tier can differ by up to MaxJitter.
	Approximate bool
	// Cut: there are more steps than these, or its end never comes: the answers go on and are never counted.
	Cut bool
}

// Passed is a rule that does not match.
type Passed struct {
	Rule  string
	Field string // of the match, as in the configuration
	Why   string // never a value of a header or field
}

// Step is one decision on a record's way.
type Step struct {
	At       time.Time          // when it is made (UTC)
	Call     bool               // it is made of the answer of a call
	Answer   deadletter.Outcome // Call: what the handler answered
	Decision Decision
	Attempts int // counted after it
}

// maxSteps bounds an explanation.
const maxSteps = 10_000

// Explain is what Admit and Decide make of r, one after the other, from now on:
// the time it is read or, in a tier, taken up. The target is taken to be up, so
// that each answer counts as if the breaker let it; calls take no time. answers
// are those of its calls in order, the last one again and again; without any, every call
// fails. A record in poison has no way ahead.
func (p *Policy) Explain(r deadletter.Record, answers []deadletter.Outcome, now time.Time) Explanation {
	if len(answers) == 0 {
		answers = []deadletter.Outcome{{Class: deadletter.Suspect, Cause: "failed"}}
	}
	p.Prepare(&r)
	now = now.UTC()
	if r.Kind == deadletter.Source {
		r.Attempt = p.Start(&r) // as it is taken in
	}
	v := view{r: &r, last: lastFailure(&r), age: age(&r, now)}
	rule := p.search(&v)
	e := Explanation{Rule: &p.rules[rule], Target: v.target, Cap: p.rules[rule].limit(&r), Approximate: r.ID == ""}
	for i := range rule {
		field, why := p.why(i, &v)
		e.Passed = append(e.Passed, Passed{Rule: p.rules[i].Name, Field: field, Why: why})
	}
	if r.Kind != deadletter.Poison {
		e.Steps, e.Cut = p.steps(r, answers, now)
	}
	return e
}

// steps goes the way of a record.
func (p *Policy) steps(r deadletter.Record, answers []deadletter.Outcome, at time.Time) (steps []Step, cut bool) {
	for calls := 0; len(steps) < maxSteps; {
		s := Step{At: at}
		s.Decision, _ = p.Admit(Breaker{}, &r, at)
		if s.Call = s.Decision.Action == Call; s.Call {
			s.Answer = answers[min(calls, len(answers)-1)]
			calls++
			s.Decision = p.Decide(&r, s.Answer, at)
		}
		d := s.Decision
		s.Attempts = max(0, r.Attempt)
		if d.Counted {
			s.Attempts++
		}
		steps = append(steps, s)
		switch d.Action {
		case Resolve, ToPoison:
			return steps, false
		case Retry, Snooze, Retier: // a copy goes to a tier, and is taken up there
			r = After(r, d, s.Answer, at)
			r.Kind = deadletter.Tier
			at = earlier(d.NotBefore, at.Add(d.Tier))
		case HoldBack:
			if calls >= len(answers) && !d.Snoozed {
				return steps, true
			}
			if d.Snoozed {
				r.Snoozes++
			}
			fallthrough
		default: // it is kept in memory
			if d.NotBefore.After(at) {
				at = d.NotBefore
			}
		}
	}
	return steps, true
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// why says in words which condition of rule i does not hold.
func (p *Policy) why(i int, v *view) (field, why string) {
	u, m := &p.rules[i], &p.rules[i].Match
	switch p.mismatch(i, v) {
	case onCategory:
		return "category", fmt.Sprintf("category is %q, not %s", v.r.Category, u.Category)
	case onOrigin:
		topic, _, _ := strings.Cut(v.r.Origin, "/")
		if topic == "" {
			return "origin", "where it first arrived is not known"
		}
		return "origin", fmt.Sprintf("first arrived in %s, not %s", topic, list(m.Origin))
	case onHeader:
		for j, h := range m.Header {
			if !p.conditions[i].headers[j].met(v.r.Foreign) {
				return "header", headerWhy(h, v.r.Foreign)
			}
		}
	case onTarget:
		if v.target == "" {
			return "target", "it is never called, so there is nothing to decide for this rule"
		}
		return "target", fmt.Sprintf("target is %s, not %s", v.target, list(m.Target))
	case onAttempts:
		return "after_attempts", fmt.Sprintf("%d attempts counted, not %d", v.last.attempts, m.AfterAttempts)
	case onError:
		return "error", failedBut(v.last.cause, "failed with "+v.last.cause, m.Error)
	case onStatus:
		return "status", failedBut(v.last.cause, fmt.Sprintf("failed with status %d", v.last.status), m.Status)
	case onCode:
		return "code", failedBut(v.last.cause, "failed with code "+orNone(v.last.code), m.Code)
	case onAge:
		if v.age == unknownAge {
			return "older_than", "its age is not known"
		}
		return "older_than", fmt.Sprintf("%s old, not more than %s", v.age.Truncate(time.Second), FormatDelay(m.OlderThan))
	case onValue:
		return "value", p.valueWhy(i, v)
	}
	return "", ""
}

func headerWhy(h HeaderMatch, headers []deadletter.Header) string {
	for _, have := range headers {
		if have.Key == h.Name {
			return fmt.Sprintf("header %s is not %s", h.Name, h.Is)
		}
	}
	return fmt.Sprintf("no header %s", h.Name)
}

func (p *Policy) valueWhy(i int, v *view) string {
	if len(v.r.Value) > MaxValueBytes {
		return fmt.Sprintf("the value has %d bytes: rules look into %d at most", len(v.r.Value), MaxValueBytes)
	}
	for j, m := range p.rules[i].Match.Value {
		switch l := p.conditions[i].lookups[j]; {
		case v.found.has(l):
		case m.Is == "":
			return m.Path + " selects nothing"
		default:
			return m.Path + " is not " + m.Is
		}
	}
	return ""
}

func failedBut(cause, how string, want []string) string {
	if cause == "" {
		return "has not failed yet"
	}
	return how + ", not " + list(want)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func list(words []string) string { return strings.Join(words, " or ") }

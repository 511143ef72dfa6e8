package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

var failing = deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_503", Status: 503}

// written is an explanation's steps, one a line.
func written(e Explanation) string {
	var b strings.Builder
	for _, s := range e.Steps {
		d := s.Decision
		fmt.Fprintf(&b, "%s %s %s by %s", s.At.Sub(t0).Round(time.Second), d.Action, d.Reason, d.Rule)
		if s.Call {
			fmt.Fprintf(&b, " after %s, %d counted", orNone(s.Answer.Cause), s.Attempts)
		}
		if d.Tier > 0 {
			b.WriteString(", tier " + FormatDelay(d.Tier))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestARecordsWayIsExplainedStepByStep(t *testing.T) {
	slow := refine(Match{Status: []string{"503"}, AfterAttempts: 2})
	slow.Name, slow.Attempts, slow.Delays = "slow", 4, []time.Duration{6 * time.Hour}
	people := Rule{Name: "people", Category: "schema_*"}
	p := mustNew(t, people, slow, balanced())
	fresh := deadletter.Record{ID: "r", Category: "amount", Enqueued: t0.UnixMilli()}
	with := func(change func(*deadletter.Record)) deadletter.Record {
		r := fresh
		change(&r)
		return r
	}
	ok := deadletter.Outcome{Class: deadletter.Resolved}
	for _, c := range []struct {
		name    string
		r       deadletter.Record
		answers []deadletter.Outcome
		want    string
		cut     bool
	}{
		{"every call fails", fresh, []deadletter.Outcome{failing}, `
0s retry failed by default after http_503, 1 counted, tier 10s
10s retry failed by slow after http_503, 2 counted, tier 6h
6h0m9s retry failed by slow after http_503, 3 counted, tier 6h
12h0m9s poison attempts_exhausted by slow after http_503, 4 counted
`, false},
		{"without answers every call fails", fresh, nil, `
0s retry failed by default after failed, 1 counted, tier 10s
10s retry failed by default after failed, 2 counted, tier 1m
1m9s retry failed by default after failed, 3 counted, tier 10m
11m9s retry failed by default after failed, 4 counted, tier 1h
1h11m9s poison attempts_exhausted by default after failed, 5 counted
`, false},
		{"the second call succeeds", fresh, []deadletter.Outcome{failing, ok}, `
0s retry failed by default after http_503, 1 counted, tier 10s
10s resolve resolved by default after none, 1 counted
`, false},
		{"in progress, then done", fresh, []deadletter.Outcome{{Class: deadletter.InProgress, Cause: "in_progress"}, {Class: deadletter.InProgress, Cause: "in_progress"}, ok}, `
0s snooze in_progress by default after in_progress, 0 counted, tier 10s
10s snooze in_progress by default after in_progress, 0 counted, tier 10s
19s resolve resolved by default after none, 0 counted
`, false},
		{"busy, then done", fresh, []deadletter.Outcome{{Class: deadletter.Busy, Cause: "busy", RetryAfter: time.Minute}, ok}, `
0s hold busy by default after busy, 0 counted
1m0s resolve resolved by default after none, 0 counted
`, false},
		{"for ever refused", fresh, []deadletter.Outcome{{Class: deadletter.Unavailable, Cause: "refused"}}, `
0s hold unavailable by default after refused, 0 counted
`, true},
		{"straight to people", with(func(r *deadletter.Record) { r.Category = "schema_x" }), nil, `
0s poison manual by people
`, false},
		{"its attempts have run out", with(func(r *deadletter.Record) { r.Kind, r.Attempt = deadletter.Tier, 7 }), nil, `
0s poison attempts_exhausted by default
`, false},
		{"the value's attempts are clamped", with(func(r *deadletter.Record) { r.Attempt = 7 }), nil, `
0s poison attempts_exhausted by default after failed, 5 counted
`, false},
		{"overdue", with(func(r *deadletter.Record) { r.Enqueued = ago(25 * time.Hour) }), nil, `
0s poison sla_breached by default after failed, 1 counted
`, false},
		{"taken up too early", with(func(r *deadletter.Record) {
			r.Kind, r.Attempt, r.NotBefore = deadletter.Tier, 4, t0.Add(70*time.Minute+5*time.Second).UnixMilli()
		}), nil, `
0s retier not_due by default, tier 1h
1h0m0s retier not_due by default, tier 10m
1h10m0s wait not_due by default
1h10m5s poison attempts_exhausted by default after failed, 5 counted
`, false},
		{"in poison", with(func(r *deadletter.Record) { r.Kind = deadletter.Poison }), nil, "\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := p.Explain(c.r, c.answers, t0)
			if got := "\n" + written(e); got != c.want || e.Cut != c.cut {
				t.Errorf("cut %v:%s\nwant %v:%s", e.Cut, got, c.cut, c.want)
			}
		})
	}
}

func TestAnExplanationIsBoundedWhateverTheWaits(t *testing.T) {
	p := mustNew(t, with(func(r *Rule) { r.Delays = []time.Duration{MinDelay} }))
	r := deadletter.Record{ID: "r", Kind: deadletter.Tier, Attempt: 1, NotBefore: t0.Add(7 * 24 * time.Hour).UnixMilli()}
	e := p.Explain(r, nil, t0)
	if len(e.Steps) != maxSteps || !e.Cut {
		t.Errorf("%d steps, cut %v", len(e.Steps), e.Cut)
	}
}

func TestAnExplanationSaysWhyEachRuleBeforeDoesNotMatch(t *testing.T) {
	rule := func(name string, m Match) Rule {
		u := refine(m)
		u.Name = name
		return u
	}
	category := with(func(r *Rule) { r.Name, r.Category = "category", "schema_*" })
	rules := []Rule{
		category,
		rule("origin", Match{Origin: []string{"a", "b"}}),
		rule("no header", Match{Header: []HeaderMatch{{"h", ""}, {"other", ""}}}),
		rule("header", Match{Header: []HeaderMatch{{"h", "x*"}}}),
		rule("no field", Match{Value: []ValueMatch{{"$.context", ""}, {"$.context.b", ""}}}),
		rule("field", Match{Value: []ValueMatch{{"$.context.a", "x*"}}}),
		rule("target", Match{Target: []string{"archive"}}),
		rule("error", Match{Error: []string{"timeout", "reset"}}),
		rule("status", Match{Status: []string{"404"}}),
		rule("code", Match{Code: []string{"E1"}}),
		rule("age", Match{OlderThan: 36 * time.Hour}),
		rule("attempts", Match{AfterAttempts: 4}),
		with(func(r *Rule) { r.Name, r.Category, r.Target = "elsewhere", "never", "archive" }),
		balanced(),
	}
	p := mustNew(t, rules...)
	r := deadletter.Record{
		Kind: deadletter.Tier, Category: "amount", Origin: "recon.dlq/0/7", Attempt: 2, Enqueued: ago(90 * time.Minute),
		ErrorClass: "http_503", ErrorStatus: 503, Value: []byte(`{"context":{"a":"SECRET"}}`), Foreign: []deadletter.Header{{Key: "h", Value: []byte("SECRET")}},
	}
	for _, c := range []struct {
		name string
		r    deadletter.Record
		want string
	}{
		{"failed", r, `
category: category: category is "amount", not schema_*
origin: origin: first arrived in recon.dlq, not a or b
no header: header: no header other
header: header: header h is not x*
no field: value: $.context.b selects nothing
field: value: $.context.a is not x*
target: target: target is ledger, not archive
error: error: failed with http_503, not timeout or reset
status: status: failed with status 503, not 404
code: code: failed with code none, not E1
age: older_than: 1h30m0s old, not more than 36h
attempts: after_attempts: 2 attempts counted, not 4
elsewhere: category: category is "amount", not never
`},
		{"nothing known", deadletter.Record{Category: "amount"}, `
category: category: category is "amount", not schema_*
origin: origin: where it first arrived is not known
no header: header: no header h
header: header: no header h
no field: value: $.context selects nothing
field: value: $.context.a is not x*
target: target: target is ledger, not archive
error: error: has not failed yet
status: status: has not failed yet
code: code: has not failed yet
age: older_than: its age is not known
attempts: after_attempts: 0 attempts counted, not 4
elsewhere: category: category is "amount", not never
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := p.Explain(c.r, nil, t0)
			var b strings.Builder
			for _, q := range e.Passed {
				fmt.Fprintf(&b, "%s: %s: %s\n", q.Rule, q.Field, q.Why)
			}
			if got := "\n" + b.String(); got != c.want {
				t.Errorf("got%s\nwant%s", got, c.want)
			}
			if e.Rule.Name != "default" || e.Target != "ledger" || e.Cap != 5 || !e.Approximate {
				t.Errorf("%+v", e)
			}
			if strings.Contains(fmt.Sprintf("%+v", e), "SECRET") {
				t.Errorf("a value is shown: %+v", e)
			}
		})
	}
	people := mustNew(t, rule("old", Match{OlderThan: time.Hour}), with(func(r *Rule) { r.Attempts, r.Delays, r.Target = 0, nil, "" }))
	if e := people.Explain(r, nil, t0); len(e.Passed) != 1 || e.Passed[0].Why != "it is never called, so there is nothing to decide for this rule" || e.Target != "" || e.Cap != 0 {
		t.Errorf("straight to people: %+v", e)
	}
}

// steps as a worker makes them: Admit when a record is taken up, Decide when its
// call has ended, copies by their headers through a topic.
func worked(t *rapid.T, p *Policy, m deadletter.Message, kind deadletter.Kind, delay time.Duration, answers []deadletter.Outcome, now time.Time) []Step {
	var steps []Step
	calls := 0
	read := func() deadletter.Record {
		r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: kind, Delay: delay, MaxWait: p.MaxWait(), Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if kind == deadletter.Source {
			r.Attempt = p.Start(&r)
		}
		return r
	}
	r := read()
	for len(steps) < maxSteps {
		if kind == deadletter.Tier { // taken up no earlier
			if up := time.UnixMilli(min(r.NotBefore, m.Timestamp+delay.Milliseconds())).UTC(); up.After(now) {
				now = up
			}
		}
		step := Step{At: now, Attempts: r.Attempt}
		d, _ := p.Admit(Breaker{}, &r, now)
		if d.Action == Call {
			step.Call, step.Answer = true, answers[min(calls, len(answers)-1)]
			calls++
			d = p.Decide(&r, step.Answer, now)
			if d.Counted {
				step.Attempts++
			}
		}
		step.Decision = d
		steps = append(steps, step)
		switch d.Action {
		case Resolve, ToPoison:
			return steps
		case Retry, Snooze, Retier:
			next := After(r, d, step.Answer, now)
			m = deadletter.Message{Place: deadletter.Place{Topic: "tier"}, Timestamp: now.UnixMilli(), Key: r.Key, Value: r.Value, Headers: next.Headers()}
			kind, delay = deadletter.Tier, d.Tier
			r = read()
		case HoldBack:
			if d.Snoozed {
				r.Snoozes++
			} else if calls >= len(answers) {
				return steps
			}
			now = later(now, d.NotBefore)
		default:
			now = later(now, d.NotBefore)
		}
	}
	return steps
}

func TestAnExplanationIsWhatAdmitAndDecideMakeOfTheRecord(t *testing.T) {
	kinds := map[Action]int{}
	rapid.Check(t, func(t *rapid.T) {
		p, err := New(Options{Rules: drawRules(t)})
		if err != nil {
			t.Fatal(err)
		}
		now := t0.Add(time.Duration(rapid.Int64Range(0, 999).Draw(t, "now")) * time.Millisecond)
		drawn := drawMatching(t)
		m := deadletter.Message{
			Place: deadletter.Place{Topic: rapid.SampledFrom([]string{"a", "ab", "b"}).Draw(t, "topic"), Offset: 7}, Timestamp: now.UnixMilli(),
			Value: fmt.Appendf(nil, `{"discrepancy_id":"d","category":%q,"context":{},"enqueued_ms":%d,"attempts":%d,"v":%d}`,
				drawn.Category, drawn.Enqueued, drawn.Attempt, rapid.IntRange(1, 2).Draw(t, "v")),
			Headers: slices.Clone(drawn.Foreign),
		}
		kind, delay := deadletter.Source, time.Duration(0)
		if rapid.Bool().Draw(t, "in a tier") {
			kind = deadletter.Tier
			delay = rapid.SampledFrom(p.Tiers()).Draw(t, "delay")
			drawn.NotBefore = now.Add(delay * rapid.SampledFrom([]time.Duration{-10, 0, 9, 10, 11, 19}).Draw(t, "tenths") / 10).UnixMilli()
			m.Headers = drawn.Headers()
		}
		answers := rapid.SliceOfN(rapid.Custom(drawAnswer), 1, 5).Draw(t, "answers")

		r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: kind, Delay: delay, MaxWait: p.MaxWait(), Now: now})
		if err != nil {
			t.Fatal(err)
		}
		up := now
		if kind == deadletter.Tier {
			up = later(now, time.UnixMilli(min(r.NotBefore, m.Timestamp+delay.Milliseconds())).UTC())
		}
		e := p.Explain(r, answers, up)
		want := worked(t, p, m, kind, delay, answers, now)
		if !slices.Equal(e.Steps, want) {
			t.Fatalf("explained\n%+v\nworked\n%+v", e.Steps, want)
		}
		if got := p.RuleAt(&r, up).Name; kind == deadletter.Tier && e.Rule.Name != got {
			t.Fatalf("rule %s, want %s", e.Rule.Name, got)
		}
		for _, s := range want {
			kinds[s.Decision.Action]++
		}
	})
	for _, a := range []Action{Resolve, Retry, Snooze, Retier, ToPoison, HoldBack, Wait} {
		if kinds[a] == 0 {
			t.Errorf("no %s was explained: the test has lost its grip", a)
		}
	}
}

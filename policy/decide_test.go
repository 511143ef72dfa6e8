package policy

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// What Decide answers; NotBefore of a retry is left open.
func poison(reason string) Decision {
	return Decision{Action: ToPoison, Reason: reason, Rule: "default", Counted: true}
}

func held(reason string, wait time.Duration) Decision {
	return Decision{Action: HoldBack, Reason: reason, Rule: "default", Target: "ledger", NotBefore: t0.Add(wait)}
}

func retry(tier time.Duration) Decision {
	return Decision{Action: Retry, Reason: ReasonFailed, Rule: "default", Tier: tier, Counted: true}
}

func TestEachAnswerHasItsDecision(t *testing.T) {
	fresh := deadletter.Record{ID: "r1", Kind: deadletter.Tier, Enqueued: ago(time.Minute)}
	last, old := fresh, fresh
	last.Attempt = 4
	old.Enqueued = ago(25 * time.Hour)
	oldLast := old
	oldLast.Attempt = 4
	tired := fresh
	tired.Snoozes = MaxSnoozes
	tiredLast := last
	tiredLast.Snoozes = MaxSnoozes
	resolved := Decision{Action: Resolve, Reason: ReasonResolved, Rule: "default"}

	for _, c := range []struct {
		name string
		r    deadletter.Record
		o    deadletter.Outcome
		want Decision // Retry and Snooze: NotBefore is checked within its jitter
	}{
		{"2xx", fresh, deadletter.Outcome{Class: deadletter.Resolved}, resolved},
		{"2xx, overdue, last attempt", oldLast, deadletter.Outcome{Class: deadletter.Resolved}, resolved},
		{"400 410 422", fresh, deadletter.Outcome{Class: deadletter.Permanent}, poison(deadletter.ReasonPermanent)},
		{"400 on the last attempt", last, deadletter.Outcome{Class: deadletter.Permanent}, poison(deadletter.ReasonPermanent)},
		{"400, overdue", old, deadletter.Outcome{Class: deadletter.Permanent}, poison(deadletter.ReasonPermanent)},
		{"408 425 5xx timeout", fresh, deadletter.Outcome{Class: deadletter.Suspect}, retry(10 * time.Second)},
		{"5xx on the last attempt", last, deadletter.Outcome{Class: deadletter.Suspect}, poison(deadletter.ReasonAttemptsExhausted)},
		{"5xx, overdue", old, deadletter.Outcome{Class: deadletter.Suspect}, poison(deadletter.ReasonSLABreached)},
		{"5xx, overdue on the last attempt", oldLast, deadletter.Outcome{Class: deadletter.Suspect}, poison(deadletter.ReasonAttemptsExhausted)},
		{"401 403 404 405 415 redirect", fresh, deadletter.Outcome{Class: deadletter.Suspect, PermanentIfCounted: true}, poison(deadletter.ReasonPermanent)},
		{"404, overdue on the last attempt", oldLast, deadletter.Outcome{Class: deadletter.Suspect, PermanentIfCounted: true}, poison(deadletter.ReasonPermanent)},
		{"429 without a time", fresh, deadletter.Outcome{Class: deadletter.Busy}, held(ReasonBusy, time.Second)},
		{"503 with a time", fresh, deadletter.Outcome{Class: deadletter.Busy, RetryAfter: 2 * time.Minute}, held(ReasonBusy, 2*time.Minute)},
		{"429 with an absurd time", fresh, deadletter.Outcome{Class: deadletter.Busy, RetryAfter: 1e6 * time.Hour}, held(ReasonBusy, MaxRetryAfter)},
		{"429 with a negative time", fresh, deadletter.Outcome{Class: deadletter.Busy, RetryAfter: -time.Hour}, held(ReasonBusy, time.Second)},
		{"429, overdue on the last attempt", oldLast, deadletter.Outcome{Class: deadletter.Busy}, held(ReasonBusy, time.Second)},
		{"409", fresh, deadletter.Outcome{Class: deadletter.InProgress}, Decision{Action: Snooze, Reason: ReasonInProgress, Rule: "default", Tier: 10 * time.Second, Snoozed: true}},
		{"409, overdue on the last attempt", oldLast, deadletter.Outcome{Class: deadletter.InProgress}, Decision{Action: Snooze, Reason: ReasonInProgress, Rule: "default", Tier: 10 * time.Second, Snoozed: true}},
		{"409 for the eleventh time", tired, deadletter.Outcome{Class: deadletter.InProgress}, retry(10 * time.Second)},
		{"409 for the eleventh time on the last attempt", tiredLast, deadletter.Outcome{Class: deadletter.InProgress}, poison(deadletter.ReasonAttemptsExhausted)},
		{"refused, reset, DNS", fresh, deadletter.Outcome{Class: deadletter.Unavailable}, held(ReasonUnavailable, 0)},
		{"refused, overdue on the last attempt", oldLast, deadletter.Outcome{Class: deadletter.Unavailable}, held(ReasonUnavailable, 0)},
		{"the worker gave up", fresh, deadletter.Outcome{Class: deadletter.Stopped}, held(ReasonStopped, 0)},
		{"a class nobody knows", fresh, deadletter.Outcome{Class: 99}, retry(10 * time.Second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mustNew(t, balanced()).Decide(&c.r, c.o, t0)
			if c.want.Tier > 0 {
				early := t0.Add(c.want.Tier).Sub(got.NotBefore)
				if early < 0 || early > min(c.want.Tier/5, MaxJitter) {
					t.Errorf("not before %s, %s ahead of the tier", got.NotBefore, early)
				}
				c.want.NotBefore = got.NotBefore
			}
			if got != c.want {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestABreachThatOnlyAlertsGoesOn(t *testing.T) {
	p := mustNew(t, with(func(r *Rule) { r.OnBreach = BreachAlert }))
	r := &deadletter.Record{Kind: deadletter.Tier, Enqueued: ago(48 * time.Hour)}
	if d := p.Decide(r, deadletter.Outcome{Class: deadletter.Suspect}, t0); d.Action != Retry {
		t.Errorf("got %+v", d)
	}
}

func TestTheDelayIsFoundByTheAttemptsCountedBefore(t *testing.T) {
	p := mustNew(t, with(func(r *Rule) { r.Attempts, r.Delays = 6, []time.Duration{time.Second, time.Minute, time.Hour} }))
	for _, c := range []struct {
		kind    deadletter.Kind
		attempt int
		want    string // "" is poison
	}{
		{deadletter.Source, 0, "1s"}, {deadletter.Tier, 1, "1m"}, {deadletter.Tier, 2, "1h"},
		{deadletter.Tier, 3, "1h"}, {deadletter.Hold, 4, "1h"}, {deadletter.Tier, 5, ""}, {deadletter.Tier, 50, ""},
		{deadletter.Source, 2, "1h"}, // the value says that two were made
		{deadletter.Source, 50, ""},  // clamped to 5: this was the one call
	} {
		d := p.Decide(&deadletter.Record{Kind: c.kind, Attempt: c.attempt}, deadletter.Outcome{Class: deadletter.Suspect}, t0)
		got := ""
		if d.Action == Retry {
			got = FormatDelay(d.Tier)
		}
		if got != c.want {
			t.Errorf("kind %d, %d attempts before: %q, want %q", c.kind, c.attempt, got, c.want)
		}
	}
}

func TestASnoozeWaitsLongerEachTimeAsFarAsTiersAllow(t *testing.T) {
	tiersOf := func(delays ...time.Duration) Rule { return with(func(r *Rule) { r.Delays = delays }) }
	for _, c := range []struct {
		name string
		rule Rule
		want string
	}{
		{"balanced", balanced(), "10s 10s 10s 1m 1m 1m 10m 10m 10m 10m"},
		{"every step has its tier", tiersOf(10*time.Second, 20*time.Second, 40*time.Second, 80*time.Second, 160*time.Second, 320*time.Second, 10*time.Minute), "10s 20s 40s 80s 160s 320s 10m 10m 10m 10m"},
		{"no tier below a minute", tiersOf(time.Minute), "1m 1m 1m 1m 1m 1m 1m 1m 1m 1m"},
		{"no tier below the longest", tiersOf(10 * time.Minute), "10m 10m 10m 10m 10m 10m 10m 10m 10m 10m"},
		{"no tier up to the longest", tiersOf(time.Hour), "hold 10s, hold 20s, hold 40s, hold 80s, hold 160s, hold 320s, hold 10m, hold 10m, hold 10m, hold 10m"},
		{"no tier at all", with(func(r *Rule) { r.Attempts, r.Delays = 1, nil }), "hold 10s, hold 20s, hold 40s, hold 80s, hold 160s, hold 320s, hold 10m, hold 10m, hold 10m, hold 10m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustNew(t, c.rule)
			got := ""
			for n := range MaxSnoozes {
				d := p.Decide(&deadletter.Record{Kind: deadletter.Tier, Snoozes: n}, deadletter.Outcome{Class: deadletter.InProgress}, t0)
				if d.Counted || !d.Snoozed {
					t.Errorf("snooze %d: %+v", n, d)
				}
				switch {
				case d.Action == HoldBack && n > 0:
					got += ", hold " + FormatDelay(d.NotBefore.Sub(t0))
				case d.Action == HoldBack:
					got += "hold " + FormatDelay(d.NotBefore.Sub(t0))
				case n > 0:
					got += " " + FormatDelay(d.Tier)
				default:
					got += FormatDelay(d.Tier)
				}
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestJitterSpreadsRecordsThatFailTogether(t *testing.T) {
	p := mustNew(t, balanced())
	buckets := make(map[time.Duration]int)
	for i := range 10_000 {
		d := p.Decide(&deadletter.Record{ID: fmt.Sprintf("%032x", i), Kind: deadletter.Tier}, deadletter.Outcome{Class: deadletter.Suspect}, t0)
		buckets[t0.Add(d.Tier).Sub(d.NotBefore)/(100*time.Millisecond)]++
	}
	for tenth := range time.Duration(10) {
		if n := buckets[tenth]; n < 800 || n > 1200 {
			t.Errorf("%d of 10,000 records are %d ms early, want about 1,000", n, 100*tenth)
		}
	}
}

func drawPolicy(t *rapid.T) *Policy {
	delay := rapid.Custom(func(t *rapid.T) time.Duration {
		return MinDelay * time.Duration(rapid.Int64Range(1, int64(48*time.Hour/MinDelay)).Draw(t, "delay"))
	})
	rule := rapid.Custom(func(t *rapid.T) Rule {
		return Rule{
			Target:   "t",
			Attempts: rapid.IntRange(1, 9).Draw(t, "attempts"),
			Delays:   rapid.SliceOfN(delay, 1, 6).Draw(t, "delays"),
			MaxAge:   time.Duration(rapid.Int64Range(1, int64(72*time.Hour)).Draw(t, "max age")),
			OnBreach: rapid.SampledFrom([]Breach{BreachPoison, BreachAlert}).Draw(t, "on breach"),
		}
	})
	rules := []Rule{rule.Draw(t, "first"), rule.Draw(t, "last")}
	rules[0].Name, rules[0].Category, rules[1].Name = "first", "a*", "last"
	p, err := New(Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawRecord(t *rapid.T) deadletter.Record {
	ms := rapid.Int64Range(ago(100*time.Hour), ago(-100*time.Hour))
	return deadletter.Record{
		ID:          rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "id"),
		Kind:        rapid.SampledFrom([]deadletter.Kind{deadletter.Source, deadletter.Tier, deadletter.Hold}).Draw(t, "kind"),
		Category:    rapid.SampledFrom([]string{"amount", "b"}).Draw(t, "category"),
		MaxAttempts: rapid.IntRange(0, 12).Draw(t, "max attempts"),
		Attempt:     rapid.IntRange(0, 12).Draw(t, "attempt"),
		Snoozes:     rapid.IntRange(0, 12).Draw(t, "snoozes"),
		NotBefore:   ms.Draw(t, "not before"),
		Enqueued:    ms.Draw(t, "enqueued"),
		Redriven:    rapid.OneOf(rapid.Just(int64(0)), ms).Draw(t, "redriven"),
	}
}

func drawOutcome(t *rapid.T, classes ...deadletter.Class) deadletter.Outcome {
	return deadletter.Outcome{
		Class:              rapid.SampledFrom(classes).Draw(t, "class"),
		RetryAfter:         time.Duration(rapid.Int64Range(-1, int64(3*time.Hour)).Draw(t, "retry after")),
		PermanentIfCounted: rapid.Bool().Draw(t, "permanent if counted"),
	}
}

var allClasses = []deadletter.Class{
	deadletter.Resolved, deadletter.Permanent, deadletter.Suspect, deadletter.Busy,
	deadletter.InProgress, deadletter.Unavailable, deadletter.Stopped,
}

func TestADecisionCanBeComputedAgainAndChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, r, o := drawPolicy(t), drawRecord(t), drawOutcome(t, allClasses...)
		before := r
		again := r
		if a, b := p.Decide(&r, o, t0), p.Decide(&again, o, t0); a != b {
			t.Fatalf("%+v, then %+v", a, b)
		}
		a, _ := p.Admit(Breaker{}, &r, t0)
		if b, _ := p.Admit(Breaker{}, &again, t0); a != b {
			t.Fatalf("%+v, then %+v", a, b)
		}
		if !reflect.DeepEqual(r, before) {
			t.Fatalf("the record was changed: %+v", r)
		}
	})
}

func TestACopyIsDueByItsTiersDelayAndEarlierByJitterOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, r := drawPolicy(t), drawRecord(t)
		now := t0.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "now")))
		d := p.Decide(&r, drawOutcome(t, allClasses...), now)
		if d.Action != Retry && d.Action != Snooze {
			if d.Tier != 0 {
				t.Fatalf("a tier without a copy: %+v", d)
			}
			return
		}
		if tier, ok := p.LongestTier(d.Tier); !ok || tier != d.Tier {
			t.Fatalf("%s is no tier of %v", d.Tier, p.Tiers())
		}
		due := time.UnixMilli(now.UnixMilli()).Add(d.Tier)
		if early := due.Sub(d.NotBefore); early < 0 || early > min(d.Tier/5, MaxJitter) {
			t.Fatalf("tier %s: early by %s", d.Tier, early)
		}
		if time.UnixMilli(d.NotBefore.UnixMilli()).UTC() != d.NotBefore {
			t.Fatalf("%s is no whole millisecond", d.NotBefore)
		}
	})
}

// apply makes of r the copy that is read next.
func apply(r *deadletter.Record, start int, d Decision) {
	r.Attempt = start
	if d.Counted {
		r.Attempt, r.Snoozes = start+1, 0
	}
	if d.Snoozed {
		r.Snoozes++
	}
	if d.Action != HoldBack {
		r.Kind = deadletter.Tier
		r.NotBefore = d.NotBefore.UnixMilli()
	}
}

func TestARecordEndsWithinItsCapWhateverIsAnswered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, r := drawPolicy(t), drawRecord(t)
		r.Kind, r.NotBefore, r.Snoozes = deadletter.Source, 0, 0
		limit, first := p.Cap(&r), p.Start(&r)
		now := t0
		counted, snoozed, calls := 0, 0, 0
		for {
			d, _ := p.Admit(Breaker{}, &r, now)
			for d.Action == Wait || d.Action == Retier {
				if d.Action == Retier {
					apply(&r, p.Start(&r), d)
					now = now.Add(d.Tier)
				} else {
					now = d.NotBefore
				}
				d, _ = p.Admit(Breaker{}, &r, now)
			}
			if d.Action != Call {
				t.Fatalf("after %d calls: %+v", calls, d)
			}
			if now.Before(time.UnixMilli(r.NotBefore)) {
				t.Fatalf("called at %s, not before %s", now, time.UnixMilli(r.NotBefore))
			}
			calls++
			classes := allClasses
			if calls > 50 { // what is never counted can go on for ever: that is the target's doing
				classes = []deadletter.Class{deadletter.Suspect, deadletter.InProgress}
			}
			d = p.Decide(&r, drawOutcome(t, classes...), now)
			if d.Counted {
				counted++
			}
			if d.Snoozed {
				snoozed++
			}
			if counted > limit-first || snoozed > MaxSnoozes*(limit-first) {
				t.Fatalf("cap %d, start %d: %d counted, %d snoozed", limit, first, counted, snoozed)
			}
			if d.Action == Resolve || d.Action == ToPoison {
				return
			}
			apply(&r, p.Start(&r), d)
		}
	})
}

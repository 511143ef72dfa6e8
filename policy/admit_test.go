package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestWhatIsAskedBeforeACall(t *testing.T) {
	p := mustNew(t, Rule{Name: "people", Category: "manual"}, balanced())
	down := openBreaker()
	busy, _, _ := Breaker{}.Observe("x", Refusals{}, deadletter.Outcome{Class: deadletter.Busy, RetryAfter: time.Minute}, 0, t0)
	ahead := func(d time.Duration) deadletter.Record {
		return deadletter.Record{ID: "r", Kind: deadletter.Tier, Attempt: 1, NotBefore: ago(-d)}
	}
	for _, c := range []struct {
		name string
		b    Breaker
		r    deadletter.Record
		now  time.Time
		want Decision
	}{
		{"a manual rule", Breaker{}, deadletter.Record{Category: "manual"}, t0,
			Decision{Action: ToPoison, Reason: deadletter.ReasonManual, Rule: "people"}},
		{"a manual rule, not due, target down", down, deadletter.Record{Category: "manual", NotBefore: ago(-time.Hour)}, t0,
			Decision{Action: ToPoison, Reason: deadletter.ReasonManual, Rule: "people"}},
		{"policy was lowered", down, deadletter.Record{Kind: deadletter.Tier, Attempt: 5, NotBefore: ago(-time.Hour)}, t0,
			Decision{Action: ToPoison, Reason: deadletter.ReasonAttemptsExhausted, Rule: "default"}},
		{"new", Breaker{}, deadletter.Record{}, t0,
			Decision{Action: Call, Reason: ReasonDue, Rule: "default", Target: "ledger"}},
		{"new and overdue", Breaker{}, deadletter.Record{Enqueued: ago(100 * time.Hour)}, t0,
			Decision{Action: Call, Reason: ReasonDue, Rule: "default", Target: "ledger"}},
		{"due at this very millisecond", Breaker{}, ahead(0), t0,
			Decision{Action: Call, Reason: ReasonDue, Rule: "default", Target: "ledger"}},
		{"a nanosecond early", Breaker{}, ahead(0), t0.Add(-1),
			Decision{Action: Wait, Reason: ReasonNotDue, Rule: "default", NotBefore: t0}},
		{"the rest is shorter than any tier", down, ahead(9 * time.Second), t0,
			Decision{Action: Wait, Reason: ReasonNotDue, Rule: "default", NotBefore: t0.Add(9 * time.Second)}},
		{"the rest is a tier", Breaker{}, ahead(10 * time.Second), t0,
			Decision{Action: Retier, Reason: ReasonNotDue, Rule: "default", Tier: 10 * time.Second, NotBefore: t0.Add(10 * time.Second)}},
		{"the rest is longer than a tier", down, ahead(50 * time.Minute), t0,
			Decision{Action: Retier, Reason: ReasonNotDue, Rule: "default", Tier: 10 * time.Minute, NotBefore: t0.Add(50 * time.Minute)}},
		{"target down", down, ahead(-time.Hour), t0,
			Decision{Action: HoldBack, Reason: ReasonTargetDown, Rule: "default", Target: "ledger", NotBefore: t0.Add(time.Second)}},
		{"target down, a probe is due", down, ahead(-time.Hour), t0.Add(time.Second),
			Decision{Action: Call, Reason: ReasonProbe, Rule: "default", Target: "ledger", Epoch: 1}},
		{"target busy", busy, ahead(-time.Hour), t0,
			Decision{Action: HoldBack, Reason: ReasonTargetDown, Rule: "default", Target: "ledger", NotBefore: t0.Add(time.Minute)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, b := p.Admit(c.b, &c.r, c.now)
			if got != c.want {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
			if got.Reason != ReasonProbe && b != c.b {
				t.Errorf("the breaker changed without a probe: %+v", b)
			}
		})
	}
}

func TestAWaitTakesABoundedNumberOfHops(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		tiers := p.Tiers()
		wait := time.Millisecond * time.Duration(rapid.Int64Range(1, min(p.MaxWait(), 500*tiers[len(tiers)-1]).Milliseconds()).Draw(t, "wait"))
		r := deadletter.Record{Kind: deadletter.Tier, NotBefore: t0.Add(wait).UnixMilli()}
		if p.Cap(&r) == 0 {
			t.Skip()
		}
		bound := int(wait / tiers[len(tiers)-1])
		for i, tier := range tiers[1:] {
			bound += int(tier / tiers[i])
		}
		now, hops := t0, 0
		for {
			d, _ := p.Admit(Breaker{}, &r, now)
			if d.Action != Retier {
				if rest := r.NotBefore - now.UnixMilli(); d.Action == Wait && (rest <= 0 || rest >= tiers[0].Milliseconds()) {
					t.Fatalf("waits in memory for %d ms, shortest tier %s", rest, tiers[0])
				}
				break
			}
			if d.NotBefore.UnixMilli() != r.NotBefore || d.Counted || d.Snoozed {
				t.Fatalf("a hop changed more than the place: %+v", d)
			}
			hops++
			now = now.Add(d.Tier)
			if hops > bound || now.After(t0.Add(wait)) {
				t.Fatalf("%d hops, bound %d, now %s of %s", hops, bound, now.Sub(t0), wait)
			}
		}
	})
}

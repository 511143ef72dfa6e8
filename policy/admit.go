package policy

import (
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Admit says whether r may be called now, and if not, what becomes of it. b is
// the breaker of the target of r's rule; the one returned takes its place.
//
// A record from a tier is to be brought here when it is taken up: at its
// not-before or when the tier's delay has passed since its append, whichever is
// first. If its not-before is still to come it waits in memory when the rest is
// shorter than the shortest tier, and goes to the longest tier not longer than
// the rest otherwise. Such a wait w takes at most w/t hops through the longest
// tier t, and through each other tier t fewer than t'/t, t' being the next longer.
func (p *Policy) Admit(b Breaker, r *deadletter.Record, now time.Time) (Decision, Breaker) {
	i, target := p.find(r, lastFailure(r), now)
	rule := &p.rules[i]
	d := Decision{Rule: rule.Name}
	limit := rule.limit(r)
	notBefore := time.UnixMilli(r.NotBefore).UTC()
	switch {
	case limit == 0:
		d.Action, d.Reason = ToPoison, deadletter.ReasonManual
	case rule.start(r) >= limit: // policy was lowered while it waited
		d.Action, d.Reason = ToPoison, deadletter.ReasonAttemptsExhausted
	case notBefore.After(now):
		d.Reason, d.NotBefore = ReasonNotDue, notBefore
		if tier, ok := p.LongestTier(notBefore.Sub(now)); ok {
			d.Action, d.Tier = Retier, tier
		} else {
			d.Action = Wait
		}
	default:
		var v Verdict
		b, v = b.Admit(r.ID, now)
		d.Target = target
		switch {
		case !v.Call:
			d.Action, d.Reason, d.NotBefore = HoldBack, ReasonTargetDown, v.Until
		case v.Probe:
			d.Action, d.Reason, d.Epoch = Call, ReasonProbe, v.Epoch
		default:
			d.Action, d.Reason, d.Epoch = Call, ReasonDue, v.Epoch
		}
	}
	return d, b
}

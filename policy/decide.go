package policy

import (
	"hash/fnv"
	"strconv"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// MaxJitter bounds by how much jitter shortens a delay; a fifth of the delay is the other bound.
const MaxJitter = time.Second

// MaxSnoozes is how many "in progress" answers between two counted attempts are not counted.
const MaxSnoozes = 10

// An "in progress" answer waits SnoozeMin, doubling up to SnoozeMax.
const (
	SnoozeMin = 10 * time.Second
	SnoozeMax = 10 * time.Minute
)

// Decide says what becomes of r after the outcome o of a call that ended at now.
// Only outcomes that the target's breaker ruled to count belong here, but those
// it would hold are held here too. The package comment has the table. Times are
// whole milliseconds, as headers carry them.
func (p *Policy) Decide(r *deadletter.Record, o deadletter.Outcome, now time.Time) Decision {
	now = now.UTC().Truncate(time.Millisecond)
	switch o.Class {
	case deadletter.Resolved, deadletter.Busy, deadletter.Unavailable, deadletter.Stopped:
		return p.uncounted(r, o, now)
	}
	snoozed := o.Class == deadletter.InProgress && r.Snoozes < MaxSnoozes
	i, target := p.find(r, failureAfter(r, o, !snoozed), now)
	rule, permanent := &p.rules[i], p.permanent[i].has(o)
	if snoozed && !permanent && rule.limit(r) > 0 {
		return p.snooze(rule, target, r, now)
	}
	return failed(rule, r, permanent, now)
}

// uncounted decides about an outcome that changes nothing about the record: it is done, or kept.
func (p *Policy) uncounted(r *deadletter.Record, o deadletter.Outcome, now time.Time) Decision {
	i, target := p.find(r, lastFailure(r), now)
	d := Decision{Action: HoldBack, NotBefore: now, Rule: p.rules[i].Name, Target: target}
	switch o.Class {
	case deadletter.Resolved:
		return Decision{Action: Resolve, Reason: ReasonResolved, Rule: d.Rule}
	case deadletter.Busy:
		d.Reason, d.NotBefore = ReasonBusy, now.Add(retryAfter(o, defaultProbeMin))
	case deadletter.Unavailable:
		d.Reason = ReasonUnavailable
	default:
		d.Reason = ReasonStopped
	}
	return d
}

// failed decides about a counted failure. A rule that allows no attempts makes every one permanent.
func failed(rule *Rule, r *deadletter.Record, permanent bool, now time.Time) Decision {
	d := Decision{Rule: rule.Name, Counted: true}
	attempt, limit := rule.start(r), rule.limit(r)
	switch {
	case permanent || limit == 0:
		d.Action, d.Reason = ToPoison, deadletter.ReasonPermanent
	case attempt+1 >= limit:
		d.Action, d.Reason = ToPoison, deadletter.ReasonAttemptsExhausted
	case rule.OnBreach == BreachPoison && rule.overdue(r, now):
		d.Action, d.Reason = ToPoison, deadletter.ReasonSLABreached
	default:
		delay := rule.Delays[min(attempt, len(rule.Delays)-1)] // not empty where a second attempt is allowed, see calls
		d.Action, d.Reason = Retry, ReasonFailed
		d.Tier, d.NotBefore = delay, now.Add(delay-jitter(r.ID, attempt, delay))
	}
	return d
}

// snooze lets a record wait that is being worked on elsewhere. The back-off is
// rounded down to a tier, so that one copy does; it never waits less than the
// shortest tier. Only where even that is longer than SnoozeMax, or there is no
// tier at all, the record stays in memory.
func (p *Policy) snooze(rule *Rule, target string, r *deadletter.Record, now time.Time) Decision {
	d := Decision{Reason: ReasonInProgress, Rule: rule.Name, Snoozed: true}
	wait := SnoozeMin
	for range r.Snoozes {
		wait = min(2*wait, SnoozeMax)
	}
	if len(p.tiers) == 0 || p.tiers[0] > SnoozeMax {
		d.Action, d.Target, d.NotBefore = HoldBack, target, now.Add(wait)
		return d
	}
	d.Action = Snooze
	d.Tier, _ = p.LongestTier(max(wait, p.tiers[0]))
	d.NotBefore = now.Add(d.Tier - jitter(r.ID, r.Snoozes, d.Tier))
	return d
}

// retryAfter is the pause that a busy target asked for, between 0 and MaxRetryAfter; unnamed if it did not say.
func retryAfter(o deadletter.Outcome, unnamed time.Duration) time.Duration {
	if o.RetryAfter <= 0 {
		return unnamed
	}
	return min(o.RetryAfter, MaxRetryAfter)
}

// jitter spreads records that failed together, in whole milliseconds. It
// shortens and never lengthens, so a tier's delay is the latest time due; and it
// depends on nothing but its arguments, so a decision can be computed again.
func jitter(id string, attempt int, delay time.Duration) time.Duration {
	most := min(delay/5, MaxJitter) / time.Millisecond
	var room [64]byte
	return time.Duration(hash(strconv.AppendInt(append(append(room[:0], id...), '/'), int64(attempt), 10))%uint64(most+1)) * time.Millisecond
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // never an error, see hash.Hash
	return h.Sum64()
}

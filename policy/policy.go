// Package policy decides: whether a record may be called now, and what becomes
// of it after an answer. Every function is pure: no I/O, no clock, no context,
// no logger. The time is an argument, read once per phase by the caller. A
// decision can be computed again from the same arguments, so the worker, redrive
// plans, simulation and tests share these functions.
//
// # Rules
//
// A policy is an ordered list of rules. The first that matches a record decides,
// and names itself in [Decision.Rule]. [New] demands a last rule that matches
// everything: no record is without a rule.
//
// What a rule matches on ([Rule.Category], [Rule.Match]) is of two sorts. Category,
// origin, headers and value never change in a record's life. Its last failure
// (error, status, code), the attempts counted and its age do. A rule of the first
// sort names the target; one that matches on anything of the second sort, or on the
// target itself, names none. The target of a record is that of the first rule of
// the first sort that matches, whichever rule decides the rest, so a record has one target
// for all its life: an answer never sends it to another handler, which could not know
// whether the first one has done the work. A record that goes straight to people
// by a rule of the first sort does so whatever rules of the second sort stand before it.
//
// The last failure is the one that the record carries, also before a call. After a
// call a record is matched as its copy will say: with the outcome as its last failure,
// and one more attempt if it counts ([After]). So the rule that schedules a retry is
// the one that admits it, unless the record has grown old enough for another meanwhile.
// An outcome that changes nothing of the record (resolved, or held) is decided by the rule that let the call through.
// Where no time is given ([Policy.Rule]), no record is old.
//
// # Attempts
//
// Attempts count handler calls that failed by the record's own fault, the first
// included. A record may ask for fewer than its rule gives ([Policy.Cap]), and
// the value of a record on a source topic says where counting starts, clamped so
// that each record is tried once ([Policy.Start]). The delay after a failure is
// found by the attempts counted before it: after the first failure the first
// delay, after the second the second; the last delay repeats. So a record whose
// value says attempts: 2 begins with the third delay.
//
// # Tiers
//
// A tier is a topic in which every record waits equally long. The tiers are the
// union of all rules' delays. A rule's delay has its own tier, and the not-before
// is that delay less a jitter of at most a fifth and at most [MaxJitter], a hash
// of id and attempt. Any other wait goes to the longest tier that is not longer
// than the wait, and is re-tiered when it is taken up too early.
//
// # What an answer means
//
//	outcome                       decision                                  counted
//	Resolved                      Resolve                                   no
//	Permanent                     ToPoison permanent, unless the rule says  yes
//	Suspect, PermanentIfCounted   ToPoison permanent, unless the rule says  yes
//	Suspect, the rule says        ToPoison permanent                        yes
//	Suspect, last attempt         ToPoison attempts_exhausted               yes
//	Suspect, overdue              ToPoison sla_breached, if the rule says   yes
//	Suspect                       Retry                                     yes
//	InProgress                    Snooze, ten times; then as Suspect        no; then yes
//	Busy                          HoldBack until the target's time          no
//	Unavailable, Stopped          HoldBack                                  no
//
// An outcome of an unknown class is a Suspect, and so is a permanent one of which
// [Rule.Permanent] says that it is not. Where a rule without attempts matches a failure,
// every one is permanent. A counted attempt sets the record's snoozes back to 0.
//
// # SLA
//
// A record is overdue when its rule's MaxAge has passed since the later of its
// first entry and its last redrive. Being overdue never skips a call: only a
// counted failure of an overdue record is a breach. So a record that grew old
// while it was held, paused or without a worker still gets one call.
//
// # Outage is not failure
//
// Whether a failure is the record's or its target's is ruled by a [Breaker], one
// for each target: a plain value that the caller keeps. [Policy.Admit] asks it
// before a call, [Breaker.Observe] tells it the outcome, and [Policy.Decide] is
// for outcomes that the breaker did not hold.
package policy

import (
	"errors"
	"slices"
	"time"

	"github.com/theory/jsonpath"
)

// Action is what is to be done with a record.
type Action uint8

// Admit answers Call, Wait, HoldBack, Retier or ToPoison; Decide all but Call, Wait and Retier.
const (
	Call     Action = iota // call the handler now
	Wait                   // not due: keep it in memory until NotBefore
	HoldBack               // its target is thought down or asked for time: keep it, uncounted
	Resolve                // settled
	Retry                  // copy to Tier, one more attempt counted, snoozes back to 0
	Snooze                 // copy to Tier, one more snooze, no attempt counted
	Retier                 // copy to Tier, nothing counted, not-before kept
	ToPoison               // copy to poison with Reason
)

// String is a stable word for logs and metrics.
func (a Action) String() string {
	words := [...]string{"call", "wait", "hold", "resolve", "retry", "snooze", "retier", "poison"}
	if int(a) < len(words) {
		return words[a]
	}
	return "unknown"
}

// Reasons of decisions that are not poison (those are deadletter.Reason*). Stable.
const (
	ReasonDue         = "due"         // Call
	ReasonProbe       = "probe"       // Call: it asks whether the target is back
	ReasonNotDue      = "not_due"     // Wait, Retier
	ReasonTargetDown  = "target_down" // HoldBack, by Admit: the breaker lets no call through now
	ReasonResolved    = "resolved"    // Resolve
	ReasonFailed      = "failed"      // Retry
	ReasonInProgress  = "in_progress" // Snooze, HoldBack
	ReasonBusy        = "busy"        // HoldBack
	ReasonUnavailable = "unavailable" // HoldBack
	ReasonStopped     = "stopped"     // HoldBack
)

// Decision is what policy made of a record.
type Decision struct {
	Action    Action
	Tier      time.Duration // Retry, Snooze, Retier: the tier's delay
	NotBefore time.Time     // Retry, Snooze, Retier: the record's not-before; Wait, HoldBack: look again then (UTC)
	Reason    string        // a deadletter.Reason* for ToPoison; a Reason* of this package otherwise
	Rule      string        // name of the rule that decided
	Target    string        // Call, HoldBack: the target
	Counted   bool          // one more attempt is counted
	Snoozed   bool          // one more snooze is counted: with every Snooze, and with a HoldBack where no tier fits (the caller remembers it)
	Epoch     uint64        // Call: the breaker's epoch, to be handed to Breaker.Observe with the outcome
}

// Options is what a policy is made of.
type Options struct {
	Rules []Rule // in order: the first match decides
}

// Policy is a validated list of rules. It is not changed after New and is safe for concurrent use.
type Policy struct {
	rules []Rule
	tiers []time.Duration // sorted, each once

	conditions []conditions     // of each rule
	permanent  []permanence     // of each rule
	plain      bool             // every rule matches on the category alone
	categories []glob           // of each rule, where plain
	moving     []int            // rules that match on something that changes
	looking    []int            // rules that match on the value
	paths      []*jsonpath.Path // of all rules, each once
	lookups    []lookup         // of all rules, each once
}

// New makes a policy. Its error joins all faults of the rules, each naming its
// place as "rules[i].field" with the field's name in the configuration file.
func New(o Options) (*Policy, error) {
	p := &Policy{rules: slices.Clone(o.Rules)}
	for i := range p.rules {
		u := &p.rules[i]
		u.Delays, u.Permanent, u.Match = slices.Clone(u.Delays), slices.Clone(u.Permanent), u.Match.clone()
		p.tiers = append(p.tiers, u.Delays...)
	}
	slices.Sort(p.tiers)
	p.tiers = slices.Compact(p.tiers)
	if faults := p.compile(); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return p, nil
}

// Package policy decides: whether a record may be called now, and what becomes
// of it after an answer. Every function is pure: no I/O, no clock, no context,
// no logger. The time is an argument, read once per phase by the caller.
package policy

import (
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Action is what is to be done with a record.
type Action uint8

// Admit answers Call, Wait, HoldBack, Retier or ToPoison; Decide all but Call and Wait.
const (
	Call     Action = iota // call the handler now
	Wait                   // not due: keep it in memory until NotBefore
	HoldBack               // its target is thought down or asked for time: keep it, uncounted
	Resolve                // settled
	Retry                  // copy to Tier, one more attempt counted
	Snooze                 // copy to Tier, one more snooze, no attempt counted
	Retier                 // copy to Tier, nothing counted, not-before kept
	ToPoison               // copy to poison with Reason
)

// Decision is what policy made of a record.
type Decision struct {
	Action    Action
	Tier      time.Duration // Retry, Snooze, Retier: the tier's delay
	NotBefore time.Time     // Retry, Snooze, Retier: the record's not-before; Wait: look again then (UTC)
	Reason    string        // a deadletter.Reason* for ToPoison; a short stable word otherwise
	Rule      string        // name of the rule that decided
	Target    string        // Call, HoldBack: the target
	Counted   bool          // one more attempt is counted
}

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
	Category string          // glob, path.Match syntax; empty matches all
	Target   string          // name of the handler; empty only where Attempts is 0
	Attempts int             // handler calls, the first included; 0: straight to people
	Delays   []time.Duration // between the calls; a short list repeats its last
	MaxAge   time.Duration   // SLA
	OnBreach Breach
}

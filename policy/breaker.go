package policy

import (
	"slices"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Defaults and bounds of BreakerOptions.
const (
	defaultThreshold = 5
	minThreshold     = 2 // one record alone must never look like an outage
	maxThreshold     = 64
	defaultProbeMin  = time.Second
	defaultProbeMax  = 30 * time.Second
)

// maxRefusals is how often a record is refused, while others succeed in between,
// before it is taken to be the record's own fault.
const maxRefusals = 3

// probeLease is how long a probe keeps others from probing. It is longer than
// any call may last, so it matters only when an outcome is never told.
const probeLease = time.Minute

// BreakerOptions says when a target is thought down, and how it is probed.
type BreakerOptions struct {
	Threshold int           // different records that fail in a row; 2 to 64, default 5
	ProbeMin  time.Duration // first wait before a probe, default 1s
	ProbeMax  time.Duration // longest wait, default 30s
}

// sane fills in the defaults and keeps the bounds, so that every Breaker, also its zero value, works.
func (o BreakerOptions) sane() BreakerOptions {
	if o.Threshold == 0 {
		o.Threshold = defaultThreshold
	}
	o.Threshold = min(max(o.Threshold, minThreshold), maxThreshold)
	if o.ProbeMin <= 0 {
		o.ProbeMin = defaultProbeMin
	}
	if o.ProbeMax <= 0 {
		o.ProbeMax = defaultProbeMax
	}
	o.ProbeMax = max(o.ProbeMax, o.ProbeMin)
	return o
}

// Breaker tells an outage of a target from failures of single records. It is a
// plain value: methods return the next one, == compares, a copy is independent.
// The zero value is a closed breaker with the default options.
//
// Closed, it lets every call through. It opens when a call cannot reach the
// target at all (Unavailable), or when Threshold different records in a row fail
// (Suspect) with no answer between. A record that fails again and again is one
// record and opens nothing.
//
// Open, it lets one probe through at a time. After failures in a row the first
// Threshold probes go at once, since so many fail in a row by chance, too. Then, and
// where the target could not be reached, a probe waits ProbeMin, then twice as
// long each time, up to ProbeMax. A record that has not failed since
// the last answer goes first; one that has gets its turn ProbeMin later, so that
// a few bad records cannot keep the target held for the others. Ask with every held record, not
// only with the oldest. A probe that is answered (Resolved, Permanent,
// InProgress) closes the breaker.
//
// Nothing is counted while it is open. Each opening and each closing begins a
// new epoch, and a failure of a call that began in an earlier epoch is held, too: it
// belongs to the outage. A late answer of such a call settles its record
// and lets the next probe go at once, but does not close: it may have been given
// before the target went down.
//
// A busy target gets no call until the time it named, at most MaxRetryAfter; if it named
// none, the wait doubles as for probes.
type Breaker struct {
	opts BreakerOptions

	open    bool
	probing bool
	epoch   uint64
	answers uint64        // answers in their own epoch, so far
	backoff time.Duration // last wait of our own choice; 0: none since the last answer
	next    time.Time     // open: no probe before
	busy    time.Time     // no call before

	// Hashes of the different records that failed since the last answer; when
	// full, the oldest goes. Closed it is the streak, open those that were tried.
	failed [maxThreshold]uint64
	fails  int // how many were written
}

// NewBreaker makes a closed breaker. Options out of bounds are moved to the nearest bound.
func NewBreaker(o BreakerOptions) Breaker {
	return Breaker{opts: o.sane()}
}

// Verdict is a breaker's answer to whether a record may be called.
type Verdict struct {
	Call  bool
	Probe bool      // Call: it asks whether the target is back
	Epoch uint64    // Call: to be handed to Observe with the outcome
	Until time.Time // not Call: ask again then, or when the breaker closes
}

// Refusals is what is remembered of a record between its calls: how often the
// target was unavailable to it, and what others had achieved by then. The zero value is a record's first.
type Refusals struct {
	count   int
	answers uint64 // of the breaker, at the last refusal
}

// Ruling is what a breaker made of an outcome.
type Ruling struct {
	Outcome deadletter.Outcome // what counts, if not Hold: Unavailable can have turned into Suspect
	Hold    bool               // do not count it, keep the record held
	Opened  bool               // the target is now thought down: results not yet committed are held too
	Closed  bool               // the target is back: ask for all held records
}

// Admit says whether the record id may be called at now.
func (b Breaker) Admit(id string, now time.Time) (Breaker, Verdict) {
	if !b.open {
		if now.Before(b.busy) {
			return b, Verdict{Until: b.busy.UTC()}
		}
		return b, Verdict{Call: true, Epoch: b.epoch}
	}
	due := b.NextProbe()
	if b.hasFailed(id) {
		due = due.Add(b.opts.sane().ProbeMin)
	}
	if now.Before(due) {
		return b, Verdict{Until: due}
	}
	b.probing = true
	b.next = now.Add(probeLease)
	return b, Verdict{Call: true, Probe: true, Epoch: b.epoch}
}

// Observe takes the outcome o of a call of the record id that ended at now.
// epoch is from the verdict (or decision) that let the call through; seen is
// what the last Observe returned for this record. Every call let through must
// be observed, one that was given up as Stopped.
func (b Breaker) Observe(id string, seen Refusals, o deadletter.Outcome, epoch uint64, now time.Time) (Breaker, Refusals, Ruling) {
	current := epoch == b.epoch
	switch o.Class {
	case deadletter.Resolved, deadletter.Permanent, deadletter.InProgress:
		b, closed := b.answered(current, now)
		return b, Refusals{}, Ruling{Outcome: o, Closed: closed}
	case deadletter.Busy:
		return b.pause(current, o, now), seen, Ruling{Outcome: o, Hold: true}
	case deadletter.Stopped:
		if current && b.open {
			b.probing, b.next = false, now
		}
		return b, seen, Ruling{Outcome: o, Hold: true}
	}

	// A failure: Suspect, Unavailable, or a class nobody knows.
	if !current {
		return b, seen, Ruling{Outcome: o, Hold: true}
	}
	refused := o.Class == deadletter.Unavailable
	if refused && (seen.count == 0 || seen.answers != b.answers) {
		seen = Refusals{count: seen.count + 1, answers: b.answers}
	}
	b = b.remember(id)
	if b.open {
		b.probing = false
		b = b.rest(refused, now)
		return b, seen, Ruling{Outcome: o, Hold: true}
	}
	if refused && seen.count >= maxRefusals {
		refused, seen, o.Class = false, Refusals{}, deadletter.Suspect
	}
	if refused || b.fails >= b.opts.sane().Threshold {
		b.open, b.probing, b.backoff = true, false, 0
		b.epoch++
		b = b.rest(refused, now)
		return b, seen, Ruling{Outcome: o, Hold: true, Opened: true}
	}
	return b, seen, Ruling{Outcome: o}
}

// answered takes a sign of life.
func (b Breaker) answered(current bool, now time.Time) (_ Breaker, closed bool) {
	if !current {
		if b.open && !b.probing {
			b.next = now
		}
		return b, false
	}
	closed = b.open
	if closed {
		b.open, b.probing, b.next = false, false, time.Time{}
		b.epoch++
	}
	b.answers++
	b.backoff = 0
	b.failed, b.fails = [maxThreshold]uint64{}, 0
	return b, closed
}

// pause takes a request for time. A late one is heeded as well: it is the target that asks.
func (b Breaker) pause(current bool, o deadletter.Outcome, now time.Time) Breaker {
	if current && b.open {
		b.probing, b.next = false, now
	}
	if o.RetryAfter <= 0 {
		if now.Before(b.busy) {
			return b // calls that were in flight together ask together: one pause
		}
		b = b.backOff()
	}
	if until := now.Add(retryAfter(o, b.backoff)); until.After(b.busy) {
		b.busy = until
	}
	return b
}

// rest sets when an open target is probed next. Failures in a row are suspicion
// only: where a third of the records fail by themselves, five in a row come
// every few hundred calls. So the next Threshold probes go at once, one at a
// time; a target that is well answers one of them. Then, or when the target
// cannot be reached at all, the wait backs off.
func (b Breaker) rest(refused bool, now time.Time) Breaker {
	b.next = now
	if refused || b.backoff > 0 || b.fails >= 2*b.opts.sane().Threshold {
		b = b.backOff()
		b.next = now.Add(b.backoff)
	}
	return b
}

// backOff doubles the wait of our own choice.
func (b Breaker) backOff() Breaker {
	o := b.opts.sane()
	b.backoff = min(max(2*b.backoff, o.ProbeMin), o.ProbeMax)
	return b
}

func (b Breaker) remember(id string) Breaker {
	if !b.hasFailed(id) {
		b.failed[b.fails%maxThreshold] = hash([]byte(id))
		b.fails++
	}
	return b
}

func (b Breaker) hasFailed(id string) bool {
	return slices.Contains(b.failed[:min(b.fails, maxThreshold)], hash([]byte(id)))
}

// Answers counts the signs of life so far. A failure that was observed at the
// same count as now is one of those in a row.
func (b Breaker) Answers() uint64 { return b.answers }

// NextProbe is when the target may be called next: zero if it was never held, a
// past time if it may be called now. While a probe is out it is when the probe is given up (UTC).
func (b Breaker) NextProbe() time.Time {
	if b.open && b.next.After(b.busy) {
		return b.next.UTC()
	}
	return b.busy.UTC()
}

// BreakerState is the state of a breaker, for metrics.
type BreakerState uint8

// The states of a breaker.
const (
	BreakerClosed  BreakerState = iota // calls go through
	BreakerBusy                        // closed, and the target asked for time
	BreakerOpen                        // thought down, waiting for the next probe
	BreakerProbing                     // thought down, a probe is out
)

// BreakerStates are all states, for metrics that start at zero.
var BreakerStates = []BreakerState{BreakerClosed, BreakerBusy, BreakerOpen, BreakerProbing}

// String is a stable word for metrics and logs.
func (s BreakerState) String() string {
	words := [...]string{"closed", "busy", "open", "probing"}
	if int(s) < len(words) {
		return words[s]
	}
	return "unknown"
}

// State is the breaker's state at now.
func (b Breaker) State(now time.Time) BreakerState {
	switch {
	case b.open && b.probing:
		return BreakerProbing
	case b.open:
		return BreakerOpen
	case now.Before(b.busy):
		return BreakerBusy
	}
	return BreakerClosed
}

package policy

import (
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// After is r as its copy carries it, once d is done. o is the outcome that d was
// made of, the zero one if there was no call; at is when d was made. What a
// later Admit decides of the copy follows from this and the time alone.
func After(r deadletter.Record, d Decision, o deadletter.Outcome, at time.Time) deadletter.Record {
	if d.Counted {
		r.Attempt++
		r.Snoozes = 0
		if r.FirstFailed == 0 {
			r.FirstFailed = at.UnixMilli()
		}
	}
	if replaces(o) {
		r.ErrorClass, r.ErrorStatus, r.ErrorCode, r.Error = o.Cause, o.Status, o.Code, deadletter.CutError(o.Message)
	}
	switch d.Action {
	case Retry:
		r.NotBefore = d.NotBefore.UnixMilli()
	case Snooze:
		r.Snoozes++
		r.NotBefore = d.NotBefore.UnixMilli()
	case ToPoison:
		r.Reason, r.Rule = d.Reason, d.Rule
		r.NotBefore = 0
	case Call, Wait, HoldBack, Resolve, Retier:
	}
	return r
}

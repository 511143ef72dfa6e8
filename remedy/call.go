package remedy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Causes of the outcomes that this package makes; see deadletter.Outcome.Cause.
// Beside them there is "http_" with the status, for answers that are Suspect.
const (
	CauseTimeout         = "timeout"          // no complete answer in time
	CauseConnectTimeout  = "connect_timeout"  // not even a connection in time
	CauseRefused         = "refused"          // nobody listens
	CauseReset           = "reset"            // the connection broke
	CauseDNS             = "dns"              // the name has no address
	CauseNoRoute         = "no_route"         // the address cannot be reached
	CauseTLS             = "tls"              // no TLS session: certificate, version, not TLS at all
	CauseProtocol        = "protocol"         // not an answer of this contract
	CauseTruncated       = "truncated"        // a 2xx whose body could have said RETRY, but is not whole
	CauseRedirect        = "redirect"         // 3xx
	CauseRejected        = "rejected"         // a permanent 4xx
	CausePoisonRequested = "poison_requested" // a body says POISON
	CauseBusy            = "busy"             // 429, or 503 with Retry-After
	CauseInProgress      = "in_progress"      // 409, or a body says RETRY
	CauseStopped         = "stopped"          // the worker gave the call up
	CausePanic           = "panic"            // the handler panicked
	CauseUnavailable     = "unavailable"      // Unavailable by a handler that gives no cause
	CauseFailed          = "failed"           // Suspect by a handler that gives no cause
	CauseInvalidOutcome  = "invalid_outcome"  // the handler broke its contract
	CauseCredentials     = "credentials"      // a file with the worker's credentials is no good
	CauseLinkLocal       = "link_local"       // the address is link-local or of a metadata service
	CauseStart           = "start"            // a program cannot be started, or not yet again
	CauseCrashed         = "crashed"          // a program ended without an answer
)

const maxCause = 40 // bytes

// Call calls h and makes sure of an outcome that keeps the contract, whatever the
// handler does short of not returning:
//
//   - a panic is Suspect; the message has the type of the panic's value only, for
//     the value can carry the payload;
//   - a class that does not exist is Suspect, as is Stopped while the context is
//     not done: believed, it would never be counted. Stopped after the deadline is
//     a timeout;
//   - a cause that is missing is filled in by class; one that is not a short word
//     of a-z, 0-9 and _ is not let into metrics and logs;
//   - a code that deadletter.ValidCode refuses is dropped;
//   - a negative RetryAfter is 0, a long message is cut at deadletter.MaxErrorBytes.
func Call(ctx context.Context, h Handler, r *deadletter.Record) (o deadletter.Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = deadletter.Outcome{
				Class:   deadletter.Suspect,
				Cause:   CausePanic,
				Message: deadletter.CutError(fmt.Sprintf("handler panicked with a value of type %T", v)),
			}
		}
	}()
	return normal(ctx, h.Remediate(ctx, r))
}

// normal repairs an outcome that breaks the contract.
func normal(ctx context.Context, o deadletter.Outcome) deadletter.Outcome {
	switch {
	case o.Class > deadletter.Stopped:
		o = invalid(fmt.Sprintf("handler answered with class %d, which does not exist", o.Class))
	case o.Class == deadletter.Stopped && ctx.Err() == nil:
		o = invalid("handler answered stopped, but nobody stopped it")
	case o.Class == deadletter.Stopped && timedOut(ctx):
		o.Class, o.Cause = deadletter.Suspect, CauseTimeout
	}
	if o.Cause == "" {
		o.Cause = defaultCause(o.Class)
	} else if !isWord(o.Cause) {
		o.Cause = CauseInvalidOutcome
	}
	if !deadletter.ValidCode(o.Code) {
		o.Code = ""
	}
	o.RetryAfter = max(o.RetryAfter, 0)
	o.Message = deadletter.CutError(o.Message)
	return o
}

func invalid(message string) deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseInvalidOutcome, Message: message}
}

func defaultCause(c deadletter.Class) string {
	switch c {
	case deadletter.Permanent:
		return CauseRejected
	case deadletter.Suspect:
		return CauseFailed
	case deadletter.Busy:
		return CauseBusy
	case deadletter.InProgress:
		return CauseInProgress
	case deadletter.Unavailable:
		return CauseUnavailable
	case deadletter.Stopped:
		return CauseStopped
	default: // Resolved
		return ""
	}
}

func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(s) <= maxCause
}

// timedOut says whether a context that is done ran into a deadline, and was not
// cancelled by the worker.
func timedOut(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// maxRetryAfter bounds what a target can ask for, so that no number overflows;
// policy has the cap that counts.
const maxRetryAfter = 365 * 24 * time.Hour

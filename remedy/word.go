package remedy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// ParseAnswer reads how people write an answer when they ask what would become of
// a record: an HTTP status ("503") or a cause ("timeout", "http_503"), and a code
// behind a slash ("422/E42"). "resolved" is a success. A cause that is none of this
// package's is a handler's own, and Suspect. "reset" is before a byte of an answer.
func ParseAnswer(s string) (deadletter.Outcome, error) {
	word, code, coded := strings.Cut(s, "/")
	if coded && (code == "" || !deadletter.ValidCode(code)) {
		return deadletter.Outcome{}, fmt.Errorf("answer %q: behind the slash must be a code of at most %d characters without spaces", s, deadletter.MaxCodeBytes)
	}
	var o deadletter.Outcome
	status, err := strconv.Atoi(strings.TrimPrefix(word, "http_"))
	switch {
	case err == nil && status >= 200 && status <= 999:
		o = deadletter.Outcome{Class: deadletter.Resolved}
		if status < 200 || status > 299 {
			o = byStatus(status, statusText(status), 0, false)
		}
		o.Status = status
	case err == nil || word == "" || !isWord(word):
		return deadletter.Outcome{}, fmt.Errorf("answer %q: want an HTTP status such as 503, or a cause such as timeout; a code may follow behind a slash, as in 422/E42", s)
	default:
		o = byCause(word)
	}
	if o.Class != deadletter.Resolved {
		o.Code = code
	}
	return o, nil
}

// byCause makes the outcome that has a cause.
func byCause(cause string) deadletter.Outcome {
	o := deadletter.Outcome{Class: deadletter.Suspect, Cause: cause}
	switch cause {
	case "resolved":
		return deadletter.Outcome{Class: deadletter.Resolved}
	case CauseRejected, CausePoisonRequested:
		o.Class = deadletter.Permanent
	case CauseRedirect:
		o.PermanentIfCounted = true
	case CauseBusy:
		o.Class, o.Status = deadletter.Busy, http.StatusTooManyRequests
	case CauseInProgress:
		o.Class = deadletter.InProgress
	case CauseRefused, CauseConnectTimeout, CauseDNS, CauseNoRoute, CauseTLS, CauseReset, CauseUnavailable:
		o.Class = deadletter.Unavailable
	case CauseStopped:
		o.Class = deadletter.Stopped
	}
	return o
}

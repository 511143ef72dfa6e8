package remedy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// failure makes the outcome of a call that got no answer. The rule: without a
// connection nothing was sent, so it is not the record's fault (Unavailable), be it
// a name, a route, a certificate or a peer that never accepts. With a connection, but
// not a byte of an answer: Unavailable if it broke, Suspect if time ran out. After a
// byte the target was at work: Suspect.
func (h *HTTP) failure(ctx, callCtx context.Context, p *phase, err error) deadletter.Outcome {
	connected, answered := p.connected.Load(), p.answered.Load()
	switch {
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	case callCtx.Err() != nil && !connected:
		return unavailable(CauseConnectTimeout, "no connection in time")
	case callCtx.Err() != nil:
		return suspect(CauseTimeout, "no answer in time")
	case !connected:
		return unavailable(connectCause(err), err.Error())
	case !answered && isTLS(err):
		return unavailable(CauseTLS, err.Error())
	case !answered:
		return unavailable(CauseReset, err.Error())
	case isReset(err):
		return suspect(CauseReset, err.Error())
	default:
		return suspect(CauseProtocol, err.Error())
	}
}

// connectCause names why there is no connection.
func connectCause(err error) string {
	var dns *net.DNSError
	var own *credentialsError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &own):
		return CauseCredentials
	case errors.Is(err, errLinkLocal):
		return CauseLinkLocal
	case errors.As(err, &dns):
		return CauseDNS
	case isTLS(err):
		return CauseTLS
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist): // no such unix socket: nobody listens
		return CauseRefused
	case isReset(err):
		return CauseReset
	case errors.As(err, &timeout) && timeout.Timeout():
		return CauseConnectTimeout
	default:
		return CauseNoRoute
	}
}

func isTLS(err error) bool {
	var (
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	return errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &alert) ||
		errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) ||
		strings.Contains(err.Error(), "tls: ") // crypto/tls has no type for the rest of its handshake errors
}

func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// answer makes the outcome of an answer. bodyErr is why its body is not whole: for a
// 2xx that matters, since the body could have said RETRY; else the status has said
// everything and the body is only a message.
func (h *HTTP) answer(ctx, callCtx context.Context, resp *http.Response, body []byte, bodyErr error) deadletter.Outcome {
	status := resp.StatusCode
	var o deadletter.Outcome
	switch {
	case status < 300 && bodyErr != nil:
		o = h.brokenSuccess(ctx, callCtx)
	case status < 300:
		o = success(body)
	default:
		wait, ok := retryAfter(resp.Header.Get("Retry-After"), h.now)
		o = byStatus(status, message(status, body), wait, ok)
	}
	if o.Class != deadletter.Resolved {
		o.Code = code(body)
	}
	return withStatus(o, status)
}

// byStatus makes the outcome of a status that is no success. wait is what
// Retry-After says, if it can be read.
func byStatus(status int, text string, wait time.Duration, readable bool) deadletter.Outcome {
	switch {
	case status < 400:
		o := suspect(CauseRedirect, text)
		o.PermanentIfCounted = true
		return o
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound,
		status == http.StatusMethodNotAllowed, status == http.StatusUnsupportedMediaType:
		o := suspect(httpCause(status), text)
		o.PermanentIfCounted = true
		return o
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return suspect(httpCause(status), text)
	case status == http.StatusConflict:
		return deadletter.Outcome{Class: deadletter.InProgress, Cause: CauseInProgress, Message: text}
	case status == http.StatusTooManyRequests,
		// Only a time that can be read makes it busy: a target that always sends garbage would never be counted.
		status == http.StatusServiceUnavailable && readable:
		return deadletter.Outcome{Class: deadletter.Busy, Cause: CauseBusy, Message: text, RetryAfter: wait}
	case status < 500:
		return deadletter.Outcome{Class: deadletter.Permanent, Cause: CauseRejected, Message: text}
	case status < 600:
		return suspect(httpCause(status), text)
	default:
		return suspect(CauseProtocol, text) // no such class of status
	}
}

// code is what the target itself calls the failure: the text or number "code" of
// a JSON object, whatever Content-Type says. One that deadletter.ValidCode refuses is none.
func code(body []byte) string {
	if start := bytes.TrimLeft(body, " \t\r\n"); len(start) == 0 || start[0] != '{' {
		return ""
	}
	var said struct {
		Code json.RawMessage `json:"code"`
	}
	if json.Unmarshal(body, &said) != nil || len(said.Code) == 0 {
		return ""
	}
	var text string
	var number json.Number
	switch {
	case json.Unmarshal(said.Code, &text) == nil:
	case json.Unmarshal(said.Code, &number) == nil:
		text = number.String()
	}
	if !deadletter.ValidCode(text) {
		return ""
	}
	return text
}

// brokenSuccess is a 2xx whose body did not arrive whole.
func (h *HTTP) brokenSuccess(ctx, callCtx context.Context) deadletter.Outcome {
	switch {
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	case callCtx.Err() != nil:
		return suspect(CauseTimeout, "the answer was not complete in time")
	default:
		return suspect(CauseTruncated, "the answer is not complete")
	}
}

// success reads the body of a 2xx. A body that starts as a JSON object is read as
// one whatever Content-Type says, for many servers guess that header wrong; anything
// else is no concern of ours. An object that cannot be read could have said RETRY:
// it is not taken for resolved, for a record that is lost is worse than one that is
// sent again to a target that is idempotent.
func success(body []byte) deadletter.Outcome {
	if start := bytes.TrimLeft(body, " \t\r\n"); len(start) == 0 || start[0] != '{' {
		return deadletter.Outcome{Class: deadletter.Resolved}
	}
	if len(body) > maxBodyBytes {
		return suspect(CauseTruncated, "the answer is a JSON object of more than "+strconv.Itoa(maxBodyBytes)+" bytes")
	}
	var said struct {
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return suspect(CauseProtocol, "the answer starts as a JSON object, but is none")
	}
	var word string
	if err := json.Unmarshal(said.Status, &word); err != nil {
		word = "" // absent, or not a text: not ours
	}
	switch strings.ToUpper(word) {
	case "RETRY":
		return deadletter.Outcome{Class: deadletter.InProgress, Cause: CauseInProgress, Message: deadletter.CutError(string(body))}
	case "POISON":
		return deadletter.Outcome{Class: deadletter.Permanent, Cause: CausePoisonRequested, Message: deadletter.CutError(string(body))}
	default:
		return deadletter.Outcome{Class: deadletter.Resolved}
	}
}

// retryAfter reads Retry-After (RFC 9110, 10.2.3): seconds or a date. A date that is
// past is 0; ok is false for anything else.
func retryAfter(s string, now func() time.Time) (wait time.Duration, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, false
	}
	if strings.Trim(s, "0123456789") == "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(s)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now()), 0), maxRetryAfter), true
}

// message is the status and what the target says, cut at deadletter.MaxErrorBytes.
func message(status int, body []byte) string {
	text := strings.TrimSpace(string(body[:min(len(body), deadletter.MaxErrorBytes)]))
	if text == "" {
		return statusText(status)
	}
	return deadletter.CutError(statusText(status) + ": " + text)
}

// statusText is the status as people know it. The target's own reason phrase is not
// used: it is often empty, and never more than this.
func statusText(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

func httpCause(status int) string { return "http_" + strconv.Itoa(status) }

func suspect(cause, message string) deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.Suspect, Cause: cause, Message: deadletter.CutError(message)}
}

func unavailable(cause, message string) deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.Unavailable, Cause: cause, Message: deadletter.CutError(message)}
}

func stopped() deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.Stopped, Cause: CauseStopped}
}

func withStatus(o deadletter.Outcome, status int) deadletter.Outcome {
	if o.Class != deadletter.Stopped {
		o.Status = status
	}
	return o
}

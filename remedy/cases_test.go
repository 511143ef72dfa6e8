package remedy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// An endpoint that never answers pins a goroutine and a socket for ever. Both
// are counted here: raw waits for its connections, goleak for the goroutines.
func TestC088_AnEndpointThatNeverAnswersIsGivenUpInTimeWithItsSocket(t *testing.T) {
	const timeout = 100 * time.Millisecond
	for name, answer := range map[string]func(c net.Conn){
		"accepts and never replies": func(net.Conn) {},
		"stalls in the body": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		},
		"drips a byte at a time": func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
			tick := time.NewTicker(timeout / 5)
			defer tick.Stop()
			for range tick.C {
				if _, err := c.Write([]byte{' '}); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var closed atomic.Int64
			url := raw(t, func(c net.Conn, _ int) {
				readRequest(bufio.NewReader(c))
				answer(c)
				_, _ = io.Copy(io.Discard, c) // ends when the worker closes it
				closed.Add(1)
			})
			silent := target(t, HTTPOptions{URL: url, Timeout: timeout})
			healthy := target(t, HTTPOptions{URL: served(t, func(http.ResponseWriter, *http.Request) {})})
			outcomes := make(chan deadletter.Outcome, 2)
			began := time.Now()
			for range cap(outcomes) {
				go func() { outcomes <- silent.Remediate(context.Background(), record()) }()
			}
			if o := healthy.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
				t.Errorf("another target's record: %+v", o)
			}
			for range cap(outcomes) {
				if o := <-outcomes; o.Class != deadletter.Suspect || o.Cause != CauseTimeout {
					t.Errorf("got %+v", o)
				}
			}
			if took := time.Since(began); took < timeout || took > timeout+time.Second {
				t.Errorf("it took %s, timeout %s", took, timeout)
			}
			for deadline := time.Now().Add(5 * time.Second); closed.Load() < 2; <-time.After(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d of 2 sockets are closed", closed.Load())
				}
			}
		})
	}
}

// A redirect to a page that answers 200 counts as delivered. Here redirects are
// refused altogether, those that keep the method too.
func TestC089_ARedirectIsAFailureAndNothingElseIsEverSent(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		to     string
	}{
		"302 to a login page": {http.StatusFound, "/login"},
		"301":                 {http.StatusMovedPermanently, "/login"},
		"303":                 {http.StatusSeeOther, "/login"},
		"307":                 {http.StatusTemporaryRedirect, "/v2/handle"},
		"308":                 {http.StatusPermanentRedirect, "/v2/handle"},
		"a loop":              {http.StatusFound, "/handle"},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			url := served(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if r.Method != http.MethodPost || r.URL.Path != "/handle" {
					t.Errorf("%s %s was sent", r.Method, r.URL.Path)
				}
				w.Header().Set("Location", c.to)
				w.WriteHeader(c.status)
			})
			o := target(t, HTTPOptions{URL: url + "/handle"}).Remediate(t.Context(), record())
			if o.Class != deadletter.Suspect || o.Cause != CauseRedirect || o.Status != c.status || !o.PermanentIfCounted {
				t.Errorf("got %+v", o)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// Without a classification 404s are retried to the limit. The design decides
// otherwise for 429, a reset and DNS: they are held, not counted, and walk no
// tier; and for 404, which is the target's until it turns out to be the record's.
func TestC091_EachAnswerIsPermanentSuspectOrNotCounted(t *testing.T) {
	type want struct {
		class      deadletter.Class
		cause      string
		ifCounted  bool
		retryAfter time.Duration
	}
	for status, w := range map[int]want{
		400: {class: deadletter.Permanent, cause: CauseRejected},
		410: {class: deadletter.Permanent, cause: CauseRejected},
		422: {class: deadletter.Permanent, cause: CauseRejected},
		404: {class: deadletter.Suspect, cause: "http_404", ifCounted: true},
		408: {class: deadletter.Suspect, cause: "http_408"},
		425: {class: deadletter.Suspect, cause: "http_425"},
		429: {class: deadletter.Busy, cause: CauseBusy, retryAfter: 7 * time.Second},
		500: {class: deadletter.Suspect, cause: "http_500"},
		501: {class: deadletter.Suspect, cause: "http_501"},
		503: {class: deadletter.Suspect, cause: "http_503"},
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			url := served(t, func(rw http.ResponseWriter, _ *http.Request) {
				if status == http.StatusTooManyRequests {
					rw.Header().Set("Retry-After", "7")
				}
				rw.WriteHeader(status)
			})
			o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record())
			if got := (want{o.Class, o.Cause, o.PermanentIfCounted, o.RetryAfter}); got != w || o.Status != status {
				t.Errorf("got %+v, status %d, want %+v", got, o.Status, w)
			}
		})
	}
	unavailable := map[string]func(t *testing.T) *HTTP{
		CauseReset: func(t *testing.T) *HTTP {
			return target(t, HTTPOptions{URL: raw(t, func(c net.Conn, _ int) {
				readRequest(bufio.NewReader(c))
				reset(c)
			})})
		},
		CauseDNS: func(t *testing.T) *HTTP {
			h := target(t, HTTPOptions{URL: "http://ledger.invalid/"})
			h.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "ledger.invalid", IsNotFound: true}}
			}
			return h
		},
		CauseRefused: func(t *testing.T) *HTTP {
			h := target(t, HTTPOptions{URL: "http://ledger.invalid/"})
			h.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: errors.Join(syscall.ECONNREFUSED)}
			}
			return h
		},
	}
	for cause, make := range unavailable {
		t.Run(cause, func(t *testing.T) {
			if o := make(t).Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != cause {
				t.Errorf("got %+v", o)
			}
		})
	}
}

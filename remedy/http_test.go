package remedy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// patience is a timeout that no test runs into.
const patience = 30 * time.Second

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func record() *deadletter.Record {
	return &deadletter.Record{
		ID:            "0123456789abcdef0123456789abcdef",
		DiscrepancyID: "D-42",
		Category:      "amount_differs",
		Attempt:       2,
		Enqueued:      1_772_366_400_123,
		Value:         []byte(`{"discrepancy_id":"D-42", "unknown":1e2}`),
	}
}

func target(t *testing.T, o HTTPOptions) *HTTP {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	o.Source = "recon-dlq/worker-0"
	o.Now = func() time.Time { return now }
	h, err := NewHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// served is the address of a server that answers with f.
func served(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

// raw is the address of a listener that leaves each connection to f, closed when f
// returns; n counts the connections from 1. It waits for all of them at the end.
func raw(t *testing.T, f func(c net.Conn, n int)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				f(c, n)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// readRequest reads one request and its body; false when the peer has gone.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// says is a raw server that reads a request, writes s and closes.
func says(s string) func(c net.Conn, n int) {
	return func(c net.Conn, _ int) {
		if readRequest(bufio.NewReader(c)) {
			_, _ = io.WriteString(c, s)
		}
	}
}

// saysAndWaits is the same, but it closes only after the peer did.
func saysAndWaits(s string) func(c net.Conn, n int) {
	return func(c net.Conn, n int) {
		says(s)(c, n)
		_, _ = io.Copy(io.Discard, c)
	}
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func TestEachAnswerOfTheContractHasItsOutcome(t *testing.T) {
	const (
		resolved   = deadletter.Resolved
		permanent  = deadletter.Permanent
		suspect    = deadletter.Suspect
		busy       = deadletter.Busy
		inProgress = deadletter.InProgress
	)
	for _, c := range []struct {
		status int
		after  string // Retry-After
		body   string
		class  deadletter.Class
		cause  string
		wait   time.Duration
		once   bool // PermanentIfCounted
	}{
		{status: 200, class: resolved},
		{status: 200, body: `{"status":"OK"}`, class: resolved},
		{status: 200, body: `{"fixed":true}`, class: resolved},
		{status: 200, body: `{"status":200}`, class: resolved},
		{status: 200, body: `{"status":null}`, class: resolved},
		{status: 200, body: `{"inner":{"status":"RETRY"}}`, class: resolved},
		{status: 200, body: `<html>RETRY</html>`, class: resolved},
		{status: 200, body: `["RETRY"]`, class: resolved},
		{status: 200, body: `RETRY`, class: resolved},
		{status: 201, class: resolved},
		{status: 202, class: resolved},
		{status: 204, class: resolved},
		{status: 299, class: resolved},
		{status: 200, body: `{"status":"RETRY"}`, class: inProgress, cause: "in_progress"},
		{status: 202, body: " \r\n\t{\"status\": \"retry\", \"why\": \"locked\"}\n", class: inProgress, cause: "in_progress"},
		{status: 200, body: `{"status":"POISON"}`, class: permanent, cause: "poison_requested"},
		{status: 200, body: `{'status': 'RETRY'}`, class: suspect, cause: "protocol"},
		{status: 200, body: `{"status":"RETRY"`, class: suspect, cause: "protocol"},
		{status: 300, class: suspect, cause: "redirect", once: true},
		{status: 301, class: suspect, cause: "redirect", once: true},
		{status: 302, class: suspect, cause: "redirect", once: true},
		{status: 304, class: suspect, cause: "redirect", once: true},
		{status: 307, class: suspect, cause: "redirect", once: true},
		{status: 308, class: suspect, cause: "redirect", once: true},
		{status: 400, class: permanent, cause: "rejected"},
		{status: 401, class: suspect, cause: "http_401", once: true},
		{status: 402, class: permanent, cause: "rejected"},
		{status: 403, class: suspect, cause: "http_403", once: true},
		{status: 404, class: suspect, cause: "http_404", once: true},
		{status: 405, class: suspect, cause: "http_405", once: true},
		{status: 406, class: permanent, cause: "rejected"},
		{status: 408, class: suspect, cause: "http_408"},
		{status: 409, class: inProgress, cause: "in_progress"},
		{status: 410, class: permanent, cause: "rejected"},
		{status: 413, class: permanent, cause: "rejected"},
		{status: 415, class: suspect, cause: "http_415", once: true},
		{status: 422, class: permanent, cause: "rejected"},
		{status: 422, body: `{"status":"RETRY"}`, class: permanent, cause: "rejected"},
		{status: 425, class: suspect, cause: "http_425"},
		{status: 429, class: busy, cause: "busy"},
		{status: 429, after: "7", class: busy, cause: "busy", wait: 7 * time.Second},
		{status: 429, after: "soon", class: busy, cause: "busy"},
		{status: 499, class: permanent, cause: "rejected"},
		{status: 500, class: suspect, cause: "http_500"},
		{status: 500, after: "7", class: suspect, cause: "http_500"},
		{status: 500, body: `{"status":"POISON"}`, class: suspect, cause: "http_500"},
		{status: 501, class: suspect, cause: "http_501"},
		{status: 502, class: suspect, cause: "http_502"},
		{status: 503, class: suspect, cause: "http_503"},
		{status: 503, after: "0", class: busy, cause: "busy"},
		{status: 503, after: " 120 ", class: busy, cause: "busy", wait: 2 * time.Minute},
		{status: 503, after: "Sun, 01 Mar 2026 12:00:30 GMT", class: busy, cause: "busy", wait: 30 * time.Second},
		{status: 503, after: "Sun, 01 Mar 2026 11:00:00 GMT", class: busy, cause: "busy"},
		{status: 503, after: "99999999999999999999", class: busy, cause: "busy", wait: maxRetryAfter},
		{status: 503, after: "Fri, 31 Dec 9999 23:59:59 GMT", class: busy, cause: "busy", wait: maxRetryAfter},
		{status: 503, after: "-1", class: suspect, cause: "http_503"},
		{status: 503, after: "1.5", class: suspect, cause: "http_503"},
		{status: 503, after: "tomorrow", class: suspect, cause: "http_503"},
		{status: 504, class: suspect, cause: "http_504"},
		{status: 599, class: suspect, cause: "http_599"},
		{status: 600, class: suspect, cause: "protocol"},
		{status: 999, class: suspect, cause: "protocol"},
	} {
		t.Run(fmt.Sprintf("%d %s%s", c.status, c.after, c.body), func(t *testing.T) {
			calls := 0
			url := served(t, func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.Header().Set("Location", "/elsewhere")
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			got := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record())
			if got.Class != c.class || got.Cause != c.cause || got.RetryAfter != c.wait || got.PermanentIfCounted != c.once {
				t.Errorf("got %+v", got)
			}
			if got.Status != c.status {
				t.Errorf("status %d", got.Status)
			}
			if (got.Message == "") != (c.class == resolved) {
				t.Errorf("message %q", got.Message)
			}
			if calls != 1 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

func TestABodyIsReadWhateverItsContentType(t *testing.T) {
	for _, contentType := range []string{"", "application/json", "application/json; charset=utf-8", "text/plain", "application/problem+json", "garbage;;"} {
		url := served(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{contentType}
			_, _ = io.WriteString(w, `{"status":"RETRY"}`)
		})
		if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record()); o.Class != deadletter.InProgress {
			t.Errorf("content type %q: %+v", contentType, o)
		}
	}
}

func TestARequestIsACloudEventInBinaryMode(t *testing.T) {
	got := make(chan string, 1)
	url := raw(t, func(c net.Conn, _ int) {
		// Everything up to the end of the body, which is where the record ends.
		var all strings.Builder
		r := bufio.NewReader(io.TeeReader(c, &all))
		if readRequest(r) {
			got <- all.String()
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	h := target(t, HTTPOptions{URL: url + "/remediate?v=1", UserAgent: "recon-dlq/1.0 (test)"})
	if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Fatalf("outcome %+v", o)
	}
	want := strings.Join([]string{
		"POST /remediate?v=1 HTTP/1.1",
		"Host: " + strings.TrimPrefix(url, "http://"),
		"User-Agent: recon-dlq/1.0 (test)",
		"Content-Length: 40",
		"Ce-Id: 0123456789abcdef0123456789abcdef",
		"Ce-Reconattempt: 2",
		"Ce-Reconenqueued: 1772366400123",
		"Ce-Source: recon-dlq/worker-0",
		"Ce-Specversion: 1.0",
		"Ce-Subject: D-42",
		"Ce-Time: 2026-03-01T12:00:00.123Z",
		"Ce-Type: recon.dlq.remediate",
		"Content-Type: application/json",
		"Idempotency-Key: 0123456789abcdef0123456789abcdef",
		"",
		`{"discrepancy_id":"D-42", "unknown":1e2}`,
	}, "\r\n")
	if s := <-got; s != want {
		t.Errorf("sent\n%s\nwant\n%s", s, want)
	}
}

func TestTheValueIsSentUntouched(t *testing.T) {
	r := record()
	r.Value = []byte(" {\"a\":1.0,\"a\":\"\\u00e9\",\"b\":\"\xc3\xa9\"}\n\x00\xff")
	var got []byte
	url := served(t, func(_ http.ResponseWriter, req *http.Request) { got, _ = io.ReadAll(req.Body) })
	target(t, HTTPOptions{URL: url}).Remediate(t.Context(), r)
	if string(got) != string(r.Value) {
		t.Errorf("sent %q, want %q", got, r.Value)
	}
}

func TestWhatIsNotPrintableASCIIIsPercentEncoded(t *testing.T) {
	// The last one is the example of the CloudEvents HTTP binding, 3.1.3.2.
	for in, want := range map[string]string{
		"D-42":          "D-42",
		"a b":           "a%20b",
		`"50%"`:         "%2250%25%22",
		"x\r\nEvil: 1":  "x%0D%0AEvil:%201",
		"\x7f\x00":      "%7F%00",
		"\xff":          "%FF",
		"":              "-",
		"Euro € 😀":      "Euro%20%E2%82%AC%20%F0%9F%98%80",
		"~!#&/:;<=>?@^": "~!#&/:;<=>?@^",
	} {
		var got http.Header
		url := served(t, func(_ http.ResponseWriter, req *http.Request) { got = req.Header })
		r := record()
		r.DiscrepancyID = in
		if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), r); o.Class != deadletter.Resolved {
			t.Fatalf("%q: %+v", in, o)
		}
		if s := got.Get("ce-subject"); s != want {
			t.Errorf("subject %q is sent as %q, want %q", in, s, want)
		}
		if got.Get("Evil") != "" {
			t.Errorf("%q brought a header of its own", in)
		}
	}
}

func TestARecordWithAnIDOfGarbageCanBeSent(t *testing.T) {
	var got http.Header
	url := served(t, func(_ http.ResponseWriter, req *http.Request) { got = req.Header })
	r := record()
	r.ID, r.Enqueued = "a\nb", 0
	if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), r); o.Class != deadletter.Resolved {
		t.Fatalf("outcome %+v", o)
	}
	if got.Get("Idempotency-Key") != "a%0Ab" || got.Get("ce-id") != "a%0Ab" {
		t.Errorf("sent with %v", got)
	}
	for _, name := range []string{"Ce-Time", "Ce-Reconenqueued"} {
		if v, ok := got[name]; ok {
			t.Errorf("an unknown time is sent as %s: %s", name, v)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	elsewhere := served(t, func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") })
	url := served(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record()); o.Cause != CauseRedirect {
		t.Errorf("outcome %+v", o)
	}
}

func TestAProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	proxy := served(t, func(http.ResponseWriter, *http.Request) { t.Error("the proxy was used") })
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy)
	}
	h := target(t, HTTPOptions{URL: "http://ledger.example/"})
	h.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	if o := h.Remediate(t.Context(), record()); o.Cause != CauseRefused {
		t.Errorf("outcome %+v", o)
	}
}

func TestARawAnswerThatIsNoneHasItsOutcome(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	big := strings.Repeat("x", 3*maxBodyBytes)
	for name, c := range map[string]struct {
		server func(c net.Conn, n int)
		class  deadletter.Class
		cause  string
	}{
		"closed before a byte":     {says(""), deadletter.Unavailable, CauseReset},
		"reset before a byte":      {func(c net.Conn, _ int) { readRequest(bufio.NewReader(c)); reset(c) }, deadletter.Unavailable, CauseReset},
		"reset before the request": {func(c net.Conn, _ int) { reset(c) }, deadletter.Unavailable, CauseReset},
		"closed after the status":  {says(ok), deadletter.Suspect, CauseReset},
		"closed in the status":     {says("HTTP/1.1 2"), deadletter.Suspect, CauseProtocol},
		"closed in a header":       {says(ok + "Content-Le"), deadletter.Suspect, CauseProtocol},
		"reset after the status": {func(c net.Conn, n int) {
			says(ok)(c, n)
			reset(c)
		}, deadletter.Suspect, CauseReset},
		"garbage":                {says("SSH-2.0-OpenSSH_9.2\r\n\r\n"), deadletter.Suspect, CauseProtocol},
		"a garbage header":       {says(ok + "no colon\r\n\r\n"), deadletter.Suspect, CauseProtocol},
		"two lengths":            {says(ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), deadletter.Suspect, CauseProtocol},
		"headers without end":    {saysAndWaits(ok + strings.Repeat("X-Y: "+strings.Repeat("z", 1000)+"\r\n", 200)), deadletter.Suspect, CauseProtocol},
		"a flood of 1xx":         {saysAndWaits(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 10000)), deadletter.Suspect, CauseProtocol},
		"some 1xx, then success": {says("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n"), deadletter.Resolved, ""},
		"another protocol":       {saysAndWaits("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), deadletter.Suspect, CauseProtocol},
		"a truncated success":    {says(ok + "Content-Length: 18\r\n\r\n{\"status\""), deadletter.Suspect, CauseTruncated},
		"a truncated chunk":      {says(ok + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"st"), deadletter.Suspect, CauseTruncated},
		"a garbage chunk":        {says(ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), deadletter.Suspect, CauseTruncated},
		"a success reset in it": {func(c net.Conn, n int) {
			says(ok+"Content-Length: 18\r\n\r\n{")(c, n)
			reset(c)
		}, deadletter.Suspect, CauseTruncated},
		"a truncated rejection":   {says("HTTP/1.1 422 No\r\nContent-Length: 100\r\n\r\nno such acc"), deadletter.Permanent, CauseRejected},
		"a success until close":   {says("HTTP/1.0 200 OK\r\n\r\nfixed"), deadletter.Resolved, ""},
		"a huge text":             {says(ok + "\r\n" + big), deadletter.Resolved, ""},
		"a huge object":           {says(ok + "\r\n{" + big), deadletter.Suspect, CauseTruncated},
		"a huge rejection":        {says("HTTP/1.1 400 No\r\n\r\n" + big), deadletter.Permanent, CauseRejected},
		"a status of two digits":  {says("HTTP/1.1 20 OK\r\n\r\n"), deadletter.Suspect, CauseProtocol},
		"a status of zero":        {says("HTTP/1.1 000 OK\r\n\r\n"), deadletter.Suspect, CauseProtocol},
		"not TLS, but it is said": {says("\x15\x03\x01\x00\x02\x02\x16"), deadletter.Suspect, CauseProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			got := target(t, HTTPOptions{URL: raw(t, c.server)}).Remediate(t.Context(), record())
			if got.Class != c.class || got.Cause != c.cause {
				t.Errorf("got %+v, want class %d, cause %q", got, c.class, c.cause)
			}
			if len(got.Message) > deadletter.MaxErrorBytes || !utf8.ValidString(got.Message) {
				t.Errorf("message of %d bytes: %q", len(got.Message), got.Message)
			}
		})
	}
}

func TestATargetThatAnswersTenGigabytesIsHungUpOn(t *testing.T) {
	const most = 10 << 30
	sent := make(chan int, 1)
	url := raw(t, func(c net.Conn, _ int) {
		says("HTTP/1.1 200 OK\r\nContent-Length: "+fmt.Sprint(most)+"\r\n\r\n{")(c, 0)
		n := 0
		for chunk := make([]byte, 1<<20); n < most; {
			written, err := c.Write(chunk)
			if n += written; err != nil {
				break
			}
		}
		sent <- n
	})
	if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record()); o.Class != deadletter.Suspect || o.Cause != CauseTruncated {
		t.Errorf("got %+v", o)
	}
	if n := <-sent; n > 64<<20 { // what buffers of the network take
		t.Errorf("%d bytes could be sent", n)
	}
}

func TestTheMessageIsTheStatusAndWhatTheTargetSays(t *testing.T) {
	for body, want := range map[string]string{
		"":                       "422 Unprocessable Entity",
		" no such account\n":     "422 Unprocessable Entity: no such account",
		"\xffbad":                "422 Unprocessable Entity: \uFFFDbad",
		strings.Repeat("ü", 999): "422 Unprocessable Entity: " + strings.Repeat("ü", 499),
	} {
		url := served(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, body)
		})
		if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record()); o.Message != want {
			t.Errorf("message %q, want %q", o.Message, want)
		}
	}
}

func TestAMissingConnectionIsUnavailableWithItsCause(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		cause string
	}{
		"refused":               {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, CauseRefused},
		"no such socket":        {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENOENT)}, CauseRefused},
		"no such name":          {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, CauseDNS},
		"name server timed out": {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "timeout", IsTimeout: true}}, CauseDNS},
		"no route to host":      {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, CauseNoRoute},
		"network unreachable":   {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}, CauseNoRoute},
		"no right to a socket":  {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}, CauseNoRoute},
		"kernel timeout":        {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ETIMEDOUT)}, CauseConnectTimeout},
		"anything else":         {errors.New("something new"), CauseNoRoute},
	} {
		h := target(t, HTTPOptions{URL: "http://ledger.example/"})
		h.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, c.err }
		got := h.Remediate(t.Context(), record())
		if got.Class != deadletter.Unavailable || got.Cause != c.cause || got.Status != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAPortWhereNobodyListensIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	got := target(t, HTTPOptions{URL: "http://" + l.Addr().String()}).Remediate(t.Context(), record())
	if got.Class != deadletter.Unavailable || got.Cause != CauseRefused {
		t.Errorf("got %+v", got)
	}
}

func TestNoConnectionInTimeIsUnavailable(t *testing.T) {
	h := target(t, HTTPOptions{URL: "http://ledger.example/", Timeout: 20 * time.Millisecond})
	h.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	got := h.Remediate(t.Context(), record())
	if got.Class != deadletter.Unavailable || got.Cause != CauseConnectTimeout {
		t.Errorf("got %+v", got)
	}
}

func TestATargetThatHangsIsASuspectTimeout(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"
	for name, c := range map[string]struct {
		says    string
		parent  bool // whose deadline it is
		outcome deadletter.Outcome
	}{
		"before a byte":             {"", false, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout}},
		"before a byte, caller's":   {"", true, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout}},
		"in the headers":            {"HTTP/1.1 200 OK\r\nX", false, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout}},
		"in the body of a success":  {ok, false, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout, Status: 200}},
		"in the body, caller's":     {ok, true, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout, Status: 200}},
		"in the body of a refusal":  {strings.Replace(ok, "200", "422", 1), false, deadletter.Outcome{Class: deadletter.Permanent, Cause: CauseRejected, Status: 422}},
		"in a body without a limit": {"HTTP/1.1 200 OK\r\n\r\n", false, deadletter.Outcome{Class: deadletter.Suspect, Cause: CauseTimeout, Status: 200}},
	} {
		t.Run(name, func(t *testing.T) {
			o := HTTPOptions{URL: raw(t, saysAndWaits(c.says))}
			ctx := t.Context()
			if c.parent {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, 50*time.Millisecond, errors.New("the worker's own words"))
				defer cancel()
			} else {
				o.Timeout = 50 * time.Millisecond
			}
			got := target(t, o).Remediate(ctx, record())
			got.Message = ""
			if got != c.outcome {
				t.Errorf("got %+v, want %+v", got, c.outcome)
			}
		})
	}
}

func TestASlowBodyCannotOutlastTheTimeout(t *testing.T) {
	url := raw(t, func(c net.Conn, _ int) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		gone := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, c)
			close(gone)
		}()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-gone:
				return
			case <-tick.C:
				_, _ = io.WriteString(c, " ")
			}
		}
	})
	got := target(t, HTTPOptions{URL: url, Timeout: 100 * time.Millisecond}).Remediate(t.Context(), record())
	if got.Class != deadletter.Suspect || got.Cause != CauseTimeout {
		t.Errorf("got %+v", got)
	}
}

func TestACallThatTheWorkerGivesUpIsStopped(t *testing.T) {
	for name, says := range map[string]string{
		"before a byte": "",
		"in the body":   "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			url := raw(t, func(c net.Conn, n int) {
				readRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, says)
				cancel(errors.New("partition lost"))
				_, _ = io.Copy(io.Discard, c)
			})
			got := target(t, HTTPOptions{URL: url}).Remediate(ctx, record())
			if want := (deadletter.Outcome{Class: deadletter.Stopped, Cause: CauseStopped}); got != want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestNothingIsSentAfterTheWorkerStopped(t *testing.T) {
	url := served(t, func(http.ResponseWriter, *http.Request) { t.Error("a call") })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o := target(t, HTTPOptions{URL: url}).Remediate(ctx, record()); o.Class != deadletter.Stopped {
		t.Errorf("outcome %+v", o)
	}
}

func TestACertificateThatIsNotTrustedIsUnavailable(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a call") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = false
	s.StartTLS()
	t.Cleanup(s.Close)
	got := target(t, HTTPOptions{URL: s.URL}).Remediate(t.Context(), record())
	if got.Class != deadletter.Unavailable || got.Cause != CauseTLS {
		t.Errorf("got %+v", got)
	}
}

func TestATargetThatSpeaksNoTLSIsUnavailable(t *testing.T) {
	for name, server := range map[string]func(net.Conn, int){
		"HTTP": func(c net.Conn, _ int) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		},
		"an alert": func(c net.Conn, _ int) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte{0x15, 3, 3, 0, 2, 2, 70}) // fatal: protocol version
		},
	} {
		url := strings.Replace(raw(t, server), "http:", "https:", 1)
		got := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record())
		if got.Class != deadletter.Unavailable || got.Cause != CauseTLS {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestATrustedTLSTargetIsCalled(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	h := target(t, HTTPOptions{URL: s.URL})
	h.transport.TLSClientConfig = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	if got := h.Remediate(t.Context(), record()); got.Class != deadletter.Resolved {
		t.Errorf("got %+v", got)
	}
}

// socket is a path for one: t.TempDir can be longer than a socket's path may be.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "u")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestAUnixSocketIsCalled(t *testing.T) {
	path := socket(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r.Host + r.URL.Path
	})}}
	s.Start()
	for url, want := range map[string]string{"": "localhost/", "http://ledger/fix": "ledger/fix"} {
		o := target(t, HTTPOptions{Unix: path, URL: url}).Remediate(t.Context(), record())
		if o.Class != deadletter.Resolved || got != want {
			t.Errorf("url %q: %+v, host and path %q", url, o, got)
		}
	}
	h := target(t, HTTPOptions{Unix: path})
	s.Close()
	if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseRefused {
		t.Errorf("a socket that is gone: %+v", o)
	}
}

func TestAnIPv6AddressIsCalled(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}}
	s.Start()
	t.Cleanup(s.Close)
	if o := target(t, HTTPOptions{URL: "http://" + l.Addr().String()}).Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Errorf("outcome %+v", o)
	}
}

func TestConnectionsAreReusedWhateverTheAnswer(t *testing.T) {
	status := []int{200, 204, 302, 409, 422, 429, 500, 503}
	var opened, calls atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := calls.Add(1)
		w.WriteHeader(status[int(n)%len(status)])
		if n%8 != 1 { // 204 has none
			_, _ = io.WriteString(w, strings.Repeat("x", maxBodyBytes))
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	h := target(t, HTTPOptions{URL: s.URL})
	for range 40 {
		h.Remediate(t.Context(), record())
	}
	if n := opened.Load(); n != 1 || calls.Load() != 40 {
		t.Errorf("%d connections for %d calls", n, calls.Load())
	}
}

func TestAHundredCallsAtOnceReuseTheirConnections(t *testing.T) {
	const at, rounds = 100, 5
	var opened atomic.Int32
	all := make(chan struct{}, at) // a round is complete when all its calls are under way
	release := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		all <- struct{}{}
		<-release
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	h := target(t, HTTPOptions{URL: s.URL, MaxIdle: at})
	for range rounds {
		var wg sync.WaitGroup
		for range at {
			wg.Go(func() {
				if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
					t.Errorf("outcome %+v", o)
				}
			})
		}
		for range at {
			<-all
		}
		for range at {
			release <- struct{}{}
		}
		wg.Wait()
	}
	// net/http may open one more where an idle connection is put back a moment late.
	if n := opened.Load(); n < at || n > at+at/10 {
		t.Errorf("%d connections for %d rounds of %d calls", n, rounds, at)
	}
}

func TestAnIdleConnectionThatWasClosedIsNotAFailure(t *testing.T) {
	for name, closed := range map[string]func(net.Conn){"closed": func(c net.Conn) { _ = c.Close() }, "reset": reset} {
		t.Run(name, func(t *testing.T) {
			var conns, calls atomic.Int32
			url := raw(t, func(c net.Conn, n int) {
				conns.Store(int32(n))
				r := bufio.NewReader(c)
				for served := 0; readRequest(r); served++ {
					if n == 1 && served == 1 { // the race: the next request is read, and nothing answered
						closed(c)
						return
					}
					calls.Add(1)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			h := target(t, HTTPOptions{URL: url})
			for i := range 3 {
				if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
					t.Errorf("call %d: %+v", i, o)
				}
			}
			if conns.Load() != 2 || calls.Load() != 3 {
				t.Errorf("%d connections, %d calls answered", conns.Load(), calls.Load())
			}
			h.Close()
		})
	}
}

func TestARecordThatCrashesItsTargetIsSentABoundedNumberOfTimes(t *testing.T) {
	const idle = 20
	var crashing atomic.Bool
	var sent atomic.Int32
	var ready sync.WaitGroup
	ready.Add(idle)
	release := make(chan struct{})
	url := raw(t, func(c net.Conn, _ int) {
		r := bufio.NewReader(c)
		for readRequest(r) {
			if crashing.Load() {
				sent.Add(1)
				return
			}
			ready.Done()
			<-release
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	h := target(t, HTTPOptions{URL: url, MaxIdle: idle})
	var calls sync.WaitGroup
	for range idle {
		calls.Go(func() { h.Remediate(t.Context(), record()) })
	}
	ready.Wait()
	close(release)
	calls.Wait()

	crashing.Store(true)
	got := h.Remediate(t.Context(), record())
	if got.Class != deadletter.Unavailable || got.Cause != CauseReset {
		t.Errorf("got %+v", got)
	}
	if n := sent.Load(); n < 1 || n > 1+maxReplays {
		t.Errorf("sent %d times, at most %d are allowed", n, 1+maxReplays)
	}
	h.Close()
}

func TestNewHTTPNamesEveryFaultAndNoSecret(t *testing.T) {
	good := HTTPOptions{URL: "http://localhost:8080/fix?token=secret", Timeout: time.Second, Source: "w"}
	for name, c := range map[string]struct {
		change func(o *HTTPOptions)
		want   []string
	}{
		"no URL":           {func(o *HTTPOptions) { o.URL = "" }, []string{"url: must start with", "url: has no host"}},
		"no scheme":        {func(o *HTTPOptions) { o.URL = "localhost:8080/secret" }, []string{"url: must start with"}},
		"another scheme":   {func(o *HTTPOptions) { o.URL = "ftp://host/secret" }, []string{"url: must start with"}},
		"a relative URL":   {func(o *HTTPOptions) { o.URL = "/secret" }, []string{"url: must start with"}},
		"no host":          {func(o *HTTPOptions) { o.URL = "http:///secret" }, []string{"url: has no host"}},
		"a port only":      {func(o *HTTPOptions) { o.URL = "http://:80/secret" }, []string{"url: has no host"}},
		"a garbage port":   {func(o *HTTPOptions) { o.URL = "http://u:secret@host:port/" }, []string{"url: cannot be parsed"}},
		"a port too high":  {func(o *HTTPOptions) { o.URL = "http://host:65536/secret" }, []string{"url: the port"}},
		"a port of zero":   {func(o *HTTPOptions) { o.URL = "http://host:0/secret" }, []string{"url: the port"}},
		"control bytes":    {func(o *HTTPOptions) { o.URL = "http://host/secret\n" }, []string{"url: cannot be parsed"}},
		"a password":       {func(o *HTTPOptions) { o.URL = "http://user:secret@host/" }, []string{"url: must not carry a user"}},
		"a fragment":       {func(o *HTTPOptions) { o.URL = "http://host/#secret" }, []string{"url: must not carry a fragment"}},
		"no timeout":       {func(o *HTTPOptions) { o.Timeout = 0 }, []string{"timeout:"}},
		"negative timeout": {func(o *HTTPOptions) { o.Timeout = -1 }, []string{"timeout:"}},
		"no source":        {func(o *HTTPOptions) { o.Source = "" }, []string{"source:"}},
		"negative idle":    {func(o *HTTPOptions) { o.MaxIdle = -1 }, []string{"max idle:"}},
		"a bad user agent": {func(o *HTTPOptions) { o.UserAgent = "secret\r\nEvil: 1" }, []string{"user agent:"}},
		"a long socket":    {func(o *HTTPOptions) { o.Unix = "/" + strings.Repeat("secret", 20) }, []string{"unix:"}},
		"several at once": {func(o *HTTPOptions) { *o = HTTPOptions{URL: "x:secret", MaxIdle: -1} },
			[]string{"url: must start with", "timeout:", "source:", "max idle:"}},
	} {
		o := good
		c.change(&o)
		h, err := NewHTTP(o)
		if err == nil || h != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has a secret: %v", name, err)
		}
	}
	if _, err := NewHTTP(good); err != nil {
		t.Errorf("good options: %v", err)
	}
}

func TestNoOutcomeCarriesTheURLOrTheValue(t *testing.T) {
	r := record()
	r.Value = []byte(`{"discrepancy_id":"D-42","context":{"pan":"secret"}}`)
	for name, server := range map[string]func(net.Conn, int){
		"reset":     func(c net.Conn, _ int) { reset(c) },
		"garbage":   says("garbage\r\n\r\n"),
		"truncated": says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
		"refusal":   says("HTTP/1.1 422 No\r\n\r\n"),
		"hang":      saysAndWaits(""),
	} {
		h := target(t, HTTPOptions{URL: raw(t, server) + "/?token=secret", Timeout: 100 * time.Millisecond})
		if o := h.Remediate(t.Context(), r); strings.Contains(fmt.Sprint(o), "secret") || o.Class == deadletter.Resolved {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

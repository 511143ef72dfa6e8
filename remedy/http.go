package remedy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// EventType is the CloudEvents type of a request.
const EventType = "recon.dlq.remediate"

const (
	defaultMaxIdle = 64
	maxHeaderBytes = 64 << 10 // of an answer, informational ones included
	maxBodyBytes   = 64 << 10 // of an answer
	idleTimeout    = 90 * time.Second
	maxUnixPath    = 107 // sockaddr_un's 108 bytes less the closing zero

	// maxReplays bounds how often net/http may send one call again after an idle
	// connection turned out to be closed. Without a bound a record that crashes its
	// target would be sent once for every idle connection.
	maxReplays = 2
)

var errReplays = errors.New("idle connections were closed again and again")

// HTTPOptions configure an HTTP target.
type HTTPOptions struct {
	// URL is absolute, http or https, without user, password and fragment. With
	// Unix it gives host and path only and may be empty: http://localhost/.
	URL string
	// Unix is the path of a unix socket; empty for TCP.
	Unix string
	// Timeout bounds one call, connecting and reading the answer included; > 0.
	Timeout time.Duration
	// Source is the worker's name, for ce-source.
	Source string
	// MaxIdle is how many idle connections are kept for reuse: at least as many as
	// there are calls at a time. 0: 64.
	MaxIdle int
	// UserAgent is the User-Agent header, printable ASCII. Empty: recon-dlq.
	UserAgent string
	// Auth are the worker's credentials, TLS its trust and its certificate, for https.
	Auth HTTPAuth
	TLS  TLSFiles
	// AllowLinkLocal allows link-local addresses and those of metadata services.
	AllowLinkLocal bool
	// Now is the clock against which a Retry-After date is read, and which signatures
	// carry. nil: time.Now.
	Now func() time.Time
}

// HTTP is a target reached over HTTP/1.1: one POST per record, CloudEvents 1.0
// binary mode, the value untouched as its body. It follows no redirect and uses no
// proxy, not even one of the environment: a target is a neighbour, and a variable
// meant for something else must not send records elsewhere.
//
// Idempotency-Key makes net/http send a call again when the idle connection it
// chose was closed before a byte of an answer; that is at most maxReplays times and
// safe, for a target is idempotent by that key.
type HTTP struct {
	url       string
	userAgent string
	source    string
	timeout   time.Duration
	auth      HTTPAuth
	now       func() time.Time
	transport *http.Transport
}

var _ Handler = (*HTTP)(nil)

// NewHTTP returns the handler of an HTTP target. The error names every fault of the
// options at once, and never the URL: it can carry a secret.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	if o.URL == "" && o.Unix != "" {
		o.URL = "http://localhost/"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	faults := checkURL(o.URL, o.AllowLinkLocal || o.Unix != "")
	if len(o.Unix) > maxUnixPath {
		faults = append(faults, fmt.Errorf("unix: path of %d bytes, at most %d are possible: use a shorter one", len(o.Unix), maxUnixPath))
	}
	if o.Timeout <= 0 {
		faults = append(faults, errors.New("timeout: must be longer than 0"))
	}
	if o.Source == "" {
		faults = append(faults, errors.New("source: empty: name the worker"))
	}
	if o.MaxIdle < 0 {
		faults = append(faults, errors.New("max idle: must not be negative"))
	}
	if strings.ContainsFunc(o.UserAgent, func(r rune) bool { return r < ' ' || r > '~' }) {
		faults = append(faults, errors.New("user agent: must be printable ASCII"))
	}
	faults = append(faults, o.Auth.check()...)
	if o.TLS != (TLSFiles{}) {
		if !strings.HasPrefix(strings.ToLower(o.URL), "https:") {
			faults = append(faults, errors.New("tls: needs a url that starts with https://"))
		}
		faults = append(faults, o.TLS.check(o.Now())...)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("http target: %w", errors.Join(faults...))
	}

	if o.MaxIdle == 0 {
		o.MaxIdle = defaultMaxIdle
	}
	if o.UserAgent == "" {
		o.UserAgent = "recon-dlq"
	}
	dialer := newDialer(o.AllowLinkLocal)
	dial := dialer.DialContext
	if o.Unix != "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", o.Unix)
		}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	h := &HTTP{
		url:       o.URL,
		userAgent: o.UserAgent,
		source:    percentEncode(o.Source),
		timeout:   o.Timeout,
		auth:      o.Auth,
		now:       o.Now,
		transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dial,
			Protocols:              protocols,
			DisableCompression:     true, // so that the bound of a body is one
			MaxIdleConns:           o.MaxIdle,
			MaxIdleConnsPerHost:    o.MaxIdle,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
	}
	if o.TLS != (TLSFiles{}) {
		h.transport.DialTLSContext = o.TLS.dialTLS(dial, o.Now)
	}
	return h, nil
}

func checkURL(s string, allowLinkLocal bool) []error {
	u, err := url.Parse(s)
	if err != nil {
		return []error{errors.New("url: cannot be parsed: use http://host:port/path")} // err quotes the URL
	}
	var faults []error
	if u.Scheme != "http" && u.Scheme != "https" {
		faults = append(faults, errors.New("url: must start with http:// or https://"))
	}
	if u.Hostname() == "" {
		faults = append(faults, errors.New("url: has no host"))
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && !allowLinkLocal && isLinkLocal(a) {
		faults = append(faults, fmt.Errorf("url: %w", errLinkLocal))
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			faults = append(faults, errors.New("url: the port must be between 1 and 65535"))
		}
	}
	if u.User != nil {
		faults = append(faults, errors.New("url: must not carry a user or password"))
	}
	if u.Fragment != "" {
		faults = append(faults, errors.New("url: must not carry a fragment"))
	}
	return faults
}

// Close closes the idle connections; call it when no call is under way.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Remediate sends the record and reads the answer; docs/handlers.md has the table.
// A context that is cancelled gives Stopped, one past its deadline a timeout.
func (h *HTTP) Remediate(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
	if ctx.Err() != nil && !timedOut(ctx) {
		return stopped()
	}
	callCtx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()

	var p phase
	req, err := h.request(httptrace.WithClientTrace(callCtx, p.trace()), r)
	if err != nil {
		return suspect(CauseProtocol, "the request cannot be made") // NewHTTP has checked the URL
	}
	if err := h.auth.set(req.Header, req.Header.Get("ce-id"), r.Value, h.now()); err != nil {
		return unavailable(CauseCredentials, err.Error())
	}
	resp, err := h.transport.RoundTrip(req) // not a Client: no redirects, no cookies, no URL in errors
	if err != nil {
		return h.failure(ctx, callCtx, &p, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 { // only 101: what follows is no HTTP
		return withStatus(suspect(CauseProtocol, statusText(resp.StatusCode)), resp.StatusCode)
	}
	// Reading to the end makes the connection reusable; past the bound it is given up.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBodyBytes+1))
	return h.answer(ctx, callCtx, resp, body, err)
}

// request makes the POST. Every text of the record is percent-encoded, so that no
// record can make a request that cannot be sent.
func (h *HTTP) request(ctx context.Context, r *deadletter.Record) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(r.Value))
	if err != nil {
		return nil, err
	}
	replays := 0
	first := req.GetBody
	req.GetBody = func() (io.ReadCloser, error) { // called by this request's RoundTrip only
		if replays++; replays > maxReplays {
			return nil, errReplays
		}
		return first()
	}
	id := percentEncode(r.ID)
	subject := "-"
	if r.DiscrepancyID != "" {
		subject = percentEncode(r.DiscrepancyID)
	}
	set := req.Header.Set
	set("Content-Type", "application/json")
	set("User-Agent", h.userAgent)
	set("Idempotency-Key", id)
	set("ce-specversion", "1.0")
	set("ce-id", id)
	set("ce-type", EventType)
	set("ce-source", h.source)
	set("ce-subject", subject)
	set("ce-reconattempt", strconv.Itoa(r.Attempt))
	if r.Enqueued > 0 {
		set("ce-time", time.UnixMilli(r.Enqueued).UTC().Format("2006-01-02T15:04:05.000Z"))
		set("ce-reconenqueued", strconv.FormatInt(r.Enqueued, 10))
	}
	return req, nil
}

// percentEncode encodes an attribute for a header: space, double quote, percent and
// everything outside printable ASCII (CloudEvents HTTP binding 1.0.2, 3.1.3.2).
func percentEncode(s string) string {
	const digits = "0123456789ABCDEF"
	plain := func(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' }
	i := 0
	for i < len(s) && plain(s[i]) {
		i++
	}
	if i == len(s) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// phase says how far a call came, for the connection that was used last: net/http
// can use several, see maxReplays. The transport's goroutines write it.
type phase struct {
	connected atomic.Bool // TLS included
	answered  atomic.Bool // at least one byte of an answer
}

func (p *phase) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			p.connected.Store(false)
			p.answered.Store(false)
		},
		GotConn:              func(httptrace.GotConnInfo) { p.connected.Store(true) },
		GotFirstResponseByte: func() { p.answered.Store(true) },
	}
}

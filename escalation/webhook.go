package escalation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

const (
	webhookTimeout   = 10 * time.Second
	webhookGiveUp    = 2 * time.Minute
	webhookBackoff   = 500 * time.Millisecond // before the second try; doubles
	webhookBackoffUp = 30 * time.Second
	webhookRequests  = 8        // requests at a time
	webhookBody      = 64 << 10 // bytes of an answer that are read, to keep the connection
	webhookHeaders   = 64 << 10
)

// webhook posts notices.
type webhook struct {
	url, token      string
	timeout, giveUp time.Duration
	client          *http.Client
	slots           chan struct{} // bounds requests, not those waiting for their next try
	now             func() time.Time
	rand            func() float64
}

// newWebhook checks the options. Its errors do not repeat the URL: a webhook's URL is often its secret.
func newWebhook(o WebhookOptions, now func() time.Time, rand func() float64) (*webhook, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("escalation: webhook.url is not an absolute http(s) URL, like https://alerts.example.com/hook")
	}
	if o.Timeout < 0 || o.GiveUp < 0 {
		return nil, errors.New("escalation: webhook: a timeout is negative")
	}
	if o.Timeout == 0 {
		o.Timeout = webhookTimeout
	}
	if o.GiveUp == 0 {
		o.GiveUp = webhookGiveUp
	}
	client := &http.Client{}
	if o.Client != nil {
		c := *o.Client
		client = &c
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = webhookRequests
		t.MaxResponseHeaderBytes = webhookHeaders
		client.Transport = t
	}
	// A redirect could carry ids and token to a host that nobody configured.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &webhook{
		url: o.URL, token: o.Token, timeout: o.Timeout, giveUp: o.GiveUp, client: client,
		slots: make(chan struct{}, webhookRequests), now: now, rand: rand,
	}, nil
}

func (w *webhook) close() { w.client.CloseIdleConnections() }

// notify posts n until it is accepted (any 2xx), w.giveUp has passed since the
// first try, or a context ends: ctx gives up at once, begin (which ends no later)
// lets a request under way finish. An error is a failedError, or a context's.
// try is called with the result of each request.
func (w *webhook) notify(ctx, begin context.Context, n notice, try func(ok bool)) error {
	body, err := n.body()
	if err != nil {
		return &failedError{cause: "encode"}
	}
	var deadline time.Time
	backoff := webhookBackoff
	for tries := 1; ; tries++ {
		select {
		case w.slots <- struct{}{}:
		case <-begin.Done():
			return context.Cause(begin)
		}
		if deadline.IsZero() { // waiting for a first slot is not the record's time
			deadline = w.now().Add(w.giveUp)
		}
		cause, after := w.post(ctx, n.key(), body)
		<-w.slots
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		try(cause == "")
		if cause == "" {
			return nil
		}
		wait := max(backoff/2+time.Duration(w.rand()*float64(backoff/2)), after)
		backoff = min(2*backoff, webhookBackoffUp)
		if w.now().Add(wait).After(deadline) {
			return &failedError{cause: cause, tries: tries}
		}
		sleep(begin, wait)
		if begin.Err() != nil {
			return context.Cause(begin)
		}
	}
}

// failedError says that a webhook did not take a notice. It never carries the URL.
type failedError struct {
	cause string // timeout, refused, http_503, …
	tries int
}

func (e *failedError) Error() string {
	return fmt.Sprintf("webhook gave no 2xx in %d tries, at last: %s", e.tries, e.cause)
}

// post sends one request and returns "" if it was accepted, else a short cause
// and how long the receiver asked to wait (0: did not say).
func (w *webhook) post(ctx context.Context, key string, body []byte) (cause string, after time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return "url", 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("User-Agent", "recon-dlq")
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return networkCause(err), 0
	}
	defer func() { _ = resp.Body.Close() }()
	// The status says it all; the rest is read only to use the connection again.
	_, _ = io.CopyN(io.Discard, resp.Body, webhookBody)
	if resp.StatusCode/100 == 2 {
		return "", 0
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		after = min(time.Duration(s)*time.Second, webhookBackoffUp)
	}
	return "http_" + strconv.Itoa(resp.StatusCode), after
}

// networkCause names what went wrong without the URL that net/http puts in its errors.
func networkCause(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return "reset"
	default:
		return "network"
	}
}

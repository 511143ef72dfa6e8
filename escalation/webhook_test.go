package escalation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// transport is an http.RoundTripper without a network.
type transport func(r *http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func status(code int) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("thanks"))}
}

func testWebhook(t *testing.T, rt transport) *webhook {
	t.Helper()
	w, err := newWebhook(WebhookOptions{URL: "https://hooks.example.com/T-SECRET", Client: &http.Client{Transport: rt}}, time.Now, func() float64 { return 1 })
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestTriesBackOffAndEndWithinTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		started := time.Now()
		w := testWebhook(t, func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(started))
			return status(http.StatusBadGateway), nil
		})
		err := w.notify(t.Context(), t.Context(), notice{}, func(ok bool) {
			if ok {
				t.Error("a 502 is taken for an acceptance")
			}
		})
		var failed *failedError
		if !errors.As(err, &failed) || failed.cause != "http_502" || failed.tries != len(at) {
			t.Fatalf("ended with %v after %d tries", err, len(at))
		}
		want := "[0s 500ms 1.5s 3.5s 7.5s 15.5s 31.5s 1m1.5s 1m31.5s]"
		if got := fmt.Sprint(at); got != want {
			t.Errorf("tries were at %s, want %s", got, want)
		}
	})
}

func TestAHangingReceiverCostsOneTimeoutATry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := testWebhook(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		started := time.Now()
		err := w.notify(t.Context(), t.Context(), notice{}, func(bool) {})
		var failed *failedError
		if !errors.As(err, &failed) || failed.cause != "timeout" {
			t.Fatalf("ended with %v", err)
		}
		if d := time.Since(started); d > webhookGiveUp+webhookTimeout {
			t.Errorf("took %v", d)
		}
	})
}

func TestRetryAfterIsKeptToAndCapped(t *testing.T) {
	for header, want := range map[string]time.Duration{"7": 7 * time.Second, "86400": webhookBackoffUp, "0": webhookBackoff, "-3": webhookBackoff, "soon": webhookBackoff} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			w := testWebhook(t, func(*http.Request) (*http.Response, error) {
				if n++; n == 1 {
					resp := status(http.StatusTooManyRequests)
					resp.Header.Set("Retry-After", header)
					return resp, nil
				}
				return status(http.StatusOK), nil
			})
			started := time.Now()
			if err := w.notify(t.Context(), t.Context(), notice{}, func(bool) {}); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(started); d != want {
				t.Errorf("Retry-After %s was waited %v, want %v", header, d, want)
			}
		})
	}
}

func TestAStopLetsARequestFinishAndBeginsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, stop := context.WithCancel(t.Context())
		release := make(chan struct{})
		var requests atomic.Int32
		w := testWebhook(t, func(*http.Request) (*http.Response, error) {
			requests.Add(1)
			<-release
			return status(http.StatusOK), nil
		})
		errs := make(chan error, webhookRequests+3)
		for range cap(errs) {
			go func() { errs <- w.notify(t.Context(), begin, notice{}, func(bool) {}) }()
		}
		synctest.Wait()
		if n := requests.Load(); n != webhookRequests {
			t.Errorf("%d requests at a time, want %d", n, webhookRequests)
		}
		stop()
		synctest.Wait()
		close(release)
		finished := 0
		for range cap(errs) {
			if err := <-errs; err == nil {
				finished++
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		}
		if finished != webhookRequests || requests.Load() != webhookRequests {
			t.Errorf("%d of %d requests finished, want those %d that had begun", finished, requests.Load(), webhookRequests)
		}
	})
}

func TestCausesNeverShowTheURL(t *testing.T) {
	for want, err := range map[string]error{
		"dns":     &net.DNSError{Err: "no such host", Name: "hooks.example.com"},
		"timeout": context.DeadlineExceeded,
		"reset":   io.EOF,
		"network": errors.New("https://hooks.example.com/T-SECRET is bad"),
	} {
		if got := networkCause(&url.Error{Op: "Post", URL: "https://hooks.example.com/T-SECRET", Err: err}); got != want {
			t.Errorf("cause of %v is %q, want %q", err, got, want)
		}
	}
	if s := (&failedError{cause: "dns", tries: 3}).Error(); strings.Contains(s, "SECRET") {
		t.Error(s)
	}
}

func TestAnswersAreReadWithinABound(t *testing.T) {
	var read atomic.Int64
	w := testWebhook(t, func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(endless{&read})}, nil
	})
	if err := w.notify(t.Context(), t.Context(), notice{}, func(bool) {}); err != nil {
		t.Fatal(err)
	}
	if n := read.Load(); n > 2*webhookBody {
		t.Errorf("%d bytes of the answer were read", n)
	}
}

type endless struct{ n *atomic.Int64 }

func (e endless) Read(p []byte) (int, error) { e.n.Add(int64(len(p))); return len(p), nil }

func TestABodyIsBoundedWhateverTheRecordSays(t *testing.T) {
	long := strings.Repeat("é\x00", 1<<20)
	r := deadletter.Record{ID: long, DiscrepancyID: long, Category: long, Origin: long, Reason: word(long), ErrorClass: word(long), Attempt: 1 << 31}
	body, err := newNotice(&r, long).body()
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > 20<<10 || !utf8.Valid(body) {
		t.Errorf("body has %d bytes, valid UTF-8: %v", len(body), utf8.Valid(body))
	}
}

func TestWordsOfOthersAreNotRepeated(t *testing.T) {
	for in, want := range map[string]string{"": "", "http_503": "http_503", "attempts_exhausted": "attempts_exhausted", "DE89 3704": "other", "jo@example.com": "other", strings.Repeat("a", 65): "other"} {
		if got := word(in); got != want {
			t.Errorf("word(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestProgressIsReadBackExactly(t *testing.T) {
	for _, seq := range []int64{0, 1, 1 << 62} {
		if got, err := parseProgress(formatProgress(seq)); err != nil || got != seq {
			t.Errorf("%d is read back as %d, %v", seq, got, err)
		}
	}
	if _, err := parseProgress("SECRET"); err == nil || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), progressPrefix) {
		t.Errorf("error is %v", err)
	}
}

func TestTheCallersClientIsNotChanged(t *testing.T) {
	client := &http.Client{}
	if _, err := newWebhook(WebhookOptions{URL: "http://localhost", Client: client}, time.Now, func() float64 { return 0 }); err != nil {
		t.Fatal(err)
	}
	if client.CheckRedirect != nil {
		t.Error("redirects of the caller's client are not followed any more")
	}
}

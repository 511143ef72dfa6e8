package suite

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// overHTTP is the handler of a target that is reached over HTTP.
func overHTTP(t *testing.T, o remedy.HTTPOptions) remedy.HandlerFunc {
	t.Helper()
	o.Source = "suite"
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	h, err := remedy.NewHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h.Remediate
}

// quiet is a server whose complaints about broken connections nobody reads.
func quiet(t *testing.T, h http.HandlerFunc, secure bool) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL
}

// Without a classification 404s are retried to the limit. What is not counted by
// design (429, a reset, DNS) is tested in package remedy and by the outages here;
// a table that can be configured comes with the configuration of targets.
func TestC091_PermanentAnswersGoToPoisonAtOnceAndPassingOnesWalkTheTiers(t *testing.T) {
	t.Parallel()
	passing := map[int]bool{408: true, 425: true, 500: true, 501: true, 503: true}
	var calls tally
	url := quiet(t, func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("ce-subject")
		status, err := strconv.Atoi(id)
		if n := calls.next(id); err != nil || passing[status] && n > 2 {
			return
		}
		w.WriteHeader(status)
	}, false)
	x := newBench(t, brokers.NewKfake(t), 3, 4, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, overHTTP(t, remedy.HTTPOptions{URL: url}))
	x.target[0].Breaker.Threshold = 64
	permanent := []int{400, 404, 410, 422}
	for _, status := range permanent {
		x.send(value(strconv.Itoa(status), ""))
	}
	for status := range passing {
		x.send(value(strconv.Itoa(status), ""))
	}
	x.send(value("healthy", ""))
	w := x.start()
	x.settled(len(permanent)+len(passing)+1, w)
	rep := x.check(true)
	if rep.Poisoned != len(permanent) || rep.Resolved != len(passing)+1 || rep.Retried != 2*len(passing) {
		t.Errorf("poisoned %d, resolved %d, retried %d", rep.Poisoned, rep.Resolved, rep.Retried)
	}
	for _, r := range x.read(x.names.Poison) {
		id := discrepancy(r)
		if n := calls.of(id); n != 1 || header(r, deadletter.HeaderAttempt) != "1" || header(r, deadletter.HeaderReason) != deadletter.ReasonPermanent {
			t.Errorf("%s: %d calls, attempt %s, reason %s", id, n, header(r, deadletter.HeaderAttempt), header(r, deadletter.HeaderReason))
		}
	}
	for status := range passing {
		if n := calls.of(strconv.Itoa(status)); n != 3 {
			t.Errorf("%d: %d calls, want two failures and a success", status, n)
		}
	}
}

// The dead-letter setting covers some failures and others kill the task. Here
// every class of failure has its way, and a healthy record goes on beside each.
func TestC092_EveryClassOfFailureHasItsWayAndStopsNothingElse(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	var mended atomic.Bool // of what was refused, or not trusted
	first := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("ce-reconattempt") == "0" {
				h(w, r)
			}
		}
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			buffered.WriteString(text) //nolint:errcheck // the other side looks
			buffered.Flush()           //nolint:errcheck // the same
		}
	}
	plain := func(h http.HandlerFunc) remedy.HandlerFunc {
		return overHTTP(t, remedy.HTTPOptions{URL: quiet(t, h, false), Timeout: 500 * time.Millisecond})
	}
	orMended := func(h remedy.HandlerFunc) remedy.HandlerFunc {
		return func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
			if mended.Load() {
				return resolved
			}
			return h(ctx, r)
		}
	}
	type way struct {
		handler remedy.HandlerFunc
		poison  string // its reason; "" is resolved in the end
		class   string // recon-error-class of its first copy, if it has one
		held    bool   // until its target is mended
	}
	ways := map[string]way{
		"rejects": {handler: plain(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }), poison: deadletter.ReasonPermanent, class: remedy.CauseRejected},
		"fails":   {handler: plain(first(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })), class: "http_500"},
		"hangs": {handler: plain(first(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // only then the server sees that the worker has gone
			<-r.Context().Done()
		})), class: remedy.CauseTimeout},
		"panics": {handler: func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt == 0 {
				panic("no")
			}
			return resolved
		}, class: remedy.CausePanic},
		"floods": {handler: plain(first(func(w http.ResponseWriter, _ *http.Request) {
			const size = 100_000_000
			w.Header().Set("Content-Length", strconv.Itoa(size))
			chunk := []byte(fmt.Sprintf("{%65535s", ""))
			for sent := 0; sent < size; sent += len(chunk) {
				if _, err := w.Write(chunk); err != nil {
					return // the worker has seen enough
				}
				chunk[0] = ' '
			}
			t.Error("all of 100 MB were read")
		})), class: remedy.CauseTruncated},
		"babbles": {handler: plain(first(raw("I am no HTTP server\r\n\r\n"))), class: remedy.CauseProtocol},
		"refuses": {handler: orMended(overHTTP(t, remedy.HTTPOptions{Unix: filepath.Join(t.TempDir(), "nobody.sock")})), held: true},
		"distrusted": {handler: orMended(overHTTP(t, remedy.HTTPOptions{
			URL: quiet(t, func(http.ResponseWriter, *http.Request) { t.Error("the record was sent") }, true),
		})), held: true},
	}
	x := newBench(t, b, 1, 3, []time.Duration{200 * time.Millisecond}, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	last := x.rules[0]
	x.rules = nil
	var records []*kgo.Record
	for name, w := range ways {
		x.play(name, w.handler)
		x.target[len(x.target)-1].Breaker = quickProbes
		rule := last
		rule.Name, rule.Category, rule.Target = name, name, name
		x.rules = append(x.rules, rule)
		records = append(records, &kgo.Record{Topic: x.names.Source, Value: fmt.Appendf(nil, `{"discrepancy_id":%q,"category":%q,"context":{},"enqueued_ms":0}`, name, name)})
	}
	x.rules = append(x.rules, last)
	records = append(records,
		&kgo.Record{Topic: x.names.Source, Key: []byte("undecodable"), Value: []byte("\x00\xff\x10\xc3(")},
		&kgo.Record{Topic: x.names.Source, Value: value("healthy", "")}) // the last of its partition
	brokers.Produce(t, b, records...)
	p := x.launch()
	const poisoned = 2 // what is rejected and what cannot be read
	x.eventually("all but what is held are done", func() bool { return done(p) == len(records)-2 })
	p.is(poisoned, "poison_total")
	p.is(2, "dlq_depth")
	for name, w := range ways {
		if w.held != p.open(name) {
			t.Errorf("%s: held %v", name, p.open(name))
		}
	}
	mended.Store(true)
	x.settled(len(records), p.worker)
	rep := x.counted(nil)
	if rep.Poisoned != poisoned || rep.Resolved != len(records)-poisoned || rep.Retried != 5 {
		t.Errorf("poisoned %d, resolved %d, retried %d", rep.Poisoned, rep.Resolved, rep.Retried)
	}
	copies := map[string]*kgo.Record{}
	for _, r := range x.read(append(x.names.Tiers(), x.names.Poison)...) {
		copies[discrepancy(r)] = r
	}
	for name, w := range ways {
		r := copies[name]
		if w.class == "" {
			if r != nil {
				t.Errorf("%s: there is a copy in %s", name, r.Topic)
			}
			continue
		}
		if r == nil || header(r, deadletter.HeaderErrorClass) != w.class || header(r, deadletter.HeaderReason) != w.poison {
			t.Errorf("%s: its copy is %+v", name, r)
		}
	}
}

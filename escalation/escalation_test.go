package escalation_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/escalation"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestMain(m *testing.M) {
	code := brokers.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	patience = 60 * time.Second // for what comes at all
	partsN   = 2
)

// What no notice may carry.
var secrets = []string{"SECRET-VALUE", "SECRET-KEY", "SECRET-HEADER", "SECRET-ERROR", "SECRET-TOKEN"}

// house is a cluster, a webhook and the escalator's log.
type house struct {
	t     *testing.T
	b     brokers.Broker
	names brokers.Names
	hook  *hook
	log   *buffer
	cons  *kgo.Client // reads the audit topic
	got   []audit.Event
}

func newHouse(t *testing.T, b brokers.Broker) *house {
	names := brokers.NewNames(nil)
	brokers.Create(t, b, partsN, map[string]string{"retention.ms": "-1"}, names.Poison)
	brokers.Create(t, b, 3, map[string]string{"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}, names.Audit)
	h := &house{t: t, b: b, names: names, hook: newHook(t), log: new(buffer)}
	h.cons = brokers.Client(t, append(b.Opts(),
		kgo.ConsumeTopics(names.Audit),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)...)
	return h
}

func (h *house) options() escalation.Options {
	return escalation.Options{
		Conn: append(h.b.Opts(), kgo.RetryTimeout(5*time.Second)), Group: h.names.Group, Instance: "one",
		Poison: h.names.Poison, Audit: h.names.Audit, Source: "recon-dlq/test",
		Webhook: escalation.WebhookOptions{URL: h.hook.srv.URL + "/hook", Token: "SECRET-TOKEN", Timeout: 2 * time.Second},
		Logger:  slog.New(slog.NewJSONHandler(h.log, nil)),
	}
}

// run starts an escalator; the returned stop ends it and waits for it. It is ended with the test, too.
func (h *house) run(o escalation.Options) (stop func()) {
	h.t.Helper()
	e, err := escalation.New(o)
	if err != nil {
		h.t.Fatal(err)
	}
	e.RestartAfter(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				h.t.Errorf("escalator stopped with: %v", err)
			}
		case <-time.After(patience):
			h.t.Error("escalator does not stop")
		}
	})
	h.t.Cleanup(stop)
	return stop
}

// poison writes n good poison copies, ids prefix-0 and so on, alternating between partitions.
func (h *house) poison(prefix string, n int) {
	h.t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		id := fmt.Sprintf("%s-%d", prefix, i)
		r := deadletter.Record{
			ID:     deadletter.Identity("cluster", deadletter.Place{Topic: "recon.dlq", Offset: int64(i), TopicID: [16]byte{byte(len(prefix))}}),
			Origin: fmt.Sprintf("recon.dlq/%d/%d", i%3, i), Attempt: 5, Enqueued: 1_760_000_000_000,
			ErrorClass: "http_500", Error: "SECRET-ERROR", Reason: deadletter.ReasonAttemptsExhausted,
			Foreign: []deadletter.Header{{Key: "x-note", Value: []byte("SECRET-HEADER")}},
		}
		records[i] = &kgo.Record{
			Topic: h.names.Poison, Partition: int32(i % partsN), Key: []byte("SECRET-KEY"),
			Value: fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"amount_differs","context":{"iban":"SECRET-VALUE"},"enqueued_ms":1760000000000}`, id),
		}
		for _, hd := range r.Headers() {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: hd.Key, Value: hd.Value})
		}
	}
	brokers.ProduceTo(h.t, h.b, records...)
}

// events waits until the audit topic has n events, and gives what it has.
func (h *house) events(n int) []audit.Event {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(h.got) < n {
		h.fetch(ctx)
		if ctx.Err() != nil {
			h.t.Fatalf("audit has %d of %d events; log:\n%s", len(h.got), n, h.log)
		}
	}
	return h.got
}

func (h *house) fetch(ctx context.Context) {
	h.cons.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			h.t.Fatalf("audit event %s: %v", r.Value, err)
		}
		for _, s := range secrets {
			if bytes.Contains(r.Value, []byte(s)) || bytes.Contains(r.Key, []byte(s)) {
				h.t.Errorf("audit event carries %s: %s", s, r.Value)
			}
		}
		h.got = append(h.got, e)
	})
}

// settled waits for n events, stops the escalators given, and checks that the
// trail has exactly n events, one a record, gap-free from 1 in each partition.
func (h *house) settled(n int, stops ...func()) {
	h.t.Helper()
	h.events(n)
	for _, stop := range stops {
		stop()
	}
	all, err := brokers.ReadAll(h.t.Context(), h.b, h.names.Audit)
	if err != nil {
		h.t.Fatal(err)
	}
	if len(all) != n {
		h.t.Fatalf("audit has %d events, want exactly %d", len(all), n)
	}
	seqs := map[int32]map[int64]bool{}
	places := map[deadletter.Place]bool{}
	for _, e := range h.got {
		if e.Type != audit.Escalated {
			h.t.Errorf("event of type %s", e.Type)
		}
		if places[e.Input] {
			h.t.Errorf("%v is audited twice", e.Input)
		}
		places[e.Input] = true
		p := e.Input.Partition
		if seqs[p] == nil {
			seqs[p] = map[int64]bool{}
		}
		if seqs[p][e.Seq] {
			h.t.Errorf("partition %d has seq %d twice", p, e.Seq)
		}
		seqs[p][e.Seq] = true
	}
	for p, set := range seqs {
		for i := range int64(len(set)) {
			if !set[i+1] {
				h.t.Errorf("partition %d: %d events, seq %d is missing", p, len(set), i+1)
			}
		}
	}
}

// lines are the log's lines with a message.
func (h *house) lines(msg string) (lines []map[string]any) {
	for line := range strings.Lines(h.log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			h.t.Fatalf("log line %q: %v", line, err)
		}
		if m["msg"] == msg {
			lines = append(lines, m)
		}
	}
	return lines
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// hook is a webhook that counts what it accepted.
type hook struct {
	t   *testing.T
	srv *httptest.Server

	mu       sync.Mutex
	answer   func(id string, r *http.Request) int // by discrepancy id; nil: 204
	accepted map[string]int                       // POSTs answered 2xx, by Idempotency-Key
	ids      map[string]int                       // the same by discrepancy id
	bodies   []string
	changed  chan struct{} // closed at the next change
}

func newHook(t *testing.T) *hook {
	k := &hook{t: t, accepted: map[string]int{}, ids: map[string]int{}, changed: make(chan struct{})}
	k.srv = httptest.NewServer(k)
	t.Cleanup(k.srv.Close)
	return k
}

func (k *hook) set(answer func(id string, r *http.Request) int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answer = answer
}

func (k *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var n struct {
		ID string `json:"discrepancy_id"`
	}
	if err := json.Unmarshal(body, &n); err != nil || r.Method != http.MethodPost {
		k.t.Errorf("%s with body %q: %v", r.Method, body, err)
	}
	k.mu.Lock()
	answer := k.answer
	k.bodies = append(k.bodies, string(body)+fmt.Sprint(withoutAuthorization(r.Header)))
	k.mu.Unlock()
	status := http.StatusNoContent
	if answer != nil {
		status = answer(n.ID, r)
	}
	if status/100 == 2 {
		k.mu.Lock()
		k.accepted[r.Header.Get("Idempotency-Key")]++
		k.ids[n.ID]++
		close(k.changed)
		k.changed = make(chan struct{})
		k.mu.Unlock()
	}
	w.WriteHeader(status)
}

func withoutAuthorization(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Authorization")
	return h
}

// await waits until n different notices were accepted.
func (k *hook) await(n int) {
	k.t.Helper()
	deadline := time.After(patience)
	for {
		k.mu.Lock()
		have, changed := len(k.accepted), k.changed
		k.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			k.t.Fatalf("webhook accepted %d of %d notices", have, n)
		}
	}
}

func (k *hook) counts() (notices, posts int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.accepted {
		posts += n
	}
	return len(k.accepted), posts
}

// metric reads one sample of a registry, -1 if it is absent.
func metric(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	samples:
		for _, m := range f.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !found {
					continue samples
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return -1
}

const told = "a discrepancy needs people"

func TestEachPoisonRecordIsLoggedPostedAndAuditedOnce(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		h := newHouse(t, b)
		h.poison("d", 20)
		o := h.options()
		reg := prometheus.NewRegistry()
		o.Registerer = reg
		stop := h.run(o)
		h.settled(20, stop)

		if notices, posts := h.hook.counts(); notices != 20 || posts != 20 {
			t.Errorf("webhook accepted %d POSTs of %d notices, want 20 of 20", posts, notices)
		}
		lines := h.lines(told)
		if len(lines) != 20 {
			t.Errorf("log has %d lines, want 20:\n%s", len(lines), h.log)
		}
		for _, s := range secrets {
			if strings.Contains(h.log.String(), s) || strings.Contains(strings.Join(h.hook.bodies, "\n"), s) {
				t.Errorf("%s is in the log or in a POST", s)
			}
		}
		d := lines[0]["discrepancy"].(map[string]any)
		for field, want := range map[string]any{
			"category": "amount_differs", "reason": "attempts_exhausted", "error_class": "http_500", "attempt": 5.0, "enqueued": "2025-10-09T08:53:20Z",
		} {
			if d[field] != want {
				t.Errorf("log line has %s %v, want %v", field, d[field], want)
			}
		}
		for result, want := range map[string]float64{"logged": 20, "notified": 20, "failed": 0} {
			if got := metric(t, reg, "recon_dlq_escalations_total", "result", result); got != want {
				t.Errorf("recon_dlq_escalations_total{result=%q} is %v, want %v", result, got, want)
			}
		}
	})
}

func TestAClusterWithTheOlderTransactionProtocolIsServed(t *testing.T) {
	h := newHouse(t, brokers.NewKafka(t, brokers.Options{TransactionVersion: 1})) // skipped with -short
	h.poison("d", 50)
	stop := h.run(h.options())
	h.hook.await(50)
	h.poison("late", 50)
	h.settled(100, stop)
	if n := len(h.lines("escalation is interrupted, starting again")); n != 0 {
		t.Errorf("escalation was interrupted %d times:\n%s", n, h.log)
	}
}

func TestAPostNamesTheRecordAndHasAKeyPerRedriveGeneration(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	bodies := make(chan string, 1)
	keys := make(chan string, 1)
	h.hook.set(func(_ string, r *http.Request) int {
		keys <- r.Header.Get("Idempotency-Key")
		bodies <- r.Header.Get("Authorization")
		return http.StatusOK
	})
	r := deadletter.Record{
		ID: "0123456789abcdef0123456789abcdef", Origin: "recon.dlq/2/77", Attempt: 3, Redrive: 2, Redriven: 1_760_000_100_000,
		Enqueued: 1_760_000_000_000, ErrorClass: "timeout", Reason: deadletter.ReasonSLABreached,
	}
	rec := &kgo.Record{Topic: h.names.Poison, Partition: 1, Value: []byte(`{"discrepancy_id":"d-7","category":"stale_version","context":{},"enqueued_ms":1760000000000}`)}
	for _, hd := range r.Headers() {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: hd.Key, Value: hd.Value})
	}
	brokers.ProduceTo(t, h.b, rec)
	stop := h.run(h.options())
	if key := <-keys; key != "0123456789abcdef0123456789abcdef-2" {
		t.Errorf("Idempotency-Key is %q", key)
	}
	if auth := <-bodies; auth != "Bearer SECRET-TOKEN" {
		t.Errorf("Authorization is %q", auth)
	}
	h.settled(1, stop)
	want := fmt.Sprintf(`{"recon_id":"0123456789abcdef0123456789abcdef","discrepancy_id":"d-7","category":"stale_version","reason":"sla_breached","error_class":"timeout",`+
		`"attempt":3,"redrive":2,"origin":"recon.dlq/2/77","poison":"%s/1/0","enqueued_ms":1760000000000,"source":"recon-dlq/test"}`, h.names.Poison)
	if got, _, _ := strings.Cut(h.hook.bodies[0], "map["); got != want {
		t.Errorf("body is\n%s, want\n%s", got, want)
	}
	if e := h.got[0]; e.Subject != "d-7" || e.RecordID != r.ID || e.Origin != r.Origin || e.Reason != r.Reason || e.Attempt != 3 || e.Source != "recon-dlq/test" {
		t.Errorf("event is %+v", e)
	}
}

func TestAMalformedPoisonRecordIsEscalatedLikeAnyOther(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	brokers.ProduceTo(t, h.b,
		&kgo.Record{Topic: h.names.Poison, Partition: 0, Value: []byte(`{"SECRET-VALUE`)},
		&kgo.Record{Topic: h.names.Poison, Partition: 0, Value: nil, Key: []byte("SECRET-KEY")},
		&kgo.Record{Topic: h.names.Poison, Partition: 0, Value: []byte(`{}`), Headers: []kgo.RecordHeader{
			{Key: "recon-attempt", Value: []byte("SECRET-HEADER")}, {Key: "recon-reason", Value: []byte("SECRET-HEADER")}, {Key: "recon-error-class", Value: []byte("SECRET HEADER")}}},
	)
	stop := h.run(h.options())
	h.settled(3, stop)
	if _, posts := h.hook.counts(); posts != 3 {
		t.Errorf("webhook accepted %d POSTs, want 3", posts)
	}
	lines := h.lines(told)
	for i, want := range []string{"malformed", "malformed", "other"} {
		if got := lines[i]["discrepancy"].(map[string]any)["reason"]; got != want {
			t.Errorf("record %d has reason %v, want %s", i, got, want)
		}
	}
	for _, s := range append(secrets, "SECRET HEADER") {
		if strings.Contains(h.log.String(), s) || strings.Contains(strings.Join(h.hook.bodies, "\n"), s) {
			t.Errorf("%s is in the log or in a POST", s)
		}
	}
}

func TestWithoutAWebhookRecordsAreLoggedAndAudited(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	h.poison("d", 500)
	o := h.options()
	o.Webhook.URL = ""
	stop := h.run(o)
	h.settled(500, stop)
	if n := len(h.lines(told)); n != 500 {
		t.Errorf("log has %d lines, want 500", n)
	}
	if n := len(h.lines("no webhook is configured: poison is reported in the log only")); n != 1 {
		t.Errorf("log has %d warnings that nobody is told, want 1", n)
	}
}

func TestAWebhookThatComesBackGetsEveryNotice(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	var mu sync.Mutex
	seen := map[string]int{}
	h.hook.set(func(id string, _ *http.Request) int { // each is refused once
		mu.Lock()
		defer mu.Unlock()
		if seen[id]++; seen[id] == 1 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	h.poison("d", 12)
	stop := h.run(h.options())
	h.settled(12, stop)
	if notices, posts := h.hook.counts(); notices != 12 || posts != 12 {
		t.Errorf("webhook accepted %d POSTs of %d notices, want 12 of 12", posts, notices)
	}
	if n := len(h.lines(told)); n != 12 {
		t.Errorf("log has %d lines, want 12", n)
	}
}

func TestAWebhookThatFailsForEverHoldsUpNoOtherRecord(t *testing.T) {
	for name, answer := range map[string]func(r *http.Request) int{
		"by 500": func(*http.Request) int { return http.StatusInternalServerError },
		"by hanging": func(r *http.Request) int {
			<-r.Context().Done()
			return http.StatusInternalServerError
		},
		"by a redirect": func(*http.Request) int { return http.StatusFound },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, brokers.NewKfake(t))
			h.hook.set(func(id string, r *http.Request) int {
				if id == "d-0" || id == "d-1" { // the first of each partition
					return answer(r)
				}
				return http.StatusOK
			})
			h.poison("d", 40)
			o := h.options()
			o.Webhook.Timeout = 300 * time.Millisecond
			o.Webhook.GiveUp = 2 * time.Second
			reg := prometheus.NewRegistry()
			o.Registerer = reg
			stop := h.run(o)
			h.hook.await(38)
			h.settled(40, stop)
			if n := len(h.lines("nobody could be told of a discrepancy by webhook")); n != 2 {
				t.Errorf("log has %d errors, want 2:\n%s", n, h.log)
			}
			if got := metric(t, reg, "recon_dlq_escalations_total", "result", "failed"); got != 2 {
				t.Errorf("%v records are counted as failed, want 2", got)
			}
			if strings.Contains(h.log.String(), h.hook.srv.URL) {
				t.Error("the webhook's URL is in the log")
			}
		})
	}
}

func TestARestartInTheMiddleAuditsOnce(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		h := newHouse(t, b)
		gate := make(chan struct{})
		h.hook.set(func(id string, r *http.Request) int {
			if strings.HasSuffix(id, "5") {
				select {
				case <-gate:
				case <-r.Context().Done():
					return http.StatusInternalServerError
				}
			}
			return http.StatusOK
		})
		h.poison("d", 30)
		o := h.options()
		o.Webhook.Timeout = time.Second
		stop := h.run(o)
		h.hook.await(27)
		stop()
		close(gate)
		stop = h.run(h.options())
		h.settled(30, stop)
		if notices, _ := h.hook.counts(); notices != 30 {
			t.Errorf("webhook accepted %d notices, want 30", notices)
		}
		// A third finds nothing to do, and goes on counting where the second left off.
		stop = h.run(h.options())
		h.poison("late", 4)
		h.settled(34, stop)
		if notices, _ := h.hook.counts(); notices != 34 {
			t.Errorf("webhook accepted %d notices, want 34", notices)
		}
	})
}

func TestARebalanceBetweenTwoEscalatorsAuditsOnce(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		h := newHouse(t, b)
		h.hook.set(func(string, *http.Request) int { return http.StatusOK })
		first, second := h.options(), h.options()
		second.Instance = "two"
		stopFirst := h.run(first)
		h.poison("a", 100)
		h.hook.await(20)
		stopSecond := h.run(second)
		h.poison("bb", 100)
		h.hook.await(120)
		stopFirst()
		h.poison("ccc", 100)
		h.settled(300, stopSecond)
		if notices, _ := h.hook.counts(); notices != 300 {
			t.Errorf("webhook accepted %d notices, want 300", notices)
		}
	})
}

func TestAFaultOfTheClusterInTheMiddleAuditsOnce(t *testing.T) {
	for name, fault := range map[string]kfake.Fault{
		"end answered with an unknown error":            {Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.UnknownServerError, Count: 2},
		"end refused":                                   {Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.InvalidTxnState, Count: 2},
		"end timed out but done":                        {Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.RequestTimedOut, Count: 2},
		"offsets refused while the group rebalances":    {Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.RebalanceInProgress, Count: 2},
		"offsets refused for too long metadata":         {Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: 2},
		"one partition's offset refused, others staged": {Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Partitions: []int32{1}, Count: 2},
		"events refused":                                {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: 2},
		"progress cannot be read":                       {Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.GroupAuthorizationFailed, Count: 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := brokers.NewKfake(t)
			h := newHouse(t, b)
			h.poison("d", 20)
			handle := b.Cluster.Fault(fault)
			stop := h.run(h.options())
			h.settled(20, stop)
			if handle.Hits() == 0 {
				t.Error("the fault was never met")
			}
			if notices, _ := h.hook.counts(); notices != 20 {
				t.Errorf("webhook accepted %d notices, want 20", notices)
			}
		})
	}
}

// network lets a test cut all connections and refuse new ones.
type network struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
	dials int
}

func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, errors.New("network is down")
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		n.mu.Lock()
		n.conns = append(n.conns, c)
		n.mu.Unlock()
	}
	return c, err
}

func (n *network) set(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	if down {
		for _, c := range n.conns {
			_ = c.Close()
		}
		n.conns = nil
	}
}

func TestABrokerOutageIsWaitedOut(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	nw := new(network)
	o := h.options()
	o.Conn = append(o.Conn, kgo.Dialer(nw.dial), kgo.RetryTimeout(time.Second), kgo.RecordRetries(3))
	h.hook.set(func(id string, _ *http.Request) int {
		if id == "d-10" { // in the middle of the work
			nw.set(true)
		}
		return http.StatusOK
	})
	h.poison("d", 20)
	stop := h.run(o)
	h.hook.await(20)
	<-time.After(3 * time.Second) // of outage, to count what is tried in it
	nw.mu.Lock()
	dials := nw.dials
	nw.mu.Unlock()
	if dials > 500 {
		t.Errorf("%d dials in three seconds of outage", dials)
	}
	h.hook.set(nil)
	nw.set(false)
	h.settled(20, stop)
	if notices, _ := h.hook.counts(); notices != 20 {
		t.Errorf("webhook accepted %d notices, want 20", notices)
	}
}

func TestABrokerKilledInTheMiddleAuditsOnce(t *testing.T) {
	b := brokers.NewKafka(t, brokers.Options{}) // skipped with -short
	h := newHouse(t, b)
	reached := make(chan struct{})
	var once sync.Once
	h.hook.set(func(id string, _ *http.Request) int {
		if id == "d-100" {
			once.Do(func() { close(reached) })
		}
		return http.StatusOK
	})
	h.poison("d", 200)
	stop := h.run(h.options())
	<-reached
	b.Kill(1)
	if err := b.Start(1); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.settled(200, stop)
	// Those whose answers were under way when the partitions were lost may come twice.
	if notices, posts := h.hook.counts(); notices != 200 || posts > 200+8 {
		t.Errorf("webhook accepted %d POSTs of %d notices, want 200 of 200, and 8 more at most", posts, notices)
	}
}

func TestProgressThatCannotBeReadRefusesThePartition(t *testing.T) {
	for _, metadata := range []string{"", "v2;seq=1", "v1;seq=", "v1;seq=-1", "v1;seq=01", "v1;seq=1 ", "one of consumer-groups' making"} {
		t.Run(metadata, func(t *testing.T) {
			h := newHouse(t, brokers.NewKfake(t))
			h.poison("d", 10)
			commit(t, h, 0, 2, metadata)
			commit(t, h, 1, 2, escalation.FormatProgress(2))
			o := h.options()
			reg := prometheus.NewRegistry()
			o.Registerer = reg
			stop := h.run(o)
			events := h.events(3) // the rest of partition 1
			if n := len(h.lines("committed progress cannot be read, this partition is not escalated: commit its offset again with the metadata that the error names")); n != 1 {
				t.Errorf("log has %d errors, want 1:\n%s", n, h.log)
			}
			if got := metric(t, reg, "recon_dlq_escalation_refused_partitions"); got != 1 {
				t.Errorf("%v partitions are refused, want 1", got)
			}
			stop()
			for i, e := range events {
				if e.Input.Partition != 1 || e.Seq != int64(i)+3 {
					t.Errorf("event %d is of partition %d with seq %d", i, e.Input.Partition, e.Seq)
				}
			}
			if got := metric(t, reg, "recon_dlq_escalation_refused_partitions"); got != 0 {
				t.Errorf("%v partitions are refused after the stop, want 0", got)
			}
		})
	}
}

func TestRecordsDeletedBeforeTheirEscalationAreCountedAndSaid(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	h.poison("d", 20) // ten in each partition
	commit(t, h, 0, 2, escalation.FormatProgress(2))
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: h.names.Poison, Partition: 0, At: 6})
	offsets.Add(kadm.Offset{Topic: h.names.Poison, Partition: 1, At: 6}) // never begun: nobody knows of the loss
	deleted, err := kadm.NewClient(h.cons).DeleteRecords(t.Context(), offsets)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	o := h.options()
	reg := prometheus.NewRegistry()
	o.Registerer = reg
	stop := h.run(o)
	seqs := map[int32][]int64{}
	for _, e := range h.events(8) {
		seqs[e.Input.Partition] = append(seqs[e.Input.Partition], e.Seq)
	}
	stop()
	for _, s := range seqs {
		slices.Sort(s) // the audit topic keeps order by origin only
	}
	if want := "map[0:[3 4 5 6] 1:[1 2 3 4]]"; fmt.Sprint(seqs) != want {
		t.Errorf("seqs are %v, want %s", seqs, want)
	}
	if got := metric(t, reg, "recon_dlq_escalation_expired_total"); got != 4 {
		t.Errorf("%v records are counted as expired, want 4", got)
	}
	if n := len(h.lines("poison records were deleted before people were told: the topic's retention must be unlimited")); n != 1 {
		t.Errorf("log has %d errors, want 1:\n%s", n, h.log)
	}
	if n := len(h.lines("no progress is committed for this partition: people are told of all that is in it, also if they were told before")); n != 1 {
		t.Errorf("log has %d warnings, want 1:\n%s", n, h.log)
	}
}

func commit(t *testing.T, h *house, partition int32, at int64, metadata string) {
	t.Helper()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: h.names.Poison, Partition: partition, At: at, LeaderEpoch: -1, Metadata: metadata})
	if err := kadm.NewClient(h.cons).CommitAllOffsets(t.Context(), h.names.Group+escalation.GroupSuffix, offsets); err != nil {
		t.Fatal(err)
	}
}

func TestTwoProcessesOfOneNameStopWithTheName(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	var escalators []*escalation.Escalator
	for range 2 {
		e, err := escalation.New(h.options())
		if err != nil {
			t.Fatal(err)
		}
		e.RestartAfter(50 * time.Millisecond)
		escalators = append(escalators, e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 2)
	for _, e := range escalators {
		go func() { done <- e.Run(ctx) }()
	}
	n := 0
	for err := error(nil); err == nil; {
		h.poison("d", 4) // each transaction of one fences the other, or is fenced
		n += 4
		select {
		case err = <-done:
			if !errors.Is(err, escalation.ErrFenced) || !strings.Contains(err.Error(), `"one"`) {
				t.Fatalf("stopped with %v", err)
			}
		case <-time.After(200 * time.Millisecond):
			if n > 1000 {
				t.Fatalf("neither stops; log:\n%s", h.log)
			}
		}
	}
	h.events(n) // the other does it all
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the other stopped with %v", err)
	}
	h.settled(n)
}

func TestAMissingTopicIsNamedWithTheFix(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	o := h.options()
	o.Audit = "no.such.topic"
	logged := make(chan string, 10)
	o.Logger = slog.New(slog.NewTextHandler(writer(func(p []byte) {
		if strings.Contains(string(p), "escalation is interrupted") {
			select {
			case logged <- string(p):
			default:
			}
		}
	}), nil))
	h.run(o)
	select {
	case line := <-logged:
		if !strings.Contains(line, "no.such.topic") || !strings.Contains(line, "recon-dlq topics apply") {
			t.Errorf("log says %s", line)
		}
	case <-time.After(patience):
		t.Fatal("nothing is said of the missing topic")
	}
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestOptionsAreRefusedAllAtOnceAndWithoutTheURL(t *testing.T) {
	_, err := escalation.New(escalation.Options{Webhook: escalation.WebhookOptions{URL: "ftp://user:hunter2@example.com"}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"group", "poison", "audit", "source", "webhook.url"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%q shows the URL", err)
	}
}

func TestLagFallsToZero(t *testing.T) {
	h := newHouse(t, brokers.NewKfake(t))
	cl := brokers.Client(t, append(h.b.Opts(), kgo.TransactionalID(h.names.Prefix), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err := cl.BeginTransaction(); err != nil { // as the worker writes poison: a control record follows
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: h.names.Poison, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	o := h.options()
	reg := prometheus.NewRegistry()
	o.Registerer = reg
	stop := h.run(o)
	h.events(1)
	deadline := time.After(patience)
	for metric(t, reg, "recon_dlq_escalation_lag", "partition", "0") != 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("lag stays at %v", metric(t, reg, "recon_dlq_escalation_lag", "partition", "0"))
		}
	}
	stop()
	if got := metric(t, reg, "recon_dlq_escalation_lag", "partition", "0"); got != -1 {
		t.Errorf("lag of a partition that left is %v, want none", got)
	}
}

// A topic of the same name is another topic: its records are told of from the
// first one on, however far the old one was told of.
func TestAPoisonTopicThatIsMadeAnewIsToldOf(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		h := newHouse(t, b)
		h.poison("old", 20)
		stop := h.run(h.options())
		h.events(20)
		deleted, err := kadm.NewClient(h.cons).DeleteTopics(t.Context(), h.names.Poison)
		if err == nil {
			err = deleted.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		brokers.Create(t, b, partsN, map[string]string{"retention.ms": "-1"}, h.names.Poison)
		h.poison("fresh", 30)
		h.hook.await(50)
		h.events(50)
		stop()
		for i := range 30 {
			if id := fmt.Sprintf("fresh-%d", i); h.hook.ids[id] == 0 {
				t.Errorf("nobody was told of %s", id)
			}
		}
	})
}

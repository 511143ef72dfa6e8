// Package suite is the broker suite: the same tests on kfake, on Apache Kafka
// and, where an engine runs, on Apache Kafka in a container.
package suite

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

func TestMain(m *testing.M) {
	// Most of a test here is waiting for the timeouts of protocols: cores are no measure. -parallel still wins.
	flag.Set("test.parallel", "12") //nolint:errcheck // there is such a flag
	os.Setenv("GOGC", "100")        //nolint:errcheck // it is a valid name. The command run, called here, leaves this process's collector alone
	code := brokers.Main(m)
	if code == 0 {
		// Every worker of every test has ended: so must have all that it started.
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// bench is one test's cluster with its topics, policy and handlers.
type bench struct {
	t      *testing.T
	b      brokers.Broker
	names  brokers.Names
	rules  []policy.Rule
	parts  int32
	mux    *remedy.Mux
	target []consumer.Target
	tweak  func(*consumer.Options)

	mu    sync.Mutex
	calls map[string][]invariants.Call // by recon-id
}

// newBench makes topics with so many partitions and the tiers of delays, and a
// policy of one rule: attempts calls of the target "ledger", which h plays.
func newBench(t *testing.T, b brokers.Broker, partitions int32, attempts int, delays []time.Duration, h remedy.HandlerFunc) *bench {
	t.Helper()
	names := brokers.Topics(t, b, partitions, delays, nil)
	x := &bench{
		t: t, b: b, names: names, parts: partitions, mux: remedy.NewMux(), calls: map[string][]invariants.Call{},
		rules:  []policy.Rule{{Name: "default", Target: "ledger", Attempts: attempts, Delays: delays, MaxAge: time.Hour}},
		target: []consumer.Target{{Name: "ledger", Timeout: 5 * time.Second}},
	}
	x.mux.HandleFunc("ledger", func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		x.mu.Lock()
		x.calls[r.ID] = append(x.calls[r.ID], invariants.Call{At: time.Now(), Attempt: r.Attempt})
		x.mu.Unlock()
		return h(ctx, r)
	})
	return x
}

// worker is a running engine.
type worker struct {
	x    *bench
	c    *consumer.Consumer
	reg  *prometheus.Registry
	stop context.CancelFunc
	end  chan struct{}
	err  error
}

func (x *bench) options() consumer.Options {
	x.t.Helper()
	adm := kadm.NewClient(brokers.Client(x.t, x.b.Opts()...))
	meta, err := adm.BrokerMetadata(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	p, err := policy.New(policy.Options{Rules: x.rules})
	if err != nil {
		x.t.Fatal(err)
	}
	o := consumer.Options{
		Client: x.b.Opts(), Group: x.names.Group, ClusterID: meta.Cluster,
		Sources: []string{x.names.Source}, RetryPrefix: x.names.Retry, HoldPrefix: x.names.Hold, Poison: x.names.Poison, Audit: x.names.Audit,
		AuditPartitions: x.parts, Policy: p, Mux: x.mux, Targets: x.target,
		Registerer: prometheus.NewRegistry(),
	}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(x.t.Output(), nil))
	}
	if x.tweak != nil {
		x.tweak(&o)
	}
	return o
}

// start runs an engine; the test's end stops it.
func (x *bench) start() *worker {
	x.t.Helper()
	o := x.options()
	c, err := consumer.New(o)
	if err != nil {
		x.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &worker{x: x, c: c, reg: o.Registerer.(*prometheus.Registry), stop: stop, end: make(chan struct{})}
	go func() {
		defer close(w.end)
		w.err = c.Run(ctx)
	}()
	x.t.Cleanup(w.halt)
	return w
}

// halt stops the engine and waits for it.
func (w *worker) halt() {
	w.stop()
	select {
	case <-w.end:
	case <-time.After(60 * time.Second):
		w.x.t.Error("the worker did not stop within a minute")
	}
}

// value is a record's value.
func value(id string, fields string) []byte {
	if fields != "" {
		fields = "," + fields
	}
	return fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"amount_differs","context":{"account":"acct-17","secret":"s3cr3t-%s"},"enqueued_ms":0%s}`, id, id, fields)
}

// send produces source records, keyed by their ids.
func (x *bench) send(values ...[]byte) {
	x.t.Helper()
	rs := make([]*kgo.Record, len(values))
	for i, v := range values {
		rs[i] = &kgo.Record{Topic: x.names.Source, Key: fmt.Appendf(nil, "k%d", i), Value: v}
	}
	brokers.Produce(x.t, x.b, rs...)
}

func (x *bench) sendN(n int) {
	x.t.Helper()
	values := make([][]byte, n)
	for i := range values {
		values[i] = value(fmt.Sprintf("d-%06d", i), "")
	}
	x.send(values...)
}

// patience is how long eventually waits: far longer than anything takes, as
// machines are busy. PATIENCE shortens it where tests are expected to fail.
var patience = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("PATIENCE")); err == nil {
		return d
	}
	return 3 * time.Minute
}()

// eventually waits until ok, or fails the test saying what was waited for.
func (x *bench) eventually(what string, ok func() bool) {
	x.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			x.t.Fatalf("waited %s for: %s", patience, what)
		case <-tick.C:
		}
	}
}

// metric sums the samples of a metric, those with the label pairs if given.
func (w *worker) metric(name string, pairs ...string) float64 {
	w.x.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.x.t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabels(m, pairs) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, pairs []string) bool {
	for i := 0; i+1 < len(pairs); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == pairs[i] && l.GetValue() == pairs[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

// settled waits until the workers' counters say that n records have ended and
// nothing is left.
func (x *bench) settled(n int, ws ...*worker) {
	x.t.Helper()
	x.eventually(fmt.Sprintf("%d records settled", n), func() bool {
		ended, depth := 0.0, 0.0
		for _, w := range ws {
			ended += w.metric("resolved_total") + w.metric("poison_total")
			depth += w.metric("dlq_depth")
			select {
			case <-w.end:
				x.t.Fatalf("a worker ended: %v", w.err)
			default:
			}
		}
		return int(ended) >= n && depth == 0
	})
}

// check counts the invariants over all topics.
func (x *bench) check(settled bool) invariants.Report {
	x.t.Helper()
	x.mu.Lock()
	calls := x.calls
	x.mu.Unlock()
	rep, err := invariants.Check(x.t.Context(), x.b.Opts(), invariants.Spec{
		Sources: []string{x.names.Source}, RetryPrefix: x.names.Retry, HoldPrefix: x.names.Hold, Poison: x.names.Poison, Audit: x.names.Audit,
		Group: x.names.Group, Settled: settled, HandlerCalls: calls, Secrets: []string{"s3cr3t-"},
	})
	if err != nil {
		x.t.Fatal(err)
	}
	if len(rep.Faults) > 0 || rep.Lost > 0 || rep.Doubled > 0 {
		j, _ := json.MarshalIndent(rep, "", "  ") //nolint:errchkjson // numbers and strings
		x.t.Fatalf("invariants broken: %s", j)
	}
	return rep
}

var (
	resolved = deadletter.Outcome{Class: deadletter.Resolved}
	failing  = deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_500", Status: 500}
)

func suffix(id, s string) bool { return strings.HasSuffix(id, s) }

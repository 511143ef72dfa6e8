package suite

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	dlqworker "github.com/recon-dlq/recon-dlq/worker"
)

func TestDepthIsExactAtQuietPoints(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		release := make(chan struct{})
		x := newBench(t, b, 3, 2, []time.Duration{time.Hour}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			switch {
			case strings.HasPrefix(r.DiscrepancyID, "fails"):
				return failing
			case strings.HasPrefix(r.DiscrepancyID, "slow"):
				<-release
			}
			return resolved
		})
		x.target[0].Timeout = 20 * time.Second
		x.target[0].Breaker.Threshold = 64
		var values [][]byte
		for i := range 20 {
			values = append(values, value(fmt.Sprintf("fails-%d", i), ""), value(fmt.Sprintf("slow-%d", i), ""), value(fmt.Sprintf("good-%d", i), ""))
		}
		x.send(values...)
		w := x.start()
		tier := x.names.Tier(time.Hour)
		w.is(20, "resolved_total")
		w.is(20, "recon_dlq_inflight", "state", "waiting")
		for topic, want := range map[string]float64{x.names.Source: 20, tier: 20} {
			w.is(want, "dlq_depth", "topic", topic)
			if n := float64(x.unresolved(topic)); n != want {
				t.Errorf("%s holds %v unresolved records by count, dlq_depth is %v", topic, n, want)
			}
		}
		if n := w.metric("recon_dlq_holes"); n != 40 {
			t.Errorf("recon_dlq_holes is %v", n)
		}
		// It says the same after a restart, before anything is read again as after.
		close(release)
		w.is(40, "resolved_total")
		w.is(0, "dlq_depth", "topic", x.names.Source)
		w.halt()
		w = x.start()
		w.is(20, "recon_dlq_inflight", "state", "waiting")
		w.is(20, "dlq_depth")
		if n := x.unresolved(append(x.names.Tiers(), x.names.Source)...); n != 20 {
			t.Errorf("%d unresolved records by count", n)
		}
		w.halt()
		x.check(false)
	})
}

// unresolved counts the records of topics that no audit event ends.
func (x *bench) unresolved(topics ...string) int {
	x.t.Helper()
	n := len(x.read(topics...))
	for _, r := range x.read(x.names.Audit) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			x.t.Fatal(err)
		}
		if e.Type != audit.Enqueued && e.Type != audit.Escalated && slices.Contains(topics, e.Input.Topic) {
			n--
		}
	}
	return n
}

// transaction writes n records in one transaction, to each partition in turn.
func (x *bench) transaction(name string, n int, end kgo.TransactionEndTry) {
	x.t.Helper()
	cl := brokers.Client(x.t, append(x.b.Opts(), kgo.TransactionalID(x.names.Prefix+"-"+name), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))...)
	if err := cl.BeginTransaction(); err != nil {
		x.t.Fatal(err)
	}
	for i := range n {
		r := &kgo.Record{Topic: x.names.Source, Value: value(fmt.Sprintf("%s-%d", name, i), "")}
		if err := cl.ProduceSync(x.t.Context(), r).FirstErr(); err != nil {
			x.t.Fatal(err)
		}
	}
	if err := cl.EndTransaction(x.t.Context(), end); err != nil {
		x.t.Fatal(err)
	}
}

func TestMarkersAndAbortedRecordsAreNoDepthAndNoLag(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 2, 3, []time.Duration{200 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if strings.HasPrefix(r.DiscrepancyID, "aborted") {
				t.Errorf("called for %s", r.DiscrepancyID)
			}
			if suffix(r.DiscrepancyID, "2") && r.Attempt == 0 {
				return failing // so that the tiers have markers too
			}
			return resolved
		})
		x.transaction("aborted-first", 6, kgo.TryAbort)
		x.transaction("one", 6, kgo.TryCommit)
		x.transaction("aborted", 6, kgo.TryAbort)
		x.transaction("two", 6, kgo.TryCommit)
		x.transaction("aborted-last", 6, kgo.TryAbort)
		w := x.start()
		x.settled(12, w)
		w.is(0, "recon_dlq_consumer_lag")
		x.eventually("progress at the last stable offset everywhere", func() bool { return x.check(true).Lag == 0 })
		if n := w.metric("dlq_depth"); n != 0 {
			t.Errorf("dlq_depth is %v, and everything is done", n)
		}
		// The same while the worker watches.
		x.transaction("aborted-later", 4, kgo.TryAbort)
		x.transaction("three", 4, kgo.TryCommit)
		x.transaction("aborted-at-the-end", 4, kgo.TryAbort)
		x.settled(16, w)
		x.eventually("progress at the last stable offset everywhere", func() bool { return x.check(true).Lag == 0 })
		w.is(0, "dlq_depth")
		w.is(0, "recon_dlq_holes")
	})
}

func TestWhatAnOpenTransactionHidesIsShown(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
		cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID(x.names.Prefix+"-foreign"), kgo.DefaultProduceTopic(x.names.Source))...)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Value: value("open", "")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		x.send(value("behind it", ""))
		w := x.start()
		w.is(2, "recon_dlq_unstable_records", "topic", x.names.Source)
		x.eventually("its age", func() bool { return w.metric("recon_dlq_unstable_age_seconds", "topic", x.names.Source) > 0 })
		if n := w.metric("dlq_depth") + w.metric("resolved_total"); n != 0 {
			t.Errorf("%v records are seen behind an open transaction", n)
		}
		if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
		x.settled(2, w)
		w.is(0, "recon_dlq_unstable_records", "topic", x.names.Source)
		w.is(0, "recon_dlq_unstable_age_seconds", "topic", x.names.Source)
		x.check(true)
	})
}

func TestTheBrokersClockIsComparedWithTheWorkers(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		for _, behind := range []time.Duration{0, 20 * time.Second} {
			t.Run(fmt.Sprintf("behind by %s", behind), func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 3, 3, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
				x.sendN(30)
				w := x.launch(func(o *consumer.Options) {
					o.AtLeastOnce = behind > 0 // both modes compare
					o.Now = func() time.Time { return time.Now().Add(-behind) }
				})
				// An event that the other lane's hides tells nothing: the next one may.
				x.flow(w, 30, "the skew", func() bool { return w.c.Snapshot().ClockSkew != nil })
				if skew := w.metric("recon_dlq_clock_skew_seconds"); skew < behind.Seconds()-2 || skew > behind.Seconds()+2 {
					t.Errorf("recon_dlq_clock_skew_seconds is %v", skew)
				}
			})
		}
	})
}

func TestWhatHasNotBeenCountedIsAbsentAndNotZero(t *testing.T) {
	x := newBench(t, brokers.NewKfake(t), 1, 3, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	o := x.options()
	if _, err := consumer.New(o); err != nil {
		t.Fatal(err)
	}
	families, err := o.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, name := range []string{"dlq_depth", "dlq_oldest_age_ms", "recon_dlq_consumer_lag", "recon_dlq_clock_skew_seconds"} {
		if got[name] {
			t.Errorf("%s is there before the first assignment", name)
		}
	}
	for _, name := range []string{"poison_total", "resolved_total", "recon_dlq_retries_total", "recon_dlq_attempts_total"} {
		if !got[name] {
			t.Errorf("%s is a counter, and not there from the start", name)
		}
	}
}

// documented is a row of the table of docs/metrics.md.
type documented struct {
	kind   string
	labels map[string][]string // label: the values that are listed, if any
}

var (
	row     = regexp.MustCompile("^\\| `([a-z_]+)` \\| ([a-z ]+) \\|")
	labelOf = regexp.MustCompile("`([a-z_]+)`(?:: ((?:`[a-z_]+`(?:, )?)+))?")
	word    = regexp.MustCompile("`([a-z_]+)`")
	runbook = regexp.MustCompile(`\]\((runbooks/[A-Za-z]+\.md)\)`)
)

func readTable(t *testing.T, file string) map[string]documented {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]documented{}
	for line := range strings.Lines(string(text)) {
		m := row.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "| `") {
				t.Errorf("a row that cannot be read: %s", line)
			}
			continue
		}
		d := documented{kind: strings.TrimSpace(m[2]), labels: map[string][]string{}}
		cells := strings.Split(line, "|")
		for _, l := range labelOf.FindAllStringSubmatch(cells[4], -1) {
			d.labels[l[1]] = nil
			for _, v := range word.FindAllStringSubmatch(l[2], -1) {
				d.labels[l[1]] = append(d.labels[l[1]], v[1])
			}
		}
		if _, twice := table[m[1]]; twice {
			t.Errorf("%s is there twice", m[1])
		}
		table[m[1]] = d
		for _, link := range runbook.FindAllStringSubmatch(line, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), link[1])); err != nil {
				t.Errorf("%s: %v", m[1], err)
			}
		}
	}
	return table
}

func TestTheTableOfMetricsIsWhatAWorkerExports(t *testing.T) {
	table := readTable(t, "../../docs/metrics.md")
	if len(table) < 30 {
		t.Fatalf("%d rows could be read", len(table))
	}
	exported := exportedByAWorker(t)
	for name, d := range table {
		f := exported[name]
		if f == nil {
			t.Errorf("%s is documented, and a worker does not export it", name)
			continue
		}
		if kind := kindOf(f); kind != d.kind {
			t.Errorf("%s is documented as a %s, and is a %s", name, d.kind, kind)
		}
		for _, m := range f.GetMetric() {
			labels := map[string]bool{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
				if values := d.labels[l.GetName()]; len(values) > 0 && !slices.Contains(values, l.GetValue()) {
					t.Errorf("%s: the value %q of label %s is not documented", name, l.GetValue(), l.GetName())
				}
			}
			if want := slices.Sorted(maps.Keys(d.labels)); !slices.Equal(slices.Sorted(maps.Keys(labels)), want) {
				t.Errorf("%s has labels %v, documented are %v", name, slices.Sorted(maps.Keys(labels)), want)
				break
			}
		}
	}
	var customers []string
	for name := range exported {
		if _, ok := table[name]; !ok {
			t.Errorf("%s is exported, and not documented", name)
		}
		if !strings.HasPrefix(name, "recon_dlq_") {
			customers = append(customers, name)
		}
	}
	slices.Sort(customers)
	if want := []string{"dlq_depth", "dlq_oldest_age_ms", "poison_total", "resolved_total"}; !slices.Equal(customers, want) {
		t.Errorf("metrics without the product's prefix are %v, want exactly %v", customers, want)
	}
}

func kindOf(f *dto.MetricFamily) string {
	switch f.GetType() {
	case dto.MetricType_HISTOGRAM:
		for _, m := range f.GetMetric() {
			if m.GetHistogram().Schema == nil {
				return "histogram"
			}
		}
		return "native histogram"
	default:
		return strings.ToLower(f.GetType().String())
	}
}

// exportedByAWorker is what a whole worker exports after it has met a bit of
// everything; those of Go, the process and franz-go are left out.
func exportedByAWorker(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	b := brokers.NewKfake(t)
	n := brokers.NewNames(second)
	brokers.Create(t, b, 1, nil, n.Source)
	file := filepath.Join(t.TempDir(), "recon-dlq.yaml")
	dsn := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(dsn, []byte("postgres://127.0.0.1:1/"), 0o600); err != nil {
		t.Fatal(err)
	}
	yaml := fmt.Sprintf(`
kafka: {brokers: [%q], group: %s}
source: {topics: [%s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, state: %s, replication: 1}
targets:
  - {name: ledger, http: {url: "http://127.0.0.1:1"}}
  - {name: database, sql: {dsn_file: %q, statement: "select @id"}}
rules: [{name: default, target: ledger, attempts: 2, delays: [1s]}]
`, b.Addrs()[0], n.Group, n.Source, n.Retry, n.Hold, n.Poison, n.Audit, n.State, dsn)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Metrics.Listen = ""
	layout, _, err := dlqworker.Layout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cl := brokers.Client(t, b.Opts()...)
	changes, err := kafka.Plan(t.Context(), cl, layout)
	if err == nil {
		err = kafka.Apply(t.Context(), cl, changes)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := dlqworker.New(dlqworker.Options{
		Config: cfg, Version: "1.2.3", Logger: slog.New(slog.DiscardHandler),
		Handlers: map[string]remedy.Handler{"ledger": remedy.HandlerFunc(func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "bad" {
				return failing
			}
			return resolved
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-end; err != nil {
			t.Errorf("the worker ended: %v", err)
		}
	})
	brokers.Produce(t, b,
		&kgo.Record{Topic: n.Source, Value: value("good", "")}, &kgo.Record{Topic: n.Source, Value: value("bad", "")},
		&kgo.Record{Topic: n.Source, Value: value("forger", ""), Headers: []kgo.RecordHeader{{Key: deadletter.HeaderAttempt, Value: []byte("9")}}})

	// The clocks are compared only when the worker was the last to write to the trail, so it gets more to write.
	wanted := []string{"recon_dlq_clock_skew_seconds", "recon_dlq_consumer_lag", "recon_dlq_escalation_lag", "recon_dlq_escalations_total", "recon_dlq_unstable_records"}
	var exported map[string]*dto.MetricFamily
	var missing []string
	defer func() {
		if len(missing) > 0 {
			t.Errorf("not exported: %v", missing)
		}
	}()
	tries := 0
	(&bench{t: t}).eventually("a bit of everything", func() bool {
		if tries++; tries%50 == 0 {
			brokers.Produce(t, b, &kgo.Record{Topic: n.Source, Value: value("good", "")})
		}
		families, err := w.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		exported = map[string]*dto.MetricFamily{}
		for _, f := range families {
			if n := f.GetName(); !strings.HasPrefix(n, "go_") && !strings.HasPrefix(n, "process_") && !strings.HasPrefix(n, "recon_dlq_kafka_") {
				exported[n] = f
			}
		}
		missing = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return exported[name] != nil })
		settled := 0.0
		for _, name := range []string{"poison_total", "resolved_total", "recon_dlq_escalations_total"} {
			for _, m := range exported[name].GetMetric() {
				settled += m.GetCounter().GetValue()
			}
		}
		return settled >= 4 && len(missing) == 0
	})
	return exported
}

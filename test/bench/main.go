// Command bench measures the engine against the loops that people write by
// hand, side by side in one run: ratios, not absolute figures, because machines
// are noisy. Every contender reads the same records from a tier and writes the
// same outputs, one copy and one audit event each.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func main() {
	var b bench
	flag.IntVar(&b.records, "records", 100_000, "records per run")
	flag.IntVar(&b.reps, "reps", 5, "interleaved repetitions")
	flag.IntVar(&b.nodes, "nodes", 1, "brokers")
	only := flag.String("only", "", "contenders to run, comma-separated; empty: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the engine's runs here")
	flag.Parse()
	if err := b.run(*only, *profile); err != nil {
		log.Fatal(err)
	}
}

type bench struct {
	records, reps, nodes int
	kafka                *brokers.Kafka
	adm                  *kadm.Client
	cl                   *kgo.Client
	cluster              string
}

const (
	partitions = 6
	valueSize  = 1024
	hop        = time.Second      // the tier that is read
	next       = 10 * time.Second // the tier that is written
)

func (b *bench) run(only, profile string) error {
	var err error
	if b.kafka, err = brokers.StartKafka(brokers.Options{Nodes: b.nodes}); err != nil {
		return err
	}
	defer b.kafka.Stop()
	if b.cl, err = kgo.NewClient(append(b.kafka.Opts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...); err != nil {
		return err
	}
	defer b.cl.Close()
	b.adm = kadm.NewClient(b.cl)
	meta, err := b.adm.BrokerMetadata(context.Background())
	if err != nil {
		return err
	}
	b.cluster = meta.Cluster
	contenders := []struct {
		name string
		run  func(context.Context, names) (time.Duration, error)
	}{
		{"engine", b.engine},
		{"at-least-once loop", b.loop},
		{"GroupTransactSession loop", b.session},
	}
	took := map[string][]time.Duration{}
	for rep := range b.reps {
		for _, c := range contenders {
			if only != "" && !slices.Contains(strings.Split(only, ","), c.name) {
				continue
			}
			n, err := b.prepare(fmt.Sprintf("b%d", rep), c.name)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if profile != "" && c.name == "engine" {
				f, err := os.Create(profile)
				if err != nil {
					return err
				}
				if err := pprof.StartCPUProfile(f); err != nil {
					return err
				}
			}
			cpu := cpuTime()
			d, err := c.run(context.Background(), n)
			cpu = cpuTime() - cpu
			if profile != "" && c.name == "engine" {
				pprof.StopCPUProfile()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("%d %-26s %8.0f records/s %6.1f µs of CPU a record\n", rep, c.name, float64(b.records)/d.Seconds(), float64(cpu.Microseconds())/float64(b.records))
			took[c.name] = append(took[c.name], d)
			if _, err := b.adm.DeleteTopics(context.Background(), n.all()...); err != nil {
				return err
			}
		}
	}
	for _, c := range contenders[1:] {
		if len(took[c.name]) > 0 && len(took["engine"]) > 0 {
			fmt.Printf("engine / %s: %.2f\n", c.name, float64(median(took[c.name]))/float64(median(took["engine"])))
		}
	}
	return nil
}

// cpuTime is what this process has used, the brokers excluded.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(ds []time.Duration) time.Duration {
	ds = slices.Clone(ds)
	slices.Sort(ds)
	return ds[len(ds)/2]
}

type names struct{ prefix, group string }

func (n names) source() string { return n.prefix + ".dlq" }
func (n names) retry() string  { return n.prefix + ".dlq.retry." }
func (n names) in() string     { return n.retry() + policy.FormatDelay(hop) }
func (n names) out() string    { return n.retry() + policy.FormatDelay(next) }
func (n names) poison() string { return n.prefix + ".dlq.poison" }
func (n names) audit() string  { return n.prefix + ".dlq.audit" }
func (n names) all() []string {
	return []string{n.source(), n.in(), n.out(), n.poison(), n.audit()}
}

// prepare makes topics and fills the tier with records that are due.
func (b *bench) prepare(prefix, contender string) (names, error) {
	n := names{prefix: prefix + "-" + strings.ReplaceAll(contender, " ", "-")}
	n.group = n.prefix
	ctx := context.Background()
	made, err := b.adm.CreateTopics(ctx, partitions, int16(min(b.nodes, 3)), map[string]*string{"max.message.bytes": kadm.StringPtr("1114112")}, n.all()...)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		return n, err
	}
	value := fmt.Appendf(nil, `{"discrepancy_id":"d-0","category":"amount_differs","context":{"pad":%q},"enqueued_ms":0}`, strings.Repeat("x", valueSize-90))
	due := time.Now().Add(-time.Minute).UnixMilli()
	for i := range b.records {
		r := deadletter.Record{
			ID: fmt.Sprintf("%032x", i), Origin: fmt.Sprintf("%s/%d/%d", n.source(), i%partitions, i/partitions), Attempt: 1,
			Timestamp: due, Enqueued: due, FirstFailed: due, NotBefore: due, ErrorClass: "http_500",
		}
		var hs []kgo.RecordHeader
		for _, h := range r.Headers() {
			hs = append(hs, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		b.cl.Produce(ctx, &kgo.Record{Topic: n.in(), Partition: int32(i % partitions), Key: fmt.Appendf(nil, "k%d", i), Value: value, Headers: hs}, func(_ *kgo.Record, perr error) {
			if perr != nil {
				log.Println("prepare:", perr)
			}
		})
	}
	return n, b.cl.Flush(ctx)
}

// engine lets the product do it: the handler answers at once that the record is
// being worked on, so that each gets one copy and one event.
func (b *bench) engine(ctx context.Context, n names) (time.Duration, error) {
	p, err := policy.New(policy.Options{Rules: []policy.Rule{{Name: "default", Target: "noop", Attempts: 5, Delays: []time.Duration{hop, next}, MaxAge: time.Hour}}})
	if err != nil {
		return 0, err
	}
	mux := remedy.NewMux()
	started := make(chan time.Time, 1)
	mux.HandleFunc("noop", func(context.Context, *deadletter.Record) deadletter.Outcome {
		select {
		case started <- time.Now():
		default:
		}
		return deadletter.Outcome{Class: deadletter.InProgress, Cause: "in_progress"}
	})
	reg := prometheus.NewRegistry()
	c, err := consumer.New(consumer.Options{
		Client: b.kafka.Opts(), Group: n.group, ClusterID: b.cluster, Sources: []string{n.source()}, RetryPrefix: n.retry(), Poison: n.poison(), Audit: n.audit(),
		AuditPartitions: partitions, Policy: p, Mux: mux, Targets: []consumer.Target{{Name: "noop", Timeout: time.Second}}, Registerer: reg,
	})
	if err != nil {
		return 0, err
	}
	defer func() { report(reg) }()
	ctx, stop := context.WithCancel(ctx)
	end := make(chan error, 1)
	go func() { end <- c.Run(ctx) }()
	begin := <-started
	// The counter of copies says when all are committed; it is read rarely, as a scrape would.
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if n, err := copies(reg); err != nil || n >= b.records {
			break
		}
	}
	d := time.Since(begin)
	stop()
	return d, <-end
}

// outputs are what a hand-written loop produces for one record.
func (n names) outputs(r *kgo.Record) []*kgo.Record {
	hs := slices.Clone(r.Headers)
	for i := range hs {
		if hs[i].Key == deadletter.HeaderAttempt {
			hs[i].Value = []byte("2")
		}
	}
	event := fmt.Appendf(nil, `{"specversion":"1.0","id":"%x","source":"bench","type":"recon.dlq.retry_scheduled","subject":"d-0","time":"2026-12-01T00:00:00.000Z",`+
		`"datacontenttype":"application/json","data":{"origin":"%s/%d/%d","input":"%s/%d/%d","recon_id":"%032x","attempt":2,"category":"amount_differs","reason":"failed","rule":"default","seq":%d}}`,
		r.Offset, r.Topic, r.Partition, r.Offset, r.Topic, r.Partition, r.Offset, r.Offset, r.Offset)
	return []*kgo.Record{
		{Topic: n.out(), Key: r.Key, Value: r.Value, Headers: hs},
		{Topic: n.audit(), Partition: r.Partition, Key: r.Key, Value: event},
	}
}

func (b *bench) loopOpts(n names) []kgo.Opt {
	return append(b.kafka.Opts(),
		kgo.ConsumerGroup(n.group), kgo.ConsumeTopics(n.in()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxWait(250*time.Millisecond), kgo.ProducerLinger(0),
	)
}

const batch = 1000

// loop is the at-least-once loop: poll, produce, flush, commit.
func (b *bench) loop(ctx context.Context, n names) (time.Duration, error) {
	cl, err := kgo.NewClient(b.loopOpts(n)...)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	var begin time.Time
	for done := 0; done < b.records; {
		fs := cl.PollRecords(ctx, batch)
		if err := fs.Err(); err != nil {
			return 0, err
		}
		if begin.IsZero() && fs.NumRecords() > 0 {
			begin = time.Now()
		}
		var outs []*kgo.Record
		fs.EachRecord(func(r *kgo.Record) { outs = append(outs, n.outputs(r)...) })
		if err := cl.ProduceSync(ctx, outs...).FirstErr(); err != nil {
			return 0, err
		}
		if err := cl.CommitUncommittedOffsets(ctx); err != nil {
			return 0, err
		}
		cl.AllowRebalance()
		done += fs.NumRecords()
	}
	return time.Since(begin), nil
}

// session is the exactly-once loop on franz-go's GroupTransactSession.
func (b *bench) session(ctx context.Context, n names) (time.Duration, error) {
	s, err := kgo.NewGroupTransactSession(append(b.loopOpts(n), kgo.TransactionalID(n.group), kgo.TransactionTimeout(10*time.Second))...)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var begin time.Time
	for done := 0; done < b.records; {
		fs := s.PollRecords(ctx, batch)
		if err := fs.Err(); err != nil {
			return 0, err
		}
		if fs.NumRecords() == 0 {
			s.AllowRebalance()
			continue
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		if err := s.Begin(); err != nil {
			return 0, err
		}
		var outs []*kgo.Record
		fs.EachRecord(func(r *kgo.Record) { outs = append(outs, n.outputs(r)...) })
		if err := s.ProduceSync(ctx, outs...).FirstErr(); err != nil {
			return 0, err
		}
		ok, err := s.End(ctx, kgo.TryCommit)
		if err != nil {
			return 0, err
		}
		s.AllowRebalance()
		if ok {
			done += fs.NumRecords()
		}
	}
	return time.Since(begin), nil
}

// copies is how many copies the engine has committed.
func copies(reg *prometheus.Registry) (n int, err error) {
	families, err := reg.Gather()
	for _, f := range families {
		if f.GetName() == "recon_dlq_retries_total" {
			for _, m := range f.GetMetric() {
				n += int(m.GetCounter().GetValue())
			}
		}
	}
	return n, err
}

// report prints how the engine's transactions went.
func report(reg *prometheus.Registry) {
	families, err := reg.Gather()
	if err != nil {
		return
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "recon_dlq_transaction_duration_seconds":
				h := m.GetHistogram()
				fmt.Printf("  transactions %d, mean %.1f ms\n", h.GetSampleCount(), 1000*h.GetSampleSum()/float64(max(h.GetSampleCount(), 1)))
			case "recon_dlq_transactions_total":
				if v := m.GetCounter().GetValue(); v > 0 {
					fmt.Printf("  %s %.0f\n", m.GetLabel()[0].GetValue(), v)
				}
			}
		}
	}
}

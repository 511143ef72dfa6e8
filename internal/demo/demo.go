// Package demo is the main job on an embedded broker: a worker, wired as the run
// command wires it and configured by a file as a user writes it, settles the
// discrepancies of package data on the ledger of package ledger, over HTTP. The
// ledger goes down in the middle and comes back. At the end every record is
// accounted for by what is in the topics, and the ledger is compared with its
// source of truth.
//
// The broker is kfake, in this process: it is not durable, and no broker for
// anything but demos and tests.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/internal/demo/data"
	"github.com/recon-dlq/recon-dlq/internal/demo/ledger"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/invariants"
	"github.com/recon-dlq/recon-dlq/worker"
)

// Script is the course of a demo.
type Script struct {
	Records []data.Discrepancy // in the order of their arrival
	First   int                // how many of them are there before the worker starts
	Rate    int                // of the others, a second
	DownAt  int                // records that have found their end when the target goes down
	Outage  time.Duration      // for how long; 0: none
	Latency time.Duration      // of the target's calls
	// Faults says, by discrepancy id, how many first calls of a record fail; negative: all.
	Faults   map[string]int
	Patience time.Duration // for how long all of it may take before what is left is called unaccounted for
}

// DefaultScript is the whole set in about half a minute.
func DefaultScript() Script {
	s := Script{
		Records: data.Discrepancies(), First: 480, Rate: 60, DownAt: 420, Outage: 6 * time.Second,
		Latency: 20 * time.Millisecond, Patience: 3 * time.Minute,
	}
	s.Faults = faults(s.Records)
	return s
}

// faults makes every ninth record fail once, a few more often, and some always.
// Failing ones are apart: five in a row would look like an outage of the target.
func faults(records []data.Discrepancy) map[string]int {
	m := make(map[string]int)
	early := len(records) * 3 / 4 // who fails more often comes early, so that nobody waits for the last one's tiers
	for i, d := range records {
		switch {
		case i < early && i%300 == 10:
			m[d.ID] = -1
		case i < early && i%150 == 40:
			m[d.ID] = 3
		case i < early && i%60 == 22:
			m[d.ID] = 2
		case i%9 == 1:
			m[d.ID] = 1
		}
	}
	return m
}

// conf is the worker's configuration, as a user would write it. Attempts and
// delays are short, so that a retry is a matter of seconds; four calls at a time
// are few, so that there is something to see.
const conf = `# The configuration of a recon-dlq demo that is running now.
kafka:
  brokers: [%q]
  group: recon-dlq-demo
topics: {replication: 1}
limits: {concurrency: 4}
targets:
  - name: ledger
    http: {url: %q, timeout: 5s}
rules:
  - name: default
    target: ledger
    attempts: 4
    delays: [1s, 2s, 5s]
metrics: {listen: %q}
`

// demo is one running demo.
type demo struct {
	script Script
	log    *slog.Logger
	start  time.Time

	dir     string // of the configuration file
	file    string
	cluster *kfake.Cluster
	cl      *kgo.Client // produces
	ledger  *ledger.Ledger
	cfg     config.Config
	layout  kafka.Layout
	worker  *worker.Worker
	sampler *sampler // of the goroutine that plays the script

	stopWorker context.CancelFunc
	workerDone chan struct{} // closed when the worker has ended, with workerErr
	workerErr  error

	mu      sync.Mutex
	sent    []sent
	calls   map[string][]invariants.Call // that the target saw, by recon-id
	outages int
	down    time.Duration // of all outages
	backAt  time.Time     // when the present outage is to end
}

// sent is a record that the broker has taken.
type sent struct {
	discrepancy data.Discrepancy
	origin      string // topic/partition/offset
}

// begin starts broker, ledger and worker, with the first records in the source
// topic. Close what it returns.
func begin(ctx context.Context, script Script, log *slog.Logger, version string) (*demo, error) {
	d := &demo{script: script, log: log, start: time.Now(), calls: make(map[string][]invariants.Call), workerDone: make(chan struct{})}
	if err := d.begin(ctx, version); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *demo) begin(ctx context.Context, version string) (err error) {
	if d.cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("recon-dlq-demo")); err != nil {
		return fmt.Errorf("start the embedded broker: %w", err)
	}
	if d.ledger, err = ledger.New(ledger.Options{Latency: d.script.Latency, Faults: d.script.Faults, OnCall: d.called}); err != nil {
		return err
	}
	if err := d.ledger.Start("127.0.0.1:0"); err != nil {
		return err
	}
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	if err := d.configure(metrics.Addr().String()); err != nil {
		return errors.Join(err, metrics.Close())
	}
	if err := d.prepare(ctx); err != nil {
		return errors.Join(err, metrics.Close())
	}
	d.worker, err = worker.New(worker.Options{Config: d.cfg, Logger: d.log, Listener: metrics, Version: version})
	if err != nil {
		return errors.Join(err, metrics.Close())
	}
	d.sampler = newSampler(d)
	workerCtx, stop := context.WithCancel(context.WithoutCancel(ctx)) // close stops it, in order
	d.stopWorker = stop
	go func() {
		defer close(d.workerDone)
		d.workerErr = d.worker.Run(workerCtx)
	}()
	return nil
}

// configure writes the configuration file and loads it.
func (d *demo) configure(metrics string) (err error) {
	if d.dir, err = os.MkdirTemp("", "recon-dlq-"); err != nil {
		return fmt.Errorf("make a directory for the configuration: %w: set TMPDIR to one that can be written", err)
	}
	d.file = filepath.Join(d.dir, "demo.yaml")
	text := fmt.Sprintf(conf, d.cluster.ListenAddrs()[0], d.ledger.URL(), metrics)
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	d.cfg, err = config.Load(d.file, nil, nil)
	return err
}

// prepare makes the topics and sends the first records.
func (d *demo) prepare(ctx context.Context) (err error) {
	if d.layout, _, err = worker.Layout(d.cfg); err != nil {
		return err
	}
	conn := kafka.Conn{Brokers: d.cfg.Kafka.Brokers, ClientID: "recon-dlq-demo", Logger: d.log.With("client", "demo")}
	if d.cl, err = kgo.NewClient(conn.Opts()...); err != nil {
		return fmt.Errorf("open a client: %w", err)
	}
	changes, err := kafka.Plan(ctx, d.cl, d.layout)
	if err != nil {
		return err
	}
	if err := kafka.Apply(ctx, d.cl, changes); err != nil {
		return err
	}
	return d.send(ctx, d.script.Records[:min(d.script.First, len(d.script.Records))])
}

// send enqueues records as they are: the malformed ones, too.
func (d *demo) send(ctx context.Context, records []data.Discrepancy) error {
	rs := make([]*kgo.Record, len(records))
	of := make(map[*kgo.Record]data.Discrepancy, len(records))
	for i, r := range records {
		rs[i] = &kgo.Record{Topic: d.cfg.Source.Topics[0], Key: []byte(r.ID), Value: r.Value}
		of[rs[i]] = r
	}
	results := d.cl.ProduceSync(ctx, rs...)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range results {
		if r.Err != nil {
			return fmt.Errorf("enqueue %s: %w", of[r.Record].ID, r.Err)
		}
		d.sent = append(d.sent, sent{of[r.Record], origin(r.Record.Topic, r.Record.Partition, r.Record.Offset)})
	}
	return nil
}

func origin(topic string, partition int32, offset int64) string {
	return topic + "/" + strconv.Itoa(int(partition)) + "/" + strconv.FormatInt(offset, 10)
}

// called takes note of a call as the target sees it.
func (d *demo) called(h http.Header) {
	attempt, err := strconv.Atoi(h.Get("Ce-Reconattempt"))
	if err != nil {
		attempt = -1 // the invariants find no such attempt
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := h.Get("Idempotency-Key")
	d.calls[id] = append(d.calls[id], invariants.Call{At: time.Now(), Attempt: attempt})
}

// feed sends the records that are not there from the start, at the script's rate.
func (d *demo) feed(ctx context.Context) error {
	rest := d.script.Records[min(d.script.First, len(d.script.Records)):]
	const tick = 100 * time.Millisecond
	t := time.NewTicker(tick)
	defer t.Stop()
	for len(rest) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		n := min(len(rest), max(1, d.script.Rate*int(tick)/int(time.Second)))
		if err := d.send(ctx, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// breakDown takes the target down for the script's outage.
func (d *demo) breakDown(ctx context.Context) error {
	if err := d.ledger.Down(ledger.Refusing); err != nil {
		return err
	}
	began := time.Now()
	d.mu.Lock()
	d.outages++
	d.backAt = began.Add(d.script.Outage)
	d.mu.Unlock()
	t := time.NewTimer(d.script.Outage)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	if err := d.comeBack(); err != nil {
		return err
	}
	d.mu.Lock()
	d.down += time.Since(began)
	d.mu.Unlock()
	return ctx.Err()
}

// comeBack ends the outage. Another process can have got the ledger's port for a
// connection of its own meanwhile, so it tries for some seconds.
func (d *demo) comeBack() error {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for tries := 0; ; tries++ {
		err := d.ledger.Up()
		if err == nil || tries == 20 {
			return err
		}
		<-t.C
	}
}

// play runs the script until all is settled, patience ends, or ctx does.
// Observe is told the state a few times a second, from this goroutine.
func (d *demo) play(ctx context.Context, observe func(State)) (Summary, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var parts sync.WaitGroup
	run := func(f func(context.Context) error) {
		parts.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				fail(err)
			}
		})
	}
	defer parts.Wait()
	defer fail(nil) // before parts.Wait, so that it does not wait for the whole script
	run(d.feed)

	patience := time.NewTimer(d.script.Patience)
	defer patience.Stop()
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	broken := d.script.Outage == 0
	for settled := false; !settled; {
		s, err := d.sampler.sample(time.Now())
		if err != nil {
			return Summary{}, err
		}
		observe(s)
		if !broken && s.Resolved+s.Poison >= d.script.DownAt {
			broken = true
			run(d.breakDown)
		}
		settled = broken && s.TargetUp && s.settled()
		select {
		case <-ctx.Done():
			return Summary{}, context.Cause(ctx)
		case <-d.workerDone:
			return Summary{}, d.workerEnded()
		case <-patience.C:
			settled = true // the summary tells what is missing
		case <-t.C:
		}
	}
	last := d.sampler.last
	sum, err := d.summarize(ctx, last)
	if err != nil {
		return Summary{}, err
	}
	last.Settled = true
	observe(last)
	return sum, nil
}

// workerEnded says why the worker ended before it was told to. workerDone is closed.
func (d *demo) workerEnded() error {
	err := d.workerErr
	d.workerErr = nil // it is told: close need not
	if err != nil {
		return fmt.Errorf("the worker ended: %w", err)
	}
	return errors.New("the worker ended")
}

// stay keeps observing until ctx ends or the worker does.
func (d *demo) stay(ctx context.Context, observe func(State)) error {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.workerDone:
			return d.workerEnded()
		case <-t.C:
		}
		s, err := d.sampler.sample(time.Now())
		if err != nil {
			return err
		}
		s.Settled = true
		observe(s)
	}
}

// close stops everything in order: worker, clients, ledger, broker.
func (d *demo) close() error {
	var errs []error
	if d.stopWorker != nil {
		d.stopWorker()
		<-d.workerDone
		errs = append(errs, d.workerErr)
	}
	if d.cl != nil {
		d.cl.Close()
	}
	if d.ledger != nil {
		errs = append(errs, d.ledger.Close())
	}
	if d.cluster != nil {
		d.cluster.Close()
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

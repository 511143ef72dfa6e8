package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/worker"
)

// work is what an engine is to do. What is zero is the engine's default.
type work struct {
	Names       names
	Instance    string
	Concurrency int
	Timeout     time.Duration // of a handler call; 0: a second
	FirstStart  bool

	Counter string // of what is committed; the run ends when it says Until
	Until   int
}

const (
	retries  = "recon_dlq_retries_total"
	resolved = "resolved_total"

	target = "bench"
)

// counter finds the one counter of the engine that a run ends by. The others,
// and the gauges, which are computed under the engine's lock, are not read at all.
type counter struct {
	prometheus.Registerer
	name string
	is   prometheus.Collector
}

func (c *counter) Register(x prometheus.Collector) error {
	for _, d := range drain(x.Describe) {
		if strings.Contains(d.String(), "fqName: "+strconv.Quote(c.name)+",") {
			c.is = x
		}
	}
	return nil
}

// value is the counter's, over all its labels.
func (c *counter) value() (n int, err error) {
	for _, m := range drain(c.is.Collect) {
		var d dto.Metric
		err = errors.Join(err, m.Write(&d))
		n += int(d.GetCounter().GetValue())
	}
	return n, err
}

// drain is what f sends.
func drain[T any](f func(chan<- T)) (all []T) {
	ch := make(chan T, 100) // more than a collector of the engine's counters and descriptions has
	f(ch)
	close(ch)
	for x := range ch {
		all = append(all, x)
	}
	return all
}

// progressEvery is how often the engine's counter is read, and so how exact the
// end of a run is: a third of a percent of three seconds.
const progressEvery = 10 * time.Millisecond

// runEngine lets the product do the work and returns how long it took, from the
// first call of a handler until what the last one asked for was committed.
func runEngine(ctx context.Context, client []kgo.Opt, cluster string, w work, h remedy.HandlerFunc) (time.Duration, error) {
	p, err := policy.New(policy.Options{Rules: []policy.Rule{{Name: "default", Target: target, Attempts: 5, Delays: w.Names.Delays, MaxAge: 24 * time.Hour}}})
	if err != nil {
		return 0, err
	}
	mux := remedy.NewMux()
	started := make(chan time.Time, 1)
	mux.HandleFunc(target, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		if len(started) == 0 {
			select {
			case started <- time.Now():
			default:
			}
		}
		return h(ctx, r)
	})
	count := &counter{name: w.Counter}
	if w.Timeout == 0 {
		w.Timeout = time.Second
	}
	n := w.Names
	c, err := consumer.New(consumer.Options{
		Client: client, Group: n.Group, Instance: w.Instance, ClusterID: cluster,
		Sources: []string{n.source()}, RetryPrefix: n.retry(), Poison: n.poison(), Audit: n.audit(), AuditPartitions: partitions,
		Policy: p, Mux: mux, Targets: []consumer.Target{{Name: target, Timeout: w.Timeout}},
		Concurrency: w.Concurrency, FirstStart: w.FirstStart, Registerer: count,
	})
	if err != nil {
		return 0, err
	}
	if count.is == nil {
		return 0, fmt.Errorf("the engine has no counter %q", w.Counter)
	}
	worker.TuneMemory(64 << 20) // as the command does with the default budget
	defer debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetGCPercent(100)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	end := make(chan error, 1)
	go func() { end <- c.Run(ctx) }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-end:
			if err == nil {
				err = context.Cause(ctx)
			}
			return 0, fmt.Errorf("the engine ended before its work: %w", err)
		case <-tick.C:
		}
		n, err := count.value()
		if err != nil {
			return 0, err
		}
		if w.Until > 0 && n >= w.Until {
			done := time.Now()
			stop()
			return done.Sub(<-started), <-end
		}
	}
}

// inProgress is the answer of a handler that does nothing: one copy, one event.
func inProgress(context.Context, *deadletter.Record) deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.InProgress, Cause: "in_progress"}
}

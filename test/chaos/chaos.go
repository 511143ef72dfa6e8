package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// run makes one run on a fresh cluster and says what it found. Everything it
// starts has ended when it returns.
func run(ctx context.Context, kafka *brokers.Kafka, o options, progress io.Writer) *result {
	r := &result{Seed: o.seed, Workers: o.workers, Nodes: o.nodes, Kafka: brokers.KafkaVersion, Delivery: string(o.delivery)}
	began := time.Now()
	dir, err := os.MkdirTemp("", "recon-dlq-chaos-")
	if err != nil {
		r.fault("%v", err)
		return r
	}
	x := &arena{dir: dir, kafka: kafka, o: o, out: progress, trail: newTrail(), want: expect(o.records), r: r}
	if err := x.play(ctx); err != nil {
		r.fault("%v", err)
	}
	x.clear()
	r.Wall = time.Since(began)
	if len(r.Faults) == 0 && !o.keep {
		_ = os.RemoveAll(dir) // only logs
		return r
	}
	_ = os.Remove(x.binary)
	_ = os.WriteFile(filepath.Join(dir, "kafka.log"), []byte(kafka.Logs(5000)), 0o600)
	if f, err := os.Create(filepath.Join(dir, "result.json")); err == nil {
		_ = writeJSON(f, r)
		f.Close()
	}
	r.Kept = dir
	return r
}

// arena is one run.
type arena struct {
	dir     string
	kafka   *brokers.Kafka
	o       options
	out     io.Writer // progress, for people
	want    expected
	trail   *trail
	r       *result
	binary  string
	target  *child
	url     string
	workers []*worker
	cancel  context.CancelCauseFunc // ends the run with a fault
	tasks   sync.WaitGroup          // producer, follower, disk watch, faults
	blows   sync.WaitGroup          // faults that are at work
	began   time.Time               // of producing
}

func (x *arena) say(format string, args ...any) { fmt.Fprintf(x.out, format+"\n", args...) }

// play makes the run until all is done and counted; an error ends it before.
func (x *arena) play(ctx context.Context) error {
	ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.cancel(nil)
	if err := x.setUp(ctx); err != nil {
		return err
	}
	if err := x.work(ctx); err != nil {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.Canceled) {
			return errors.New("interrupted")
		}
		if cause != nil {
			err = cause
		}
		return errors.Join(fmt.Errorf("%w (seed %d)", err, x.o.seed), x.stuckWhere())
	}
	for _, w := range x.workers {
		if err := w.stop(); err != nil {
			x.r.fault("%v", err)
		}
	}
	return x.count(ctx)
}

// setUp builds the worker and makes topics, target and workers.
func (x *arena) setUp(ctx context.Context) (err error) {
	x.binary = filepath.Join(x.dir, "recon-dlq")
	if err := build(ctx, x.binary, x.o.race); err != nil {
		return err
	}
	if x.target, x.url, err = startTarget(filepath.Join(x.dir, "target.log"), x.o.records); err != nil {
		return err
	}
	for n := 1; n <= x.o.workers; n++ {
		w, err := newWorker(x.dir, x.binary, n, x.kafka.Addrs(), x.url, x.o)
		if err != nil {
			return err
		}
		w.ended = func(w *worker, how string) {
			x.cancel(fmt.Errorf("worker %s ended by itself (%s): see %s", w.name, how, w.log))
		}
		x.workers = append(x.workers, w)
	}
	cmd := exec.CommandContext(ctx, x.binary, "topics", "apply", "--config", x.workers[0].config)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("topics apply: %w: %s", err, out)
	}
	return nil
}

// work lets the workers work and hurts them, until everything has its end.
func (x *arena) work(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer x.tasks.Wait()
	defer cancel()
	x.began = time.Now()
	x.task(func() error { return produce(ctx, x.kafka.Opts(), x.o) })
	x.task(func() error { return x.trail.follow(ctx, x.kafka.Opts()) })
	x.task(func() error { return x.watchDisk(ctx) })
	for _, w := range x.workers {
		if err := w.start(); err != nil {
			return err
		}
	}
	todo := plan(rand.New(rand.NewPCG(x.o.seed, 0)), killed, x.o.kills, len(x.workers), x.o.records)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	report := time.NewTicker(5 * time.Second)
	defer report.Stop()
	var last standing
	moved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-report.C:
			x.say("%5.0fs  %d of %d records have their end, %d escalated, %d of %d faults begun",
				time.Since(x.began).Seconds(), last.ended, x.o.records, last.escalated, x.o.kills-len(todo), x.o.kills)
		case <-tick.C:
			s := x.trail.standing()
			for len(todo) > 0 && todo[0].at <= s.effects {
				x.strike(ctx, todo[0])
				todo = todo[1:]
			}
			if s.events > last.events {
				moved = time.Now()
			}
			last = s
			if time.Since(moved) > x.o.stall {
				return fmt.Errorf("nothing has become visible for %s: %d of %d records have their end, %d of %d poison records are escalated",
					x.o.stall, s.ended, x.o.records, s.escalated, x.want.poisoned)
			}
			if s.ended < x.o.records || s.escalated < x.want.poisoned || len(todo) > 0 {
				continue
			}
			x.r.Settled = time.Since(x.began)
			x.r.LongestStall, x.r.StalledAt = s.stall.took, s.stall.from.Sub(x.began)
			x.r.PerSecond = float64(x.o.records) / x.r.Settled.Seconds()
			x.blows.Wait() // the last may still have to heal
			return context.Cause(ctx)
		}
	}
}

// task runs f beside the run; its error ends the run.
func (x *arena) task(f func() error) {
	x.tasks.Go(func() {
		if err := f(); err != nil {
			x.cancel(err)
		}
	})
}

// strike lets a blow happen, after those on the same worker that came before.
func (x *arena) strike(ctx context.Context, b blow) {
	x.blows.Add(1)
	x.task(func() error {
		defer x.blows.Done()
		if err := rest(ctx, b.delay); err != nil {
			return err
		}
		w := x.workers[b.worker]
		w.mu.Lock()
		defer w.mu.Unlock()
		x.say("%5.0fs  %s %s, back in %s", time.Since(x.began).Seconds(), b.fault.name, w.name, b.pause.Round(time.Millisecond))
		if err := b.fault.strike(ctx, w, b.pause); err != nil {
			return fmt.Errorf("%s %s: %w", b.fault.name, w.name, err)
		}
		x.trail.mu.Lock()
		x.r.Kills++
		x.trail.mu.Unlock()
		return nil
	})
}

// watchDisk ends the run when the cluster holds too much.
func (x *arena) watchDisk(ctx context.Context) error {
	cl, err := kgo.NewClient(x.kafka.Opts()...)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for rest(ctx, 2*time.Second) == nil {
		dirs, err := adm.DescribeAllLogDirs(ctx, nil)
		if err != nil {
			continue // a node may be away; the next look tells
		}
		var size int64
		dirs.Each(func(d kadm.DescribedLogDir) { size += d.Size() })
		if size > x.o.disk {
			return fmt.Errorf("the cluster holds %d MiB, more than -disk allows", size>>20)
		}
	}
	return nil
}

// stuckWhere examines the workers of a run that does not go on, and keeps what
// the target saw.
func (x *arena) stuckWhere() error {
	var b strings.Builder
	for _, w := range x.workers {
		if w.proc != nil {
			b.WriteString(w.examine())
		}
	}
	if err := saveCalls(x.url, filepath.Join(x.dir, "calls.log")); err != nil {
		fmt.Fprintf(&b, "  %v\n", err)
	}
	return fmt.Errorf("the workers say:\n%s", strings.TrimRight(b.String(), "\n"))
}

// count counts the invariants over all topics, and what the target saw.
func (x *arena) count(ctx context.Context) error {
	calls, err := callsOf(ctx, x.url)
	if err != nil {
		return err
	}
	report, err := invariants.Check(ctx, x.kafka.Opts(), invariants.Spec{
		Sources: []string{sourceTopic}, RetryPrefix: retryPrefix, HoldPrefix: holdPrefix, Poison: poisonTopic, Audit: auditTopic,
		Group: group, Settled: true, Escalated: true, AtLeastOnce: x.o.delivery == config.AtLeastOnce, HandlerCalls: calls,
	})
	if err != nil {
		return err
	}
	r := x.r
	r.Records, r.Resolved, r.Retried, r.Poisoned, r.Escalated = report.Records, report.Resolved, report.Retried, report.Poisoned, report.Escalated
	r.Lost, r.Doubled, r.Early, r.Lateness = report.Lost, report.Doubled, report.Early, report.Lateness
	for _, cs := range calls {
		r.Calls += len(cs)
	}
	r.RunAgain = runAgain(calls)
	r.Faults = append(r.Faults, report.Faults...)
	if more := report.FaultCount - len(report.Faults); more > 0 {
		r.fault("and %d more", more)
	}
	// The target's answers are known, and so is what must come of them.
	if r.Records != x.o.records {
		r.fault("%d records arrived, %d were produced", r.Records, x.o.records)
	}
	if w := x.want; x.o.delivery == config.ExactlyOnce && (r.Resolved != w.resolved || r.Poisoned != w.poisoned || r.Retried > w.retried) {
		r.fault("resolved %d, poisoned %d, retried %d, want %d, %d and at most %d", r.Resolved, r.Poisoned, r.Retried, w.resolved, w.poisoned, w.retried)
	}
	return nil
}

// clear ends all processes that are left.
func (x *arena) clear() {
	for _, w := range x.workers {
		w.end()
	}
	if x.target != nil {
		x.target.kill()
	}
}

// build makes the worker's binary from the module that holds this package.
func build(ctx context.Context, binary string, race bool) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w: run it inside of the repository", err)
	}
	args := []string{"build", "-o", binary}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/recon-dlq")...)
	cmd.Dir = string(bytes.TrimSpace(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the worker: %w: %s", err, out)
	}
	return nil
}

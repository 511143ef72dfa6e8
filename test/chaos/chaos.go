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
	r := &result{Seed: o.seed, Workers: o.workers, Static: o.static, Nodes: o.nodes, Kafka: kafka.Version(), TransactionVersion: o.txn, Delivery: string(o.delivery)}
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
	nodes   sync.Mutex              // held by the fault that is at work on a node: one at a time

	mu      sync.Mutex
	history []struck   // guarded by mu; complete once blows are over
	samples [][]sample // by worker, of what is in flight; guarded by mu
}

// struck is a fault that happened.
type struck struct {
	fault    fault
	victim   string
	from, to time.Time // to is when it was healed
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
		addrs, way := x.kafka.Addrs(), (*path)(nil)
		if x.o.length > 0 { // some faults need a way that can be cut
			doors := x.kafka.Doors(n - 1)
			if way, err = newPath(doors); err != nil {
				return err
			}
			for i, door := range doors {
				addrs[i] = door.Proxy
			}
		}
		w, err := newWorker(x.dir, x.binary, n, addrs, x.url, x.o)
		if err != nil {
			return err
		}
		w.path = way
		w.ended = func(w *worker, how string) {
			x.cancel(fmt.Errorf("worker %s ended by itself (%s): see %s", w.name, how, w.log))
		}
		x.workers = append(x.workers, w)
	}
	w := x.workers[0]
	cmd := exec.CommandContext(ctx, x.binary, "topics", "apply", "--config", w.config)
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
	if x.o.delivery == config.AtLeastOnce {
		x.samples = make([][]sample, len(x.workers))
		x.task(func() error { return x.watchInflight(ctx) })
	}
	todo := x.plan()
	blows := len(todo)
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
				time.Since(x.began).Seconds(), last.ended, x.o.records, last.escalated, blows-len(todo), blows)
		case <-tick.C:
			s := x.trail.standing()
			for len(todo) > 0 && todo[0].at <= s.effects && todo[0].after <= time.Since(x.began) {
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
			x.r.PerSecond = float64(x.o.records) / x.r.Settled.Seconds()
			x.blows.Wait() // the last may still have to heal
			x.tell(s.stall)
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

// plan says which faults will happen.
func (x *arena) plan() []blow {
	rng := rand.New(rand.NewPCG(x.o.seed, 0))
	if x.o.length > 0 {
		return planByTime(rng, x.o.length, x.o.every, len(x.workers), x.o.nodes)
	}
	return planByEffects(rng, killed, x.o.kills, len(x.workers), x.o.records)
}

// strike lets a blow happen as soon as it has a victim that nothing else is
// happening to.
func (x *arena) strike(ctx context.Context, b blow) {
	x.blows.Add(1)
	x.task(func() error {
		defer x.blows.Done()
		if err := rest(ctx, b.delay); err != nil {
			return err
		}
		var hurt func() error
		s := struck{fault: b.fault}
		if b.fault.node != nil {
			x.nodes.Lock()
			defer x.nodes.Unlock()
			s.victim = fmt.Sprintf("node %d", b.victim+1)
			hurt = func() error {
				if err := b.fault.node(ctx, x, b.victim+1, b.pause); err != nil {
					return err
				}
				return x.replicated(ctx)
			}
		} else {
			w := x.free(b.victim)
			defer w.mu.Unlock()
			s.victim = w.name
			hurt = func() error { return b.fault.worker(ctx, w, b.pause) }
		}
		s.from = time.Now()
		if x.o.length > 0 && s.from.Sub(x.began) > x.o.length || ctx.Err() != nil {
			return nil // it came too late
		}
		x.say("%5.0fs  %s %s for %s", s.from.Sub(x.began).Seconds(), s.fault.name, s.victim, b.pause.Round(time.Millisecond))
		if err := hurt(); err != nil {
			return fmt.Errorf("%s %s: %w", s.fault.name, s.victim, err)
		}
		s.to = time.Now()
		x.mu.Lock()
		defer x.mu.Unlock()
		x.history = append(x.history, s)
		return nil
	})
}

// free returns a worker, locked: the nth, or one after it if a fault is at work there.
func (x *arena) free(n int) *worker {
	for i := range x.workers {
		if w := x.workers[(n+i)%len(x.workers)]; w.mu.TryLock() {
			return w
		}
	}
	w := x.workers[n]
	w.mu.Lock()
	return w
}

// reach says to all workers' paths whether a node is there.
func (x *arena) reach(node int, there bool) error {
	for _, w := range x.workers {
		if err := w.path.node(node-1, there); err != nil {
			return err
		}
	}
	return nil
}

// replicated waits until every replica of every partition is in sync again.
func (x *arena) replicated(ctx context.Context) error {
	cl, err := kgo.NewClient(append(x.kafka.Opts(), kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for {
		meta, err := adm.Metadata(ctx)
		behind := err != nil
		meta.Topics.EachPartition(func(p kadm.PartitionDetail) {
			behind = behind || p.Err != nil || len(p.ISR) < len(p.Replicas)
		})
		if !behind {
			return nil
		}
		if err := rest(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// tell says what happened, and what was happening in the longest stall.
func (x *arena) tell(longest stall) {
	r := x.r
	r.Struck = make(map[string]int)
	r.LongestStall, r.StalledAt = longest.took, longest.from.Sub(x.began)
	for _, s := range x.history {
		r.Struck[s.fault.name]++
		if s.from.Before(longest.from.Add(longest.took)) && s.to.After(longest.from) {
			r.StalledBy = append(r.StalledBy, fmt.Sprintf("%s %s from %s to %s", s.fault.name, s.victim,
				s.from.Sub(x.began).Round(100*time.Millisecond), s.to.Sub(x.began).Round(100*time.Millisecond)))
		}
	}
	r.Met = make(map[string]int)
	for _, w := range x.workers {
		if err := errorsMet(w.log, r.Met); err != nil {
			r.fault("%v", err)
		}
		r.LongestStop = max(r.LongestStop, w.longestStop)
		r.GaveUp += w.gaveUp
	}
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
	// A record that was in flight can have two enqueued events and two effects.
	if r.DoubledBound = 2 * x.inflightAtFaults(); x.o.delivery == config.AtLeastOnce && r.Doubled > r.DoubledBound {
		r.fault("%d doubled, and no more than %d were in flight at the faults", r.Doubled, r.DoubledBound)
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
		if w.path != nil {
			w.path.shut()
		}
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

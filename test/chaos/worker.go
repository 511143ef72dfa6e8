package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What the workers work on.
const (
	group       = "chaos"
	sourceTopic = "recon.dlq"
	retryPrefix = "recon.dlq.retry."
	holdPrefix  = "recon.dlq.hold."
	poisonTopic = "recon.dlq.poison"
	auditTopic  = "recon.dlq.audit"
)

// grace is how long a worker may take to end after SIGTERM.
const grace = 40 * time.Second

// worker is one process of the real binary, started again and again.
type worker struct {
	name    string
	binary  string
	config  string                      // file
	log     string                      // file
	metrics string                      // host:port
	path    *path                       // to the cluster; nil if it is a straight one
	ended   func(w *worker, how string) // called when a process ends that nobody ended

	mu          sync.Mutex    // held by the fault that is at work, and to stop
	proc        *child        // the last process; guarded by mu
	longestStop time.Duration // from SIGTERM to the end; guarded by mu
	gaveUp      int           // starts that met a cluster which could not be reached; guarded by mu
	over        bool          // it is not started again; guarded by mu
}

// supervise is how long a worker that gave up starting is left alone, as an
// orchestrator would.
const supervise = time.Second

// gaveUp reports whether a process has ended because the cluster did not answer
// its start checks as it should: it says so and ends, for whoever has mistyped an
// address wants to know. What has begun to work does not end for that.
func gaveUp(p *child) bool {
	const says = "recon-dlq: " // what begins the error that a process ends with; it can have several lines
	words := "\n" + p.lastWords()
	i := strings.LastIndex(words, "\n"+says)
	if i < 0 {
		return false
	}
	why := words[i+1+len(says):]
	return !strings.HasPrefix(why, "worker: ") && !strings.HasPrefix(why, "escalation: ")
}

// newWorker writes the configuration of worker number n.
func newWorker(dir, binary string, n int, brokers []string, target string, o options) (*worker, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("w%d", n)
	w := &worker{
		name: name, binary: binary, metrics: fmt.Sprintf("127.0.0.1:%d", port),
		config: filepath.Join(dir, name+".yaml"), log: filepath.Join(dir, name+".log"),
	}
	instance := ""
	if o.static {
		instance = name
	}
	replication := min(o.nodes, 3)
	text := fmt.Sprintf(`kafka: {brokers: [%s], group: %s, instance: %q}
source: {topics: [%s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, replication: %d, partitions: %d}
delivery: %s
targets:
  - name: ledger
    http: {url: %q, timeout: 5s}
rules:
  - {name: late-bookings, match: {category: missing_in_target}, attempts: 5, delays: [2s]}
  - {name: default, attempts: 5, delays: [1s, 2s]}
metrics: {listen: %q}
`, strings.Join(brokers, ", "), group, instance, sourceTopic, retryPrefix, holdPrefix, poisonTopic, auditTopic,
		replication, partitions, o.delivery, target, w.metrics)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return w, nil
}

// start starts the worker's process. Callers hold mu, or the worker is not shared yet.
func (w *worker) start() error {
	if w.over {
		return nil
	}
	cmd := exec.Command(w.binary, "run", "--config", w.config)
	cmd.Env = environment()
	p, err := startChild(cmd, w.log)
	if err != nil {
		return err
	}
	w.proc = p
	go func() {
		<-p.done
		switch {
		case p.expected.Load():
		case w.path != nil && gaveUp(p):
			w.restart(p)
		default:
			w.ended(w, p.cmd.ProcessState.String())
		}
	}()
	return nil
}

// restart starts the worker again if its last process is still p.
func (w *worker) restart(p *child) {
	_ = rest(context.Background(), supervise)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.proc != p {
		return
	}
	w.gaveUp++
	if err := w.start(); err != nil {
		w.ended(w, err.Error())
	}
}

// stop asks the worker to end and says how it did.
func (w *worker) stop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.terminate()
}

// terminate is stop for a caller that holds mu.
func (w *worker) terminate() error {
	began := time.Now()
	// A process that has not said a word yet had not begun: the signal killed it.
	if err := w.proc.terminate(grace); err != nil && !gaveUp(w.proc) && w.proc.lastWords() != "" {
		return fmt.Errorf("worker %s did not stop in order: %w: see %s", w.name, err, w.log)
	}
	w.longestStop = max(w.longestStop, time.Since(began))
	return nil
}

// end kills the worker's process if there is one.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.proc != nil {
		w.proc.kill()
	}
}

// examine writes what the worker can still tell of itself: its metrics to a file
// and, as it is killed with SIGQUIT, its goroutines to its log. It returns the
// metrics that say where records are.
func (w *worker) examine() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	metrics, err := scrape(context.Background(), w.metrics, 5*time.Second)
	if err != nil {
		metrics = "no metrics: " + err.Error()
	}
	_ = os.WriteFile(strings.TrimSuffix(w.log, ".log")+".metrics", []byte(metrics), 0o600)
	w.proc.expected.Store(true)
	_ = w.proc.cmd.Process.Signal(syscall.SIGQUIT)
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-w.proc.done:
	case <-timer.C:
		w.proc.kill()
	}
	telling := []string{"dlq_depth{", "recon_dlq_inflight{", "recon_dlq_partition_state{", "recon_dlq_breaker_state{", "recon_dlq_unstable_records{", "recon_dlq_transactions_total{", "no metrics"}
	var b strings.Builder
	for line := range strings.Lines(metrics) {
		for _, prefix := range telling {
			if strings.HasPrefix(line, prefix) && !strings.HasSuffix(line, " 0\n") && !strings.Contains(line, `"active"`) {
				fmt.Fprintf(&b, "  %s %s\n", w.name, strings.TrimSpace(line))
			}
		}
	}
	return b.String()
}

func scrape(ctx context.Context, addr string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return string(body), err
}

// environment is ours without what would configure a worker.
func environment() (env []string) {
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "RECON_DLQ_") {
			env = append(env, e)
		}
	}
	return env
}

// freePort picks a port that a worker keeps over its restarts: below the range
// that the kernel gives to outgoing connections.
func freePort() (int, error) {
	for range 100 {
		port := 15000 + rand.IntN(17000)
		if l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port on loopback between 15000 and 32000")
}

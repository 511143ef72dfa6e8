package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// TestTheMountedConfigurationsRunTogether is `docker compose up` without
// Docker: Apache Kafka, the sample target, topics-init, the worker, the sample
// classifier and Prometheus, as processes with the very files and arguments of
// docker-compose.yml. Only addresses are others: names of containers become
// free ports on loopback.
func TestTheMountedConfigurationsRunTogether(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("REQUIRE_KAFKA") != "" {
			t.Fatal("prometheus is not installed (Debian: prometheus); make test installs it as root")
		}
		t.Skip("prometheus is not installed (Debian: prometheus)")
	}
	kafka := brokers.SharedKafka(t)
	services := load(t).Services
	dir := t.TempDir()

	target, metrics, web := freeAddr(t), freeAddr(t), freeAddr(t)
	addresses := map[string]string{
		"kafka:9092":  kafka.Addrs()[0],
		"target:8080": target,
		":9644":       metrics,
		":8080":       target,
		"worker:9644": metrics,
	}

	workerConfig := localCopy(t, dir, "deploy/compose/recon-dlq.yaml", addresses, "kafka:9092", "target:8080", ":9644")
	localCopy(t, dir, "deploy/prometheus/rules/recon-dlq.yml", nil)
	prometheusConfig := localCopy(t, dir, "deploy/prometheus/prometheus.yml", addresses, "worker:9644")
	// The rules are mounted beside the configuration, as here.
	mounted := map[string]string{
		"/etc/recon-dlq/recon-dlq.yaml":  workerConfig,
		"/data/discrepancies.jsonl":      filepath.Join(root, "deploy/compose/discrepancies.jsonl"),
		"/etc/prometheus/prometheus.yml": prometheusConfig,
		"/prometheus":                    filepath.Join(dir, "data"),
		":8080":                          target,
	}
	args := func(service string) []string {
		var local []string
		for _, arg := range services[service].Command {
			name, value, isFlag := strings.Cut(arg, "=")
			switch {
			case mounted[arg] != "":
				arg = mounted[arg]
			case isFlag && mounted[value] != "":
				arg = name + "=" + mounted[value]
			}
			local = append(local, arg)
		}
		return local
	}

	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	start(t, binary(t), args("target")...)
	run(ctx, t, args("topics-init")...)
	worker := start(t, binary(t), args("worker")...)
	run(ctx, t, args("classifier")...)
	start(t, prometheus, append(args("prometheus"), "--web.listen-address="+web)...)

	// Prometheus sees the worker, and the worker settles records.
	await(ctx, t, worker, "the worker to be up in Prometheus", func() error {
		up, err := query(ctx, web, `up{job="recon-dlq"}`)
		if err == nil && up != "1" {
			err = fmt.Errorf("up is %q", up)
		}
		return err
	})
	// Two of them are for people: a currency nobody knows, a changed schema.
	sent := strings.Count(read(t, "deploy/compose/discrepancies.jsonl"), "\n")
	await(ctx, t, worker, "every record to be settled, as Prometheus sees it", func() error {
		for _, expr := range []string{
			fmt.Sprintf("sum(resolved_total) == %d", sent-2),
			"sum(poison_total) == 2",
			"sum(dlq_depth) == 0",
			"sum(recon_dlq_consumer_lag) == 0",
		} {
			switch got, err := query(ctx, web, expr); {
			case err != nil:
				return fmt.Errorf("%s: %w", expr, err)
			case got == "":
				return fmt.Errorf("%s: not yet", expr)
			}
		}
		return nil
	})

	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health string }
			}
		}
	}
	if err := get(ctx, "http://"+web+"/api/v1/rules", &rules); err != nil {
		t.Fatal(err)
	}
	loaded := map[string]string{}
	for _, group := range rules.Data.Groups {
		for _, rule := range group.Rules {
			loaded[rule.Name] = rule.Health
		}
	}
	for _, alert := range []string{"ReconDLQDepth", "ReconDLQOldestAge", "ReconDLQConsumerLag", "ReconDLQRefused"} {
		if health := loaded[alert]; health != "ok" {
			t.Errorf("alert %s: health %q in Prometheus, want ok (loaded: %v)", alert, health, loaded)
		}
	}

	// docker compose stop: in order, within the grace period.
	if err := worker.stop(40 * time.Second); err != nil {
		t.Errorf("the worker did not stop in order: %v\n%s", err, worker.output())
	}
}

// localCopy copies a file of the repository into dir, with the names of
// containers replaced. Each of names must be there, else the test would run
// something else than what is mounted.
func localCopy(t *testing.T, dir, name string, addresses map[string]string, names ...string) string {
	t.Helper()
	text := read(t, name)
	for _, old := range names {
		if !strings.Contains(text, old) {
			t.Fatalf("%s does not mention %s any more: this test replaces it by an address on loopback", name, old)
		}
		text = strings.ReplaceAll(text, old, addresses[old])
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(name, "deploy/prometheus/"), "deploy/compose/")
	path := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freeAddr is an address on loopback that was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// process is a service that runs until the test ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; err is set before
	err  error

	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

// output is what the process wrote so far, its last 8 KiB.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.buf.Bytes()
	return string(b[max(0, len(b)-8<<10):])
}

// stop asks the process to end and waits; it is killed after the grace period.
func (p *process) stop(grace time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("killed after %s", grace)
	}
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.stop(10 * time.Second)
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(name), strings.Join(args, " "), p.output())
		}
	})
	return p
}

// await polls until check finds no fault, the process has ended or ctx is over.
func await(ctx context.Context, t *testing.T, p *process, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-p.done:
			t.Fatalf("waiting for %s: the process has ended: %v", what, p.err)
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// query is the value of an instant query's first series, empty without one.
func query(ctx context.Context, addr, expr string) (string, error) {
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any
			}
		}
	}
	if err := get(ctx, "http://"+addr+"/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return "", err
	}
	if len(answer.Data.Result) == 0 {
		return "", nil
	}
	value, _ := answer.Data.Result[0].Value[1].(string)
	return value, nil
}

func get(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", address, resp.Status, body)
	}
	return json.Unmarshal(body, into)
}

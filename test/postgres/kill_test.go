package postgres

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
	"github.com/recon-dlq/recon-dlq/worker"
)

var (
	kills       = flag.Int("kills", 20, "how often a worker is killed between apply and commit")
	apacheKafka = flag.Bool("kafka", false, "on Apache Kafka in place of kfake")
)

// childVariable makes a process of this test binary a worker. It names the configuration.
const childVariable = "RECON_DLQ_TEST_POSTGRES"

// counting has no guard by version: only the processed ids keep it from being run again.
const counting = `insert into entries values (@context::jsonb->>'entry', (@context::jsonb->>'amount')::bigint, 1)
on conflict (id) do update set writes = entries.writes + 1`

// child is a worker as `recon-dlq run` is one, but that it names each record as soon as
// its target has settled it.
func child() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg, err := config.Load(os.Getenv(childVariable), nil, nil)
	if err != nil {
		return fail(err)
	}
	t := cfg.Targets[0]
	sql, err := remedy.NewSQL(remedy.SQLOptions{
		DSNFile: t.SQL.DSNFile, Statement: t.SQL.Statement, Processed: t.SQL.Processed, Timeout: t.SQL.Timeout,
	})
	if err != nil {
		return fail(err)
	}
	defer sql.Close()
	told := remedy.HandlerFunc(func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		o := sql.Remediate(ctx, r)
		if o.Class == deadletter.Resolved {
			fmt.Println(r.DiscrepancyID)
		}
		return o
	})
	w, err := worker.New(worker.Options{
		Config: cfg, Handlers: map[string]remedy.Handler{t.Name: told}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		return fail(err)
	}
	return 0
}

// life is one process of the worker.
type life struct {
	cmd  *exec.Cmd
	says *bufio.Scanner
	log  *strings.Builder
}

func born(t *testing.T, file string) *life {
	t.Helper()
	l := &life{cmd: exec.Command(os.Args[0]), log: &strings.Builder{}}
	l.cmd.Env = append(os.Environ(), childVariable+"="+file)
	l.cmd.Stderr = l.log
	out, err := l.cmd.StdoutPipe()
	if err == nil {
		err = l.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	l.says = bufio.NewScanner(out)
	return l
}

// hears waits for the next record that is settled.
func (l *life) hears(t *testing.T) string {
	t.Helper()
	if !l.says.Scan() {
		_ = l.cmd.Wait()
		t.Fatalf("the worker ended by itself:\n%s", l.log)
	}
	return l.says.Text()
}

// end ends the life and gives the records that it had still settled.
func (l *life) end(signal syscall.Signal) (settled []string) {
	_ = l.cmd.Process.Signal(signal)
	for l.says.Scan() {
		settled = append(settled, l.says.Text())
	}
	_ = l.cmd.Wait()
	return settled
}

// A worker is killed again and again after its target has committed and before Kafka
// has: the record comes again, and must have no effect a second time.
func TestPostgresIsWrittenOnceByAWorkerThatIsKilledBeforeItsCommit(t *testing.T) {
	b := newBench(t)
	var k brokers.Broker = brokers.NewKfake(t)
	if *apacheKafka {
		k = brokers.NewKafka(t, brokers.Options{})
	}
	n := brokers.NewNames([]time.Duration{time.Second})
	file := filepath.Join(t.TempDir(), "recon-dlq.yaml")
	text := fmt.Sprintf(`
kafka: {brokers: [%q], group: %s, instance: w}
source: {topics: [%s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, state: %s, replication: 1, partitions: 2}
targets: [{name: ledger, sql: {dsn_file: %q, statement: %q}}]
rules: [{name: default, attempts: 5, delays: [1s]}]
metrics: {listen: ""}
`, k.Addrs()[0], n.Group, n.Source, n.Retry, n.Hold, n.Poison, n.Audit, n.State, b.dsnFile(b.server.DSN()), counting)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	brokers.Create(t, k, 2, nil, n.Source)
	layout, _, err := worker.Layout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := kafka.Plan(t.Context(), brokers.Client(t, k.Opts()...), layout)
	if err == nil {
		err = kafka.Apply(t.Context(), brokers.Client(t, k.Opts()...), changes)
	}
	if err != nil {
		t.Fatal(err)
	}

	produce := func(i int) (id string) {
		id = fmt.Sprintf("D-%d", i)
		brokers.Produce(t, k, &kgo.Record{Topic: n.Source, Key: []byte(id), Value: fmt.Appendf(nil,
			`{"discrepancy_id":%q,"category":"amount_differs","context":{"entry":%q,"amount":%d},"enqueued_ms":0}`, id, id, i)})
		return id
	}
	// The first life ends in order: without any progress a worker asks for --first-start.
	produce(0)
	first := born(t, file)
	first.hears(t)
	first.end(syscall.SIGTERM)

	again := map[string]int{} // how often a record came that had been settled
	var id string
	for i := 1; i <= *kills; i++ {
		id = produce(i)
		l := born(t, file)
		for settled := l.hears(t); settled != id; settled = l.hears(t) {
			again[settled]++
		}
		for _, settled := range l.end(syscall.SIGKILL) {
			again[settled]++
		}
	}

	// The last life finishes what is left.
	all := *kills + 1
	spec := invariants.Spec{Sources: []string{n.Source}, RetryPrefix: n.Retry, HoldPrefix: n.Hold, Poison: n.Poison, Audit: n.Audit, Group: n.Group}
	check := func() invariants.Report {
		report, err := invariants.Check(t.Context(), k.Opts(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	last := born(t, file)
	b.eventually("every record is resolved", func() bool { return check().Resolved >= all })
	for _, settled := range last.end(syscall.SIGTERM) {
		again[settled]++
	}
	calls := 0
	for _, n := range again {
		calls += n
	}
	t.Logf("%d kills: %d records came again, with %d calls", *kills, len(again), calls)
	if len(again) < *kills/2 {
		t.Errorf("%d kills, and only %d records came again: the others were killed too late", *kills, len(again))
	}
	want := fmt.Sprintf("%d entries, %d written once, %d ids", all, all, all)
	if got := b.one("select count(*) || ' entries, ' || count(*) filter (where writes = 1) || ' written once, ' || (select count(*) from recon_dlq_processed) || ' ids' from entries"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	spec.Settled = true
	report := check()
	t.Log(report)
	if err := report.Err(); err != nil || report.Resolved != all {
		t.Errorf("%d resolved of %d: %v", report.Resolved, all, err)
	}
}

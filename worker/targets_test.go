package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestAProgramIsNotGivenWhatConfiguresTheWorker(t *testing.T) {
	env := []string{"PATH=/bin", "RECON_DLQ_ESCALATION_WEBHOOK_TOKEN=hunter2", "RECON_DLQX=1"}
	if got := programEnv(env); !slices.Equal(got, []string{"PATH=/bin", "RECON_DLQX=1"}) {
		t.Errorf("got %v", got)
	}
}

func TestATargetThatCannotWorkIsNamedBeforeAnythingIsReached(t *testing.T) {
	cfg := load(t, "{name: cards, exec: {command: [no-such-program]}}", brokers.NewNames(nil), "127.0.0.1:1")
	_, err := New(Options{Config: cfg})
	if err == nil || !strings.Contains(err.Error(), `target "cards": exec target: command: `) {
		t.Errorf("got %v", err)
	}
}

// load is the configuration of a worker with one target.
func load(t *testing.T, target string, n brokers.Names, broker string) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "recon-dlq.yaml")
	text := fmt.Sprintf(`
kafka: {brokers: [%q], group: %s}
source: {topics: [%s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, state: %s, replication: 1}
targets: [%s]
rules: [{name: default, attempts: 2, delays: [1s]}]
metrics: {listen: ""}
`, broker, n.Group, n.Source, n.Retry, n.Hold, n.Poison, n.Audit, n.State, target)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestAProgramSettlesRecords(t *testing.T) {
	b := brokers.NewKfake(t)
	n := brokers.NewNames([]time.Duration{time.Second})
	brokers.Create(t, b, 1, nil, n.Source)
	const script = `while IFS= read -r line; do
		id=${line#*'"id":"'}; id=${id%%'"'*}
		case $line in *no-such-account*) status=permanent;; *) status=ok;; esac
		printf '{"id":"%s","status":"%s"}\n' "$id" $status
	done`
	cfg := load(t, fmt.Sprintf("{name: cards, exec: {command: [sh, -c, %q]}}", script), n, b.Addrs()[0])
	layout, _, err := Layout(cfg)
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
	w, err := New(Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- w.Run(ctx) }()
	defer func() {
		stop()
		if err := <-end; err != nil {
			t.Errorf("the worker ended: %v", err)
		}
	}()
	for _, id := range []string{"d-1", "no-such-account", "d-2"} {
		brokers.Produce(t, b, &kgo.Record{Topic: n.Source, Value: fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"x","context":{},"enqueued_ms":0}`, id)})
	}
	total := func(name string) (sum float64) {
		families, err := w.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					sum += m.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
	for deadline := time.Now().Add(time.Minute); total("resolved_total") != 2 || total("poison_total") != 1; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v resolved and %v in poison, want 2 and 1", total("resolved_total"), total("poison_total"))
		}
	}
}

// Command bench measures the engine on Apache Kafka, side by side with the loops
// that people write by hand, and says which figures it reaches.
//
//	go run ./test/bench                      every row, about 20 minutes
//	go run ./test/bench -only hop,stuck      some
//	go run ./test/bench -quick               that everything works; figures are worth nothing
//
// Ratios are of runs that follow each other at once, because machines differ and
// are noisy; a figure is the median of its repetitions. It starts the Kafka
// clusters that it needs and stops them, whatever ends it. That a figure is not
// reached is a finding, not a failure: the exit code tells only whether
// everything could be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// scenario measures one or more rows on a cluster of so many nodes.
type scenario struct {
	name  string
	nodes int
	run   func(*bench, context.Context) ([]result.Row, error)
}

// Those of one cluster are together: it starts once.
var scenarios = []scenario{
	{"hop", 1, (*bench).hop},
	{"fail-once", 1, (*bench).failOnce},
	{"ceiling", 1, (*bench).ceiling},
	{"stuck", 1, (*bench).stuck},
	{"lateness", 1, (*bench).lateness},
	{"restart", 1, (*bench).restart},
	{"allocations", 1, (*bench).allocations},
	{"memory", 1, (*bench).memory},
	{"hop3", 3, (*bench).hop3},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once; brokers and children end with us
	code := benchMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// bench is one run of the program.
type bench struct {
	records, reps int
	quick         bool
	log           *log.Logger
	run           *result.Run

	kafka   *brokers.Kafka
	cl      *kgo.Client
	adm     *kadm.Client
	cluster string // id
	runs    int    // topics made so far: each run has its own
}

// benchMain returns the exit code: 0 everything was measured, 1 something could
// not be, 2 usage, 130 interrupted.
func benchMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	b := &bench{log: log.New(stderr, "", log.Ltime)}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&b.quick, "quick", false, "a twentieth of the records, twice: only to see that it works")
	f.IntVar(&b.records, "records", 0, "`records` of a run of the hop; other rows go by it (default 300000)")
	f.IntVar(&b.reps, "reps", 0, "repetitions that count (default 5)")
	only := f.String("only", "", "`rows` to measure, of "+strings.Join(scenarioNames(), ", ")+"; empty: all")
	nodes := f.Int("nodes", 0, "only the rows on a cluster of so many `nodes`, 1 or 3")
	output := f.String("o", "text", "`format` on standard output: text or json")
	save := f.String("save", "", "write the result as JSON to this `file`, for the chart")
	markdown := f.String("markdown", "", "put the tables into this Markdown `file`, between its marks")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	chosen, err := choose(*only, *nodes)
	if err != nil || f.NArg() > 0 || b.records < 0 || b.reps < 0 || (*output != "text" && *output != "json") {
		fmt.Fprintf(stderr, "bench: wrong use (%v); see -help\n", err)
		return 2
	}
	b.defaults()
	b.run = &result.Run{Time: time.Now().UTC(), Machine: machine(), Quick: b.quick}
	code := 0
	for nodes, group := range byNodes(chosen) {
		if err := b.on(ctx, nodes, group); err != nil {
			fmt.Fprintf(stderr, "bench: %v\n", err)
			code = 1
		}
	}
	if ctx.Err() != nil {
		return 130
	}
	if err := b.tell(stdout, *output, *save, *markdown); err != nil {
		fmt.Fprintf(stderr, "bench: write the result: %v\n", err)
		return 1
	}
	return code
}

func (b *bench) defaults() {
	records, reps := 300_000, 5
	if b.quick {
		records, reps = records/20, 2
	}
	if b.records == 0 {
		b.records = records
	}
	if b.reps == 0 {
		b.reps = reps
	}
}

func scenarioNames() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func choose(only string, nodes int) (chosen []scenario, err error) {
	for _, name := range strings.Split(only, ",") {
		if only != "" && !slices.Contains(scenarioNames(), name) {
			return nil, fmt.Errorf("no row %q", name)
		}
	}
	for _, s := range scenarios {
		if (only == "" || slices.Contains(strings.Split(only, ","), s.name)) && (nodes == 0 || nodes == s.nodes) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("no row is left")
	}
	return chosen, nil
}

// byNodes gives the scenarios of one cluster after those of another.
func byNodes(all []scenario) func(yield func(int, []scenario) bool) {
	return func(yield func(int, []scenario) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].nodes == all[0].nodes {
				n++
			}
			if !yield(all[0].nodes, all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// on measures scenarios on a cluster that it starts and stops. One that fails
// does not keep the others from being measured.
func (b *bench) on(ctx context.Context, nodes int, group []scenario) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// What is deleted is to leave the disk at once.
	if b.kafka, err = brokers.StartKafka(brokers.Options{Nodes: nodes, Properties: map[string]string{"log.segment.delete.delay.ms": "1000"}}); err != nil {
		return err
	}
	defer b.kafka.Stop()
	if b.cl, err = kgo.NewClient(b.kafka.Opts()...); err != nil {
		return err
	}
	defer b.cl.Close()
	b.adm = kadm.NewClient(b.cl)
	meta, err := b.adm.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	b.cluster = meta.Cluster
	for _, s := range group {
		begin := time.Now()
		rows, rowErr := s.run(b, ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if rowErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.name, rowErr))
			continue
		}
		b.run.Rows = append(b.run.Rows, rows...)
		b.log.Printf("%s took %s", s.name, time.Since(begin).Round(time.Second))
	}
	return err
}

func (b *bench) tell(stdout io.Writer, output, save, markdown string) (err error) {
	if save != "" {
		err = b.run.Save(save)
	}
	if markdown != "" {
		err = errors.Join(err, b.run.Markdown(markdown))
	}
	if output == "json" {
		return errors.Join(err, b.run.JSON(stdout))
	}
	return errors.Join(err, b.run.Text(stdout))
}

func machine() string {
	return fmt.Sprintf("%d cores, %s/%s, %s, Apache Kafka %s on the same machine", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), brokers.KafkaVersion)
}

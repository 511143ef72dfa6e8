// Command chaos proves the promise on Apache Kafka: workers are hurt at random
// moments while they work, then everything that is in the topics is counted.
//
//	go run ./test/chaos -records 100000 -kills 10
//	go run ./test/chaos -for 10m -nodes 3
//
// It starts a Kafka cluster, an HTTP target in a process of its own and worker
// processes of the real binary; a third of the records fail once, one in a
// hundred for ever. With -for workers are killed, terminated, stopped past all
// their timeouts and cut off from the cluster, and with three nodes those are
// killed and stopped too. It exits with 1 if anything is lost, doubled, called early,
// stands still or does not stop in order, and then keeps all logs. Everything it
// has started ends with it, whatever ends it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// childVariable makes the program, or its test binary, a child of itself.
const childVariable = "RECON_DLQ_CHAOS_CHILD"

func main() {
	if os.Getenv(childVariable) != "" {
		os.Exit(targetMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once; the kernel ends the children
	code := chaosMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// chaosMain returns the exit code: 0 the promise was kept, 1 it was not or that
// could not be found out, 2 usage, 130 interrupted.
func chaosMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		fmt.Fprintf(stderr, "chaos: %v\n", err)
		return 2
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not done after %s (-timeout)", o.timeout))
	defer cancel()
	kafka, err := brokers.StartKafka(o.cluster())
	if err != nil {
		fmt.Fprintf(stderr, "chaos: %v\n", err)
		return 1
	}
	defer kafka.Stop()
	r := run(ctx, kafka, o, stderr)
	if err := r.print(stdout, o.output); err != nil {
		fmt.Fprintf(stderr, "chaos: write the result: %v\n", err)
		return 1
	}
	switch {
	case len(r.Faults) == 0:
		return 0
	case errors.Is(context.Cause(ctx), context.Canceled):
		return 130
	}
	return 1
}

// options are what one run is made of.
type options struct {
	records  int
	kills    int
	length   time.Duration // of all kinds of faults, in place of kills at counts of effects
	every    time.Duration // mean time from one fault of a worker to the next, with length
	workers  int
	nodes    int
	kafka    string // version
	txn      int    // transaction.version; 0: Kafka's default
	static   bool   // workers have an instance name: a restarted one takes over at once
	delivery config.Delivery
	rate     int // records a second that are produced; 0: as fast as it goes
	seed     uint64
	race     bool
	keep     bool          // logs, also when there is no fault
	stall    time.Duration // without progress for so long: give up
	timeout  time.Duration // of everything
	disk     int64         // bytes the cluster may hold
	output   string
}

// cluster is what a run with these options needs.
func (o options) cluster() brokers.Options {
	b := brokers.Options{Nodes: o.nodes, Version: o.kafka, TransactionVersion: o.txn}
	if o.length > 0 {
		b.Doors = o.workers
	}
	return b
}

// defaultRate keeps a long run within a machine that is not fast, and its disk.
const defaultRate = 500

// maxRecords keeps the run within memory and disk of an ordinary machine.
const maxRecords = 5_000_000

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{delivery: config.ExactlyOnce}
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.records, "records", 100_000, "source `records`")
	f.IntVar(&o.kills, "kills", 10, "workers killed (-9) and started again")
	f.DurationVar(&o.length, "for", 0, "in place of -records and -kills: faults of all kinds for so long, while -rate records a second are produced")
	f.DurationVar(&o.every, "every", 4*time.Second, "with -for: mean time from one fault of a worker to the next")
	f.IntVar(&o.workers, "workers", 0, "worker processes (default 2; 3 with -for)")
	f.IntVar(&o.nodes, "nodes", 1, "Kafka nodes; from 3 on everything is replicated")
	f.StringVar(&o.kafka, "kafka", brokers.KafkaVersion, "version of Apache Kafka")
	f.IntVar(&o.txn, "txn", 0, "transaction.version of the cluster, 1 or 2; 0: Kafka's default")
	f.BoolVar(&o.static, "static", true, "workers are static members, with stable transactional ids")
	f.StringVar((*string)(&o.delivery), "delivery", string(o.delivery), "exactly-once or at-least-once")
	f.IntVar(&o.rate, "rate", 0, "records produced a second; 0: as fast as it goes, and with -for 500")
	f.Uint64Var(&o.seed, "seed", 0, "of the random moments; 0: another one each time")
	f.BoolVar(&o.race, "race", false, "build the worker with the race detector")
	f.BoolVar(&o.keep, "keep", false, "keep the logs, also when there is no fault")
	f.DurationVar(&o.stall, "stall", 0, "give up after so long without progress (default 1m; 2m with -for)")
	f.DurationVar(&o.timeout, "timeout", 0, "give up after so long (default 10m, and -for on top)")
	f.Int64Var(&o.disk, "disk", 4<<30, "give up when the cluster holds so many `bytes`")
	f.StringVar(&o.output, "o", "text", "output: text or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	workers, stall := 2, time.Minute
	if o.length > 0 {
		workers, stall = 3, 2*time.Minute
		o.rate = cmp.Or(o.rate, defaultRate)
		o.records = int(o.length.Seconds() * float64(o.rate))
	}
	o.workers, o.stall = cmp.Or(o.workers, workers), cmp.Or(o.stall, stall)
	o.timeout = cmp.Or(o.timeout, o.length+10*time.Minute)
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.length < 0 || o.length > 24*time.Hour:
		return o, fmt.Errorf("-for %s: must be between 0 and 24h", o.length)
	case o.every < 100*time.Millisecond:
		return o, fmt.Errorf("-every %s: must be 100ms or more", o.every)
	case o.txn < 0 || o.txn > 2:
		return o, fmt.Errorf("-txn %d: must be 0, 1 or 2", o.txn)
	case o.length > 0 && o.records > maxRecords:
		return o, fmt.Errorf("-for %s at -rate %d is %d records: must be %d at most", o.length, o.rate, o.records, maxRecords)
	case o.records < 1 || o.records > maxRecords:
		return o, fmt.Errorf("-records %d: must be between 1 and %d", o.records, maxRecords)
	case o.kills < 0 || o.kills > 1000:
		return o, fmt.Errorf("-kills %d: must be between 0 and 1000", o.kills)
	case o.workers < 1 || o.workers > 16:
		return o, fmt.Errorf("-workers %d: must be between 1 and 16", o.workers)
	case o.nodes < 1 || o.nodes > 5:
		return o, fmt.Errorf("-nodes %d: must be between 1 and 5", o.nodes)
	case o.rate < 0:
		return o, fmt.Errorf("-rate %d: must not be negative", o.rate)
	case o.stall <= 0 || o.timeout <= 0 || o.disk <= 0:
		return o, errors.New("-stall, -timeout and -disk must be above 0")
	case o.delivery != config.ExactlyOnce && o.delivery != config.AtLeastOnce:
		return o, fmt.Errorf("-delivery %s: must be exactly-once or at-least-once", o.delivery)
	case o.output != "text" && o.output != "json":
		return o, fmt.Errorf("-o %s: must be text or json", o.output)
	}
	return o, nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
)

const (
	// stallTimeout is how long brokers may confirm nothing before enqueue gives up.
	stallTimeout = 60 * time.Second
	// flushGrace is how long an interrupted enqueue waits for what is on its way.
	flushGrace = 10 * time.Second

	enqueueBuffer   = 2 * maxBatch // bytes of lines on their way
	maxBatch        = 64 << 20     // bytes; well below what a client may write at once
	defaultKeyField = "discrepancy_id"
)

func newEnqueue(a *app) *cobra.Command {
	var topic, keyField string
	cmd := &cobra.Command{
		Use:   "enqueue [FILE|-]",
		Short: "Send discrepancies, JSON lines from a file or stdin, to the source topic",
		Long: `Sends each line, a discrepancy as JSON, to the source topic as it is: its bytes are
not changed. A line that is no valid discrepancy is reported on stderr with its
number and the reason, and does not stop the others. Empty lines are skipped.

Exit codes: 0 all lines are in the topic, 3 some are, 1 none is, 4 there was no
line, 130 interrupted: what was accepted before is in the topic, and counted.`,
		Example: `  recon-dlq enqueue discrepancies.jsonl
  classify | recon-dlq enqueue -o json -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.loadClient(cmd)
			if err != nil {
				return err
			}
			if topic == "" {
				topic = cfg.Source.Topics[0]
			} else if !slices.Contains(cfg.Source.Topics, topic) {
				return usageError("--topic: %q is not one of source.topics (%s)", topic, strings.Join(cfg.Source.Topics, ", "))
			}
			in, done, err := a.input(args)
			if err != nil {
				return err
			}
			defer done()
			return a.enqueue(cmd.Context(), cfg, topic, keyField, in)
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "source topic to send to (default the first of source.topics)")
	cmd.Flags().StringVar(&keyField, "key-field", defaultKeyField, "field of the line that becomes the Kafka key; dots go into objects")
	config.ClientFlags(cmd.Flags())
	return cmd
}

// input opens the file that args name, or stdin.
func (a *app) input(args []string) (r io.Reader, done func(), err error) {
	if len(args) == 0 || args[0] == "-" {
		return a.in, func() {}, nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, nil, fmt.Errorf("open input: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, nil, fmt.Errorf("open input: %s is a directory: name a file with JSON lines", args[0])
	}
	return f, func() { f.Close() }, nil
}

func (a *app) enqueue(ctx context.Context, cfg config.Config, topic, keyField string, in io.Reader) error {
	limit := kafka.DefaultMaxMessageBytes
	cl, err := a.connect(ctx, cfg, enqueueOpts(func() int { return limit })...)
	if err != nil {
		return err
	}
	defer cl.Close()
	facts, err := kafka.Inspect(ctx, cl, topic, kafka.Write)
	if err != nil {
		return err
	}
	if facts.Assumed {
		fmt.Fprintf(a.err, "topic %s: max.message.bytes cannot be read, Kafka's default of %d is assumed: grant DESCRIBE_CONFIGS on it to send longer lines\n", topic, facts.MaxMessageBytes)
	}
	limit = min(int(facts.MaxMessageBytes), maxBatch)

	e := &enqueuer{
		cl: cl, topic: topic, keyField: keyField, limit: limit,
		now: time.Now, stall: stallTimeout, grace: flushGrace,
		refuse: func(number int, reason string) { fmt.Fprintf(a.err, "line %d: refused: %s\n", number, reason) },
	}
	t, err := e.run(ctx, in)
	if a.json() {
		if werr := a.writeJSON(t); werr != nil {
			return werr
		}
	}
	return a.conclude(topic, t, err)
}

// enqueueOpts are the producer's: acks from all in-sync replicas and idempotence
// are the client's defaults. The limit, bytes of a batch, is asked for at the
// first record, when the topic is known.
func enqueueOpts(limit func() int) []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytesFn(func(string) int32 { return int32(limit()) }),
		kgo.MaxBufferedBytes(enqueueBuffer),
		kgo.ProducerLinger(5 * time.Millisecond),
		kgo.RecordDeliveryTimeout(stallTimeout),
	}
}

// conclude prints the summary and turns the tally into the exit code.
func (a *app) conclude(topic string, t tally, err error) error {
	summary := fmt.Sprintf("enqueued %d, refused %d", t.Enqueued, t.Refused)
	if t.Unconfirmed > 0 {
		summary += fmt.Sprintf(", not confirmed %d (lines %s: they may or may not be in the topic)", t.Unconfirmed, ranges(t.lines))
	}
	fmt.Fprintf(a.err, "%s: topic %s\n", summary, topic)
	var exit ExitError
	switch {
	case errors.Is(err, errInterrupted):
		exit = ExitError{Code: ExitInterrupted, Err: fmt.Errorf("interrupted after line %d: lines after it were not sent", t.last)}
	case err != nil && t.Enqueued == 0:
		exit = ExitError{Code: ExitFailed, Err: err}
	case err != nil:
		exit = ExitError{Code: ExitPartial, Err: fmt.Errorf("stopped after line %d: lines after it were not sent: %w", t.last, err)}
	case t.Enqueued == 0 && t.Refused == 0:
		exit = ExitError{Code: ExitNoMatch, Err: errors.New("no discrepancy in the input")}
	case t.Enqueued == 0:
		exit = ExitError{Code: ExitFailed}
	case t.Refused > 0:
		exit = ExitError{Code: ExitPartial}
	default:
		return nil
	}
	return &exit
}

// tally is what became of the lines.
type tally struct {
	Enqueued    int `json:"enqueued"`              // confirmed by the brokers
	Refused     int `json:"refused"`               // not valid, or larger than the topic takes
	Unconfirmed int `json:"unconfirmed,omitempty"` // sent, but no broker confirmed them

	last  int   // number of the last line that was taken
	lines []int // the unconfirmed ones, sorted
}

var (
	errInterrupted = errors.New("interrupted")
	errStalled     = errors.New("the brokers confirmed nothing for a minute: look at their health and at the topic's min.insync.replicas")
)

// sent is a line on its way.
type sent struct {
	number int
	record *kgo.Record
}

// enqueuer sends lines to a topic.
type enqueuer struct {
	cl       *kgo.Client
	topic    string
	keyField string
	limit    int // bytes of a line
	now      func() time.Time
	stall    time.Duration                 // give up when nothing is confirmed for so long
	grace    time.Duration                 // for what is on its way when interrupted
	refuse   func(line int, reason string) // one call at a time

	stop context.CancelCauseFunc // ends the run's own context for sending

	mu      sync.Mutex
	tally   tally
	pending map[int]struct{} // sent, not answered
	watch   *time.Timer      // runs while something is pending
	alone   []sent           // to be sent again, each in a batch of its own

	resending chan struct{} // tells sendAll that alone has grown; one is enough
}

// run sends the lines of in until it ends, ctx does, or the brokers fail, and
// waits for what is on its way. Every line is counted once. Errors:
// errInterrupted, in's own, and what the brokers said.
func (e *enqueuer) run(ctx context.Context, in io.Reader) (tally, error) {
	// Records that are accepted outlive an interrupt by the grace.
	sending, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	e.stop = stop
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(e.grace, func() { stop(errInterrupted) })
	})()
	e.pending = make(map[int]struct{})
	e.resending = make(chan struct{}, 1)
	e.watch = time.AfterFunc(e.stall, func() { stop(errStalled) })
	e.watch.Stop()
	defer e.watch.Stop()

	// A read of a terminal or pipe cannot be interrupted: after an interrupt the
	// reader stays in it until the process ends.
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	lines := make(chan line)
	readErr := make(chan error, 1)
	go func() {
		readErr <- readLines(reading, in, e.limit, lines)
		close(lines)
	}()

	err := e.sendAll(ctx, sending, lines)
	if err == nil {
		err = <-readErr
		if err != nil {
			err = fmt.Errorf("read input: %w", err)
		}
	}
	if ferr := e.flush(sending); err == nil {
		err = ferr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for number := range e.pending {
		e.tally.lines = append(e.tally.lines, number)
	}
	slices.Sort(e.tally.lines)
	e.tally.Unconfirmed = len(e.tally.lines)
	if err == nil && e.tally.Unconfirmed > 0 {
		err = context.Cause(sending)
	}
	return e.tally, err
}

// sendAll takes lines until there are no more. It returns nil then.
func (e *enqueuer) sendAll(ctx, sending context.Context, lines <-chan line) error {
	for {
		if ctx.Err() != nil {
			return errInterrupted
		}
		if sending.Err() != nil {
			return context.Cause(sending)
		}
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-sending.Done():
			return context.Cause(sending)
		case l, ok := <-lines:
			if !ok {
				return nil
			}
			e.send(sending, l)
		case <-e.resending:
			e.resend(sending)
		}
	}
}

func (e *enqueuer) send(ctx context.Context, l line) {
	e.mu.Lock()
	e.tally.last = l.number
	e.mu.Unlock()
	if l.empty() {
		return
	}
	r, err := e.record(l)
	if err != nil {
		e.refused(l.number, err)
		return
	}
	e.mu.Lock()
	e.pending[l.number] = struct{}{}
	if len(e.pending) == 1 {
		e.watch.Reset(e.stall)
	}
	e.mu.Unlock()
	e.cl.Produce(ctx, r, func(r *kgo.Record, err error) { e.answered(sent{l.number, r}, err) })
}

// record validates a line as the worker will read it.
func (e *enqueuer) record(l line) (*kgo.Record, error) {
	if l.tooLong() {
		return nil, fmt.Errorf("%d bytes, the topic takes at most %d (max.message.bytes)", l.size, e.limit)
	}
	now := e.now()
	rec, err := deadletter.Read(
		deadletter.Message{Place: deadletter.Place{Topic: e.topic}, Timestamp: now.UnixMilli(), Value: l.bytes},
		deadletter.ReadOptions{Kind: deadletter.Source, Now: now},
	)
	if err != nil {
		return nil, err
	}
	key := []byte(rec.DiscrepancyID)
	if e.keyField != defaultKeyField {
		if key, err = field(l.bytes, e.keyField); err != nil {
			return nil, err
		}
	}
	return &kgo.Record{Topic: e.topic, Key: key, Value: l.bytes}, nil
}

// answered takes the brokers' answer about one line.
func (e *enqueuer) answered(s sent, err error) {
	number, size := s.number, len(s.record.Value)+len(s.record.Key)
	switch {
	case err == nil:
		e.mu.Lock()
		e.tally.Enqueued++
		e.settle(number)
		e.mu.Unlock()
	case errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.MessageTooLarge) && size+recordOverhead <= e.limit:
		// The topic takes less than it told, or did not tell. The batch was too
		// large, not this record perhaps: each of the batch goes alone.
		e.mu.Lock()
		e.alone = append(e.alone, s)
		e.mu.Unlock()
		select {
		case e.resending <- struct{}{}:
		default:
		}
	case tooLarge(err):
		e.refused(number, fmt.Errorf("%d bytes with its key, the topic takes at most %d (max.message.bytes)", size, e.limit))
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp):
		e.refused(number, fmt.Errorf("the broker refused it: %w", err))
	default:
		// Not the line's fault: what follows would fail the same way. The line stays pending.
		e.stop(kafka.Explain(err, kafka.Need(kafka.ResourceTopic, e.topic, kafka.Write)))
	}
}

// recordOverhead is more than what a batch adds to a single record.
const recordOverhead = 128

func tooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// resend sends what failed by the size of its batch, one by one.
func (e *enqueuer) resend(ctx context.Context) {
	e.mu.Lock()
	again := e.alone
	e.alone = nil
	e.mu.Unlock()
	if len(again) == 0 {
		return
	}
	if e.cl.Flush(ctx) != nil { // nothing else may get into their batches
		return // they stay pending
	}
	for _, s := range again {
		r := s.record
		err := e.cl.ProduceSync(ctx, &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value}).FirstErr()
		if tooLarge(err) {
			e.refused(s.number, fmt.Errorf("%d bytes with its key, more than the topic's max.message.bytes", len(r.Value)+len(r.Key)))
			continue
		}
		e.answered(s, err)
	}
}

// flush waits for the answers of all that was sent.
func (e *enqueuer) flush(ctx context.Context) error {
	for {
		if err := e.cl.Flush(ctx); err != nil {
			return context.Cause(ctx)
		}
		e.mu.Lock()
		again := len(e.alone)
		e.mu.Unlock()
		if again == 0 {
			return nil
		}
		e.resend(ctx)
	}
}

func (e *enqueuer) refused(number int, reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refuse(number, reason.Error())
	e.tally.Refused++
	e.settle(number)
}

// settle ends the wait for a line; under mu.
func (e *enqueuer) settle(number int) {
	delete(e.pending, number)
	if len(e.pending) == 0 {
		e.watch.Stop()
	} else {
		e.watch.Reset(e.stall)
	}
}

// field returns the string or number that a dotted path leads to in a JSON
// object, as it is written there.
func field(doc []byte, path string) ([]byte, error) {
	raw := json.RawMessage(doc)
	for _, name := range strings.Split(path, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, fmt.Errorf("--key-field %s: the field before %q is not an object", path, name)
		}
		var ok bool
		if raw, ok = object[name]; !ok {
			return nil, fmt.Errorf("--key-field %s: the line has no such field", path)
		}
	}
	var s string
	if json.Unmarshal(raw, &s) == nil && string(raw) != "null" {
		return []byte(s), nil
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil && string(raw) != "null" {
		return []byte(n.String()), nil
	}
	return nil, fmt.Errorf("--key-field %s: neither a string nor a number", path)
}

// ranges writes sorted numbers as 3, 7-12, 20; at most fifty of them, then how many follow.
func ranges(numbers []int) string {
	const most = 50
	var parts []string
	for i := 0; i < len(numbers); {
		if len(parts) == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(numbers)-i))
			break
		}
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

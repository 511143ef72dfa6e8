package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// ErrStopped is returned when the demo was ended before everything was settled.
var ErrStopped = errors.New("stopped before everything was settled")

// Options say how a demo is run and shown.
type Options struct {
	Script  Script // see DefaultScript
	Exit    bool   // end when all is settled; else stay until ctx ends
	Plain   bool   // a line of progress a second in place of the live view
	In      io.Reader
	Err     io.Writer // where progress is shown
	Env     []string  // in the form of os.Environ: TERM, NO_COLOR and the like
	Version string
	Program string // the name it was started by, for what it says to try

	// Report, if not nil, is called with the summary before Run stays on.
	Report func(Summary) error
}

// Run runs a demo and says what became of its records. The error is ErrStopped
// if ctx ended before that, or says what does not work; whether all records are
// accounted for is asked with Summary.Err.
func Run(ctx context.Context, o Options) (Summary, error) {
	if !o.Plain && live(o.In, o.Err, o.Env) {
		return runLive(ctx, o)
	}
	w := &oneAtATime{w: o.Err}
	p := &progress{w: w, program: o.Program}
	log := slog.New(&brief{write: func(line string) { fmt.Fprintf(w, "       %s\n", line) }})
	return runDemo(ctx, o, log, p.observe, p.staying)
}

// runDemo is a demo from its start to its end, whatever shows it.
func runDemo(ctx context.Context, o Options, log *slog.Logger, observe func(State), staying func(State)) (sum Summary, err error) {
	d, err := begin(ctx, o.Script, log, o.Version)
	if err != nil {
		return Summary{}, stopped(ctx, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if sum, err = d.play(ctx, observe); err != nil {
		return Summary{}, stopped(ctx, err)
	}
	if o.Report != nil {
		if err := o.Report(sum); err != nil {
			return sum, err
		}
	}
	if o.Exit {
		return sum, nil
	}
	staying(d.sampler.last)
	return sum, d.stay(ctx, observe)
}

// stopped turns what a cancelled context makes of any step into ErrStopped.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrStopped
	}
	return err
}

// oneAtATime is a writer that the progress and the worker's log share.
type oneAtATime struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneAtATime) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(p)
}

// progress shows a demo as lines.
type progress struct {
	w       io.Writer
	program string
	next    time.Duration
}

func (p *progress) observe(s State) {
	if s.Settled || s.Elapsed < p.next {
		return
	}
	p.next = s.Elapsed.Truncate(time.Second) + time.Second
	target := "up"
	if !s.TargetUp {
		target = "down"
	}
	fmt.Fprintf(p.w, "%3.0f s  sent %d/%d  resolved %d  retried %d  poison %d  depth %d (held %d, waiting %d)  target %s  %s\n",
		s.Elapsed.Seconds(), s.Sent, s.Total, s.Resolved, s.Retried, s.Poison, s.Depth, s.Held, s.Waiting, target, s.now())
}

func (p *progress) staying(s State) {
	for _, line := range hints(s, p.program) {
		fmt.Fprintln(p.w, line)
	}
	fmt.Fprintln(p.w, "Stop with ctrl-c.")
}

// hints say what can be tried while a settled demo stays on. They fit 80 columns.
func hints(s State, program string) []string {
	return []string{
		"The worker goes on. From another terminal, try:",
		fmt.Sprintf("  curl -s %s/metrics | grep -E '^(dlq_|poison|resolved)'", s.MetricsAt),
		fmt.Sprintf("  %s enqueue -c %s yours.jsonl", program, s.Config),
		fmt.Sprintf("  %s topics plan -c %s", program, s.Config),
	}
}

// Command mutants proves that the tests would notice: it breaks the engine in
// one way after the other and demands that a suite goes red each time.
//
//	go run ./test/mutants [-no-baseline] [-logs dir] [name ...]
//
// Each mutant is a patch beside this file. Its first line says in one sentence
// what it breaks. A patch is applied to a temporary copy of the tree, the
// uncommitted files included; then the quick suites run, the cheapest first,
// until one fails. Before all mutants the suites run on the copy as it is: if
// they are red by themselves, a red suite proves nothing.
//
// To make a patch, break the engine in a scratch copy of the tree and write down
// the sentence and `git diff -U1`: little context, so that it applies for long.
//
// It exits with 1 if a mutant survives, no longer applies or no longer compiles.
// SEED and SEEDS choose the seeds of the simulation.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

//go:embed *.patch
var patches embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := mutantsMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// mutantsMain returns the exit code: 0 every mutant is caught, 1 one is not or
// that could not be found out, 2 usage, 130 interrupted.
func mutantsMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	noBaseline := flags.Bool("no-baseline", false, "do not run the suites without a mutant first")
	logs := flags.String("logs", "", "keep what the suites print in this directory")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 2
	}
	err = run(ctx, chosen, !*noBaseline, *logs, stdout, stderr)
	switch {
	case ctx.Err() != nil:
		return 130
	case err != nil:
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 1
	}
	return 0
}

// mutant is one way to break the engine.
type mutant struct {
	name   string
	breaks string // one sentence
	patch  []byte
}

// all are the mutants, by name.
func all() ([]mutant, error) {
	entries, err := patches.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var ms []mutant
	for _, e := range entries {
		patch, err := patches.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(string(patch), "\n")
		breaks, ok := strings.CutPrefix(first, "# ")
		if !ok {
			return nil, fmt.Errorf("%s: the first line must say after %q what it breaks", e.Name(), "# ")
		}
		ms = append(ms, mutant{name: strings.TrimSuffix(e.Name(), path.Ext(e.Name())), breaks: breaks, patch: patch})
	}
	return ms, nil
}

// choose returns the mutants with these names; without names all.
func choose(names []string) ([]mutant, error) {
	ms, err := all()
	if err != nil || len(names) == 0 {
		return ms, err
	}
	byName := map[string]mutant{}
	for _, m := range ms {
		byName[m.name] = m
	}
	chosen := make([]mutant, 0, len(names))
	for _, name := range names {
		m, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("there is no mutant %q; the names are those of test/mutants/*.patch", name)
		}
		chosen = append(chosen, m)
	}
	return chosen, nil
}

// result is what became of one mutant.
type result struct {
	mutant
	caught catch
	took   time.Duration // until it was caught, or all suites had passed; compiling included
	err    error         // it could not be tried
}

func (r result) String() string {
	switch {
	case r.err != nil:
		return "NOT TRIED: " + r.err.Error()
	case !r.caught.red:
		return "SURVIVED"
	}
	return r.caught.suite + ": " + r.caught.by
}

// run tries the mutants. Its error says how many are not caught.
func run(ctx context.Context, ms []mutant, baseline bool, logs string, stdout, stderr io.Writer) error {
	tree, err := copyTree(ctx)
	if err != nil {
		return err
	}
	defer tree.remove()
	if baseline {
		began := time.Now()
		c, err := tree.judge(ctx, logs, "baseline")
		if err != nil {
			return err
		}
		if c.red {
			return fmt.Errorf("%s is red without a mutant (%s): nothing can be proved", c.suite, c.by)
		}
		fmt.Fprintf(stderr, "without a mutant the suites are green, after %s\n", round(time.Since(began)))
	}
	results := make([]result, 0, len(ms))
	missed := 0
	for _, m := range ms {
		r := tree.try(ctx, m, logs)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.err != nil || !r.caught.red {
			missed++
		}
		fmt.Fprintf(stderr, "%s: %s (%s)\n", m.name, r, round(r.took))
		results = append(results, r)
	}
	tw := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "mutant\tcaught by\tafter\n")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", r.name, r, round(r.took))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	fmt.Fprintf(stdout, "%d of %d caught\n", len(ms)-missed, len(ms))
	for _, r := range results {
		if r.err == nil && !r.caught.red {
			fmt.Fprintf(stdout, "survived: %s: %s\n", r.name, r.breaks)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d mutants are not caught: write the test that would notice, or bring the patch up to date", missed)
	}
	return nil
}

// try applies m, lets the suites judge, and takes m back.
func (t *tree) try(ctx context.Context, m mutant, logs string) (r result) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	r.mutant = m
	if r.err = t.apply(ctx, m); r.err != nil {
		return r
	}
	r.caught, r.err = t.judge(ctx, logs, m.name)
	if err := t.revert(ctx, m); r.err == nil {
		r.err = err
	}
	return r
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suite is a group of tests that is quick enough to run for every mutant.
type suite struct {
	name     string
	packages []string // directories from the root
	tags     string
	args     []string // of the test binary
	limit    time.Duration
	clock    bool // its tests wait by the real clock: a busy machine can make one fail
}

// suites in order of what they cost: under a second, a third of a second a seed, a minute.
var suites = []suite{
	{name: "pure", packages: []string{"deadletter", "policy", "consumer/progress", "consumer"}, limit: 2 * time.Minute},
	{name: "sim", packages: []string{"test/sim"}, tags: "synctests", args: []string{"-test.run=TestSimulation"}, limit: 6 * time.Minute},
	{name: "suite", packages: []string{"test/suite"}, args: []string{"-test.short"}, limit: 6 * time.Minute, clock: true},
}

// defaultSeeds is how many seeds of the simulation a mutant must survive, if SEEDS does not say.
const defaultSeeds = "60"

// catch is a suite that went red.
type catch struct {
	red   bool
	suite string
	by    string // the first test that failed, or what ended the suite
}

// judge runs the suites until one is red. The error says that the tree does not
// compile or that a suite could not run. What the suites print goes to a file
// in logs, if that is not empty.
func (t *tree) judge(ctx context.Context, logs, name string) (catch, error) {
	output := io.Discard
	if logs != "" {
		if err := os.MkdirAll(logs, 0o755); err != nil {
			return catch{}, err
		}
		f, err := os.Create(filepath.Join(logs, name+".log"))
		if err != nil {
			return catch{}, err
		}
		defer f.Close()
		output = f
	}
	for _, s := range suites {
		if err := t.compile(ctx, s); err != nil {
			return catch{}, err
		}
		for _, p := range s.packages {
			by, err := t.red(ctx, s, p, output)
			if err != nil || by != "" {
				return catch{red: by != "", suite: s.name, by: by}, err
			}
		}
	}
	return catch{}, nil
}

// compile makes the test binaries of a suite.
func (t *tree) compile(ctx context.Context, s suite) error {
	// Trimmed paths let the build cache serve copies of the tree at other places.
	args := []string{"test", "-c", "-trimpath", "-tags", s.tags, "-o", t.bin + string(filepath.Separator)}
	for _, p := range s.packages {
		args = append(args, "./"+p)
	}
	if err := t.tool(ctx, args...); err != nil {
		return fmt.Errorf("the tests do not compile: %w", err)
	}
	return nil
}

// tool runs the go command in the tree.
func (t *tree) tool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = t.dir
	_, err := cmd.Output()
	return explain(err)
}

// maxDoubtful is how many tests may fail once and pass alone before that is a failure, too.
const maxDoubtful = 5

// red returns what shows that a package's tests are red; empty if they are
// green. Where a busy machine can make a test fail, it counts if it fails again
// alone; else the others are run without it. Virtual time knows no busy machine,
// and a seed does not meet the same moment each time: there one failure is enough.
func (t *tree) red(ctx context.Context, s suite, pkg string, output io.Writer) (string, error) {
	var doubtful []string
	for {
		by, err := t.test(ctx, s, pkg, output, "-test.skip="+patterns(doubtful))
		if err != nil || !s.clock || !strings.HasPrefix(by, "Test") {
			return by, err
		}
		again, err := t.test(ctx, s, pkg, output, "-test.run="+patterns([]string{by}))
		if err != nil || again != "" {
			return by, err
		}
		if doubtful = append(doubtful, by); len(doubtful) > maxDoubtful {
			return "now and then: " + strings.Join(doubtful, ", "), nil
		}
	}
}

// patterns matches exactly the tests with these names, as -test.run and -test.skip want it.
func patterns(names []string) string {
	var all []string
	for _, name := range names {
		parts := strings.Split(name, "/")
		for i, part := range parts {
			parts[i] = "^" + regexp.QuoteMeta(part) + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

// test runs the tests of one package until the first fails, and returns its
// name; empty if all passed. What ends the tests in another way is returned like a name.
func (t *tree) test(ctx context.Context, s suite, pkg string, output io.Writer, more ...string) (by string, err error) {
	began, ended := context.WithTimeout(ctx, s.limit+10*time.Second) // the binary's own limit says more
	defer ended()
	args := slices.Concat([]string{"-test.v=test2json", "-test.timeout=" + s.limit.String()}, s.args, more)
	cmd := exec.CommandContext(began, filepath.Join(t.bin, filepath.Base(pkg)+".test"), args...)
	cmd.Dir = filepath.Join(t.dir, pkg)
	cmd.Env = os.Environ()
	if os.Getenv("SEEDS") == "" {
		cmd.Env = append(cmd.Env, "SEEDS="+defaultSeeds)
	}
	if os.Getenv("PATIENCE") == "" {
		cmd.Env = append(cmd.Env, "PATIENCE=40s") // of a test in test/suite: most mutants make one wait in vain
	}
	cmd.WaitDelay = time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return "", err
	}
	waited := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		w.Close()
		waited <- err
	}()
	by = firstFailure(io.TeeReader(r, output))
	if by != "" {
		ended() // the rest of the suite proves nothing more
	}
	io.Copy(output, r) //nolint:errcheck // until the binary has ended; the log is for people
	err = <-waited
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case by != "" || err == nil:
		return by, nil
	case errors.As(err, &exit):
		return exit.String(), nil // it ended in another way than by a test or a panic
	}
	return "", fmt.Errorf("%s: %w", pkg, err)
}

// The lines by which a test binary says at once that a test begins or has
// failed; a mark for test2json may be before them.
var (
	running = regexp.MustCompile(`^\x16?=== RUN\s+(\S+)`)
	failed  = regexp.MustCompile(`^\x16?\s*--- FAIL: (\S+)`)
)

// firstFailure reads what a test binary prints up to the first test that
// failed. A panic counts as the failure of the test that began last.
func firstFailure(r io.Reader) string {
	lines := bufio.NewReader(r)
	last := ""
	for {
		line, err := lines.ReadBytes('\n')
		if m := failed.FindSubmatch(line); m != nil {
			return string(m[1])
		}
		if m := running.FindSubmatch(line); m != nil {
			last = string(m[1])
		}
		for _, end := range []string{"panic: ", "fatal error: "} {
			if bytes.HasPrefix(line, []byte(end)) {
				return cmp.Or(last, strings.TrimSpace(string(line)))
			}
		}
		if err != nil {
			return ""
		}
	}
}

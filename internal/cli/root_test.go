package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// run is one command line, without the environment of the test.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runEnv(t, nil, args...)
}

func runEnv(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(t.Context(), args, strings.NewReader(""), &out, &err, env)
	return code, out.String(), err.String()
}

func TestACommandLineThatIsWrongExitsWithUsageAndSaysWhyOnStderr(t *testing.T) {
	for line, want := range map[string]string{
		"nonsense":             `unknown command "nonsense" for "recon-dlq"`,
		"--nonsense":           "unknown flag: --nonsense",
		"config":               "recon-dlq config needs a command: check, print",
		"config nonsense":      `unknown command "nonsense" for "recon-dlq config"`,
		"config check extra":   `unknown command "extra" for "recon-dlq config check"`,
		"config check --group": "flag needs an argument: --group",
		"version extra":        `unknown command "extra" for "recon-dlq version"`,
		"version -o xml":       "must be text or json",
		"version --brokers x":  "unknown flag: --brokers",
	} {
		t.Run(line, func(t *testing.T) {
			code, stdout, stderr := run(t, strings.Fields(line)...)
			if code != ExitUsage {
				t.Errorf("exit code %d, want %d", code, ExitUsage)
			}
			if !strings.Contains(stderr, want) || !strings.Contains(stderr, "--help") {
				t.Errorf("stderr %q, want %q and where to find help", stderr, want)
			}
			if stdout != "" {
				t.Errorf("stdout %q, want nothing", stdout)
			}
		})
	}
}

func TestHelpIsDataAndNoError(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help", "config"}, {"config", "--help"}, {"config", "print", "-h"}, {"completion", "bash"}} {
		code, stdout, stderr := run(t, args...)
		if code != ExitOK || stdout == "" || stderr != "" {
			t.Errorf("%q: exit code %d, %d bytes on stdout, stderr %q", args, code, len(stdout), stderr)
		}
	}
}

func TestEveryCommandHasAShortHelpWithoutAFullStop(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short help %q", cmd.CommandPath(), cmd.Short)
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(&app{output: "text"}))
}

func TestTheExitCodeSaysHowACommandEnded(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("interrupt signal received")
	cancel(cause)
	plain := errors.New("broken")
	for name, test := range map[string]struct {
		ctx     context.Context
		err     error
		started bool
		code    int
		say     bool
	}{
		"failed":                            {context.Background(), plain, true, ExitFailed, true},
		"failed before it started":          {context.Background(), plain, false, ExitUsage, true},
		"usage, found by the command":       {context.Background(), usageError("bad"), true, ExitUsage, true},
		"partial":                           {context.Background(), fmt.Errorf("enqueue: %w", &ExitError{Code: ExitPartial, Err: plain}), true, ExitPartial, true},
		"nothing matched, said already":     {context.Background(), &ExitError{Code: ExitNoMatch}, true, ExitNoMatch, false},
		"cut short by a signal":             {interrupted, fmt.Errorf("demo: %w", context.Canceled), true, ExitInterrupted, true},
		"cut short, with the cause":         {interrupted, fmt.Errorf("demo: %w", cause), true, ExitInterrupted, true},
		"failed for another reason by then": {interrupted, plain, true, ExitFailed, true},
		"cancelled, but not by a signal":    {context.Background(), context.Canceled, true, ExitFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := &app{started: test.started}
			if code, say := a.exitCode(test.ctx, test.err); code != test.code || say != test.say {
				t.Errorf("code %d, printed %t; want %d, %t", code, say, test.code, test.say)
			}
		})
	}
}

func TestVersionSaysWhatWasBuilt(t *testing.T) {
	code, stdout, _ := run(t, "version")
	if code != ExitOK || !strings.HasPrefix(stdout, "recon-dlq ") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	code, stdout, _ = run(t, "version", "-o", "json")
	var b build
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != ExitOK {
		t.Fatalf("exit code %d, %v: %s", code, err, stdout)
	}
	if b.Version == "" || !strings.HasPrefix(b.Go, "go1.") || !strings.Contains(b.Platform, "/") {
		t.Errorf("version -o json: %+v", b)
	}
}

const example = "../../deploy/recon-dlq.yaml"

func TestConfigCheckAcceptsTheExample(t *testing.T) {
	code, stdout, stderr := run(t, "config", "check", "-c", example)
	if code != ExitOK || stdout != "configuration ok\n" || stderr != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestConfigCheckReportsAllFaultsAndFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("kafka: {broker: [a:1]}\ndelivery: never\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run(t, "config", "check", "-c", file)
	if code != ExitFailed || stdout != "" {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	for _, want := range []string{"3 faults", file + ":1: kafka.broker: ", file + ":2: delivery: ", "targets: is missing"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, stderr)
		}
	}

	code, stdout, stderr = run(t, "config", "check", "-c", file, "-o", "json")
	var answer checked
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if code != ExitFailed || answer.OK || len(answer.Faults) != 3 || stderr != "" {
		t.Errorf("exit code %d, stderr %q, answer %+v", code, stderr, answer)
	}
}

func TestConfigPrintShowsWhatIsInForceWithoutSecrets(t *testing.T) {
	env := []string{
		"RECON_DLQ_CONFIG=" + example,
		"RECON_DLQ_KAFKA_GROUP=from-env",
		"RECON_DLQ_ESCALATION_WEBHOOK_URL=https://example.org/hook",
		"RECON_DLQ_ESCALATION_WEBHOOK_TOKEN=hunter2",
	}
	code, stdout, stderr := runEnv(t, env, "config", "print", "--instance", "pod-0")
	if code != ExitOK || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{"group: from-env\n", "instance: pod-0\n", "max_inflight_bytes: 64MiB\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("config print has no %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "hunter2") {
		t.Errorf("config print shows a secret:\n%s", stdout)
	}

	code, stdout, _ = runEnv(t, env, "config", "print", "-o", "json")
	if code != ExitOK || !json.Valid([]byte(stdout)) || strings.Contains(stdout, "hunter2") {
		t.Errorf("exit code %d, stdout %s", code, stdout)
	}
}

// failingWriter is a stdout that is closed.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	for _, line := range []string{"version", "version -o json", "config check -c " + example, "config print -c " + example, "config print -o json -c " + example} {
		var stderr bytes.Buffer
		code := Main(t.Context(), strings.Fields(line), strings.NewReader(""), failingWriter{}, &stderr, nil)
		if code != ExitFailed || !strings.Contains(stderr.String(), "closed") {
			t.Errorf("%s: exit code %d, stderr %q", line, code, stderr.String())
		}
	}
}

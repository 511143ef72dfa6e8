// Package cli is the command line of recon-dlq: one file per command. Data goes
// to stdout; progress, logs and errors go to stderr.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/config"
)

// The exit codes. They are part of the interface: scripts depend on them.
const (
	ExitOK          = 0
	ExitFailed      = 1   // the command could not do its work
	ExitUsage       = 2   // the command line is wrong; nothing was done
	ExitPartial     = 3   // some of the input was done, some was refused
	ExitNoMatch     = 4   // nothing matched the selection
	ExitInterrupted = 130 // stopped by a signal before the work was done
)

// ExitError is an error with the exit code it asks for. Err may be nil when
// the command has already said what there is to say: then nothing is printed.
type ExitError struct {
	Code int
	Err  error
}

// Error is the message of Err, or the bare code without one.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap gives Err.
func (e *ExitError) Unwrap() error { return e.Err }

// usageError is for what only the command can see is wrong with its arguments.
func usageError(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// app is what all commands share: the process's streams and environment, and
// the values of the persistent flags.
type app struct {
	in  io.Reader
	out io.Writer // data
	err io.Writer // progress, logs, errors
	env []string  // in the form of os.Environ

	file   string // --config
	output output // -o

	// started is set when arguments and flags were accepted. An error before that is a usage error.
	started bool
}

// load reads the configuration for a command: file, environment and those of
// the command's flags that config defines (add them with config.Flags or
// config.ClientFlags). The error is a *config.Faults, one line each.
func (a *app) load(cmd *cobra.Command) (config.Config, error) {
	return config.Load(a.file, a.env, cmd.Flags())
}

// loadClient is load for commands that only talk to Kafka: they need no target.
func (a *app) loadClient(cmd *cobra.Command) (config.Config, error) {
	return config.LoadClient(a.file, a.env, cmd.Flags())
}

// loadRules is load for commands that only decide: they need no brokers.
func (a *app) loadRules(cmd *cobra.Command) (config.Config, error) {
	return config.LoadRules(a.file, a.env, cmd.Flags())
}

// json says whether the output is for a machine.
func (a *app) json() bool { return a.output == "json" }

// writeJSON writes v to stdout, indented, with a newline at the end.
func (a *app) writeJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// logger writes to stderr: JSON lines with -o json, else text.
func (a *app) logger() *slog.Logger {
	if a.json() {
		return slog.New(slog.NewJSONHandler(a.err, nil))
	}
	return slog.New(slog.NewTextHandler(a.err, nil))
}

// output is the value of -o: text or json.
type output string

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "text|json" }
func (o *output) Set(s string) error {
	switch s {
	case "text", "json":
		*o = output(s)
		return nil
	}
	return errors.New("must be text or json")
}

// Main runs one command line and returns the exit code. args are without the
// program's name; env has the form of os.Environ. When ctx ends by a signal,
// the command stops in order; if it then reports that it was cut short, the
// code is ExitInterrupted.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	a := &app{in: stdin, out: stdout, err: stderr, env: env, output: "text"}
	root := newRoot(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	code, say := a.exitCode(ctx, err)
	if say {
		fmt.Fprintf(stderr, "recon-dlq: %s\n", strings.TrimRight(err.Error(), "\n"))
		if code == ExitUsage {
			fmt.Fprintln(stderr, "Run it with --help to see what it takes.")
		}
	}
	return code
}

// exitCode says which code an error ends with, and whether it is to be printed.
func (a *app) exitCode(ctx context.Context, err error) (code int, say bool) {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code, exit.Err != nil
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return ExitInterrupted, true
	}
	if !a.started {
		return ExitUsage, true
	}
	return ExitFailed, true
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "recon-dlq",
		Short: "Make sure no reconciliation discrepancy is forgotten",
		Long: `recon-dlq takes every discrepancy that a reconciliation could not fix by itself
from Kafka, tries to remediate it, and makes sure that each one ends either
resolved or in front of a human.

Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 4 nothing matched, 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.PersistentFlags().StringVarP(&a.file, "config", "c", "", "configuration file, YAML (or RECON_DLQ_CONFIG)")
	root.PersistentFlags().VarP(&a.output, "output", "o", "form of the output: text or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
	root.AddCommand(commands(a)...)
	a.markStart(root)
	return root
}

// markStart wraps every command so that it is known, in exitCode, whether an
// error came from reading the command line or from the command itself. A
// command that only groups others refuses to be run alone.
func (a *app) markStart(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.markStart(sub)
	}
	switch run := cmd.RunE; {
	case run != nil:
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	case cmd.HasParent() && cmd.HasSubCommands():
		cmd.Args = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			names := make([]string, 0, len(cmd.Commands()))
			for _, sub := range cmd.Commands() {
				names = append(names, sub.Name())
			}
			return usageError("%s needs a command: %s", cmd.CommandPath(), strings.Join(names, ", "))
		}
	}
}

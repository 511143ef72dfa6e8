package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/internal/demo"
)

func newDemo(a *app) *cobra.Command {
	var exit, plain bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the main job on an embedded broker, with nothing to install",
		Long: `Settles 1200 discrepancies on a sample ledger, a small HTTP service over SQLite.
Some records fail and are retried, a few can never succeed, two are malformed, and
in the middle the ledger goes down and comes back. The worker is the one of the run
command; only broker and target are embedded.

Then every record is accounted for, by what is in the topics, and the ledger is
compared with its source of truth. That goes to stdout; progress is shown on stderr,
as a live view where that is a terminal.

The broker is a fake one in this process (kfake, on loopback): it keeps nothing when
the demo ends, and is no broker for anything else. The configuration is not read:
the demo has its own.

Exit codes: 0 every record is accounted for, 1 not so, or it could not run,
130 stopped before all was settled.`,
		Example: `  recon-dlq demo
  recon-dlq demo --exit -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sum, err := demo.Run(cmd.Context(), demo.Options{
				Script: demo.DefaultScript(), Exit: exit, Plain: plain || a.json(),
				In: a.in, Err: a.err, Env: a.env, Version: readBuild().Version, Program: os.Args[0],
				Report: a.reportDemo,
			})
			return concludeDemo(sum, err)
		},
	}
	cmd.Flags().BoolVar(&exit, "exit", false, "end when all is settled (default: stay until stopped)")
	cmd.Flags().BoolVar(&plain, "plain", false, "a line of progress a second instead of the live view")
	return cmd
}

// concludeDemo turns what became of a demo into its exit code.
func concludeDemo(s demo.Summary, err error) error {
	if errors.Is(err, demo.ErrStopped) {
		return &ExitError{Code: ExitInterrupted, Err: err}
	}
	return errors.Join(err, s.Err())
}

func (a *app) reportDemo(s demo.Summary) error {
	if a.json() {
		return a.writeJSON(s)
	}
	return s.WriteText(a.out)
}

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/internal/demo/ledger"
)

// newDemoTarget serves the demo's ledger by itself, for the compose file and for
// tests that want a target in another process.
func newDemoTarget(a *app) *cobra.Command {
	var (
		o      ledger.Options
		listen string
	)
	cmd := &cobra.Command{
		Use:    "demo-target",
		Short:  "Serve the demo's ledger, a sample target",
		Hidden: true,
		Long: `Serves a small ledger over SQLite that speaks the handler contract:
POST /remediate settles a discrepancy of the demo's set, GET /stats counts what
was done. It starts from the same state each time, and is no more than a sample.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.FailOnce < 0 || o.FailOnce > 1:
				return usageError("--fail-once: %v is not a share between 0 and 1", o.FailOnce)
			case o.Refuse < 0 || o.Refuse > 1:
				return usageError("--refuse: %v is not a share between 0 and 1", o.Refuse)
			case o.Latency < 0:
				return usageError("--latency: %v is negative", o.Latency)
			}
			return ledger.Serve(cmd.Context(), listen, o, func(addr string) {
				fmt.Fprintf(a.err, "ledger: POST http://%s/remediate\n", addr)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on, host:port")
	f.StringVar(&o.Path, "db", "", "file of a new database (default in memory)")
	f.DurationVar(&o.Latency, "latency", 0, "of each call")
	f.Float64Var(&o.FailOnce, "fail-once", 0, "share of records whose first call fails with 500")
	f.Float64Var(&o.Refuse, "refuse", 0, "share of records that are always refused with 422")
	return cmd
}

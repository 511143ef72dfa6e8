package cli

import (
	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/worker"
)

func newRun(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a worker until it is stopped",
		Long: `Takes every record of the source topics and the tiers to its end: resolved, or in
poison and told to people. It verifies topics and rights first, and says what is
missing and how to mend it. The first SIGTERM or interrupt drains, commits and
leaves, within 40 seconds; a second one kills at once, which costs nothing but
handler calls that are made again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			w, err := worker.New(worker.Options{Config: cfg, Logger: a.logger(), Version: readBuild().Version})
			if err != nil {
				return err
			}
			worker.TuneMemory(cfg.Limits.MaxInflightBytes)
			return w.Run(cmd.Context())
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}

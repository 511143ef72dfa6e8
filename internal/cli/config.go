package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/config"
)

func newConfig(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check or print the configuration",
	}
	cmd.AddCommand(newConfigCheck(a), newConfigPrint(a))
	return cmd
}

// checked is the answer of config check for machines.
type checked struct {
	OK     bool           `json:"ok"`
	Faults []config.Fault `json:"faults"`
}

func newConfigCheck(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Report every fault of the configuration at once, with its place",
		Long: `Reads file, environment and flags as run does, and reports every fault with its
place: 0 if there is none, else 1. Nothing is contacted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := a.load(cmd)
			if a.json() {
				answer := checked{OK: err == nil, Faults: []config.Fault{}}
				if err != nil {
					faults, ok := errors.AsType[*config.Faults](err)
					if !ok {
						return err
					}
					answer.Faults = faults.List
				}
				if werr := a.writeJSON(answer); werr != nil {
					return werr
				}
				if err != nil {
					return &ExitError{Code: ExitFailed}
				}
				return nil
			}
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.out, "configuration ok"); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			return nil
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}

func newConfigPrint(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the configuration in force, defaults included, as YAML",
		Long: `Prints what file, environment, flags and defaults add up to, as a file that loads
again to the same. It has no secrets: only the paths of the files that hold them.
With -o json the same document as JSON.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.load(cmd)
			if err != nil {
				return err
			}
			if a.json() {
				return c.PrintJSON(a.out)
			}
			return c.Print(a.out)
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}

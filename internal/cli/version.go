package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what the binary knows about itself.
type build struct {
	Version  string `json:"version"`            // module version, "(devel)" from a work tree
	Revision string `json:"revision,omitempty"` // commit
	Modified bool   `json:"modified"`           // built from a changed tree
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go release it was built with",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			if a.json() {
				return a.writeJSON(b)
			}
			line := "recon-dlq " + b.Version
			if b.Revision != "" {
				line += " " + b.Revision
				if b.Modified {
					line += " (modified)"
				}
			}
			if _, err := fmt.Fprintf(a.out, "%s %s %s\n", line, b.Go, b.Platform); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			return nil
		},
	}
}

package cli

import "github.com/spf13/cobra"

// commands lists every command of the program, one line each.
func commands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newConfig(a),
		newDemo(a),
		newDemoTarget(a),
		newEnqueue(a),
		newExplain(a),
		newPolicy(a),
		newRun(a),
		newTopics(a),
		newVersion(a),
	}
}

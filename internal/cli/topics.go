package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/worker"
)

func newTopics(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topics",
		Short: "Plan or create the topics that the configuration needs",
	}
	cmd.AddCommand(newTopicsPlan(a), newTopicsApply(a))
	return cmd
}

// planned is the answer of topics plan and topics apply for machines.
type planned struct {
	Changes []kafka.Change `json:"changes"`
	Refused int            `json:"refused"` // how many of them cannot be made
}

func newTopicsPlan(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what topics apply would do; nothing is changed",
		Long: `Compares the cluster with the configuration and prints each topic that would be
created or altered, and what cannot be mended. Nothing is changed. The exit code
is 0 whether or not there is something to do: -o json tells scripts which.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withPlan(cmd, func(*kgo.Client, planned) error { return nil })
		},
	}
	config.ClientFlags(cmd.Flags())
	return cmd
}

func newTopicsApply(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Create what is missing and alter what would lose records",
		Long: `Makes the cluster's topics what the configuration needs: creates missing ones,
alters settings with which records would be lost. It can be run again at any
time: then it has nothing to do. No topic is deleted, no record is touched, and a
longer retention or larger size than needed stays.

Exit code 3: what could be done is done, something cannot be mended.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withPlan(cmd, func(cl *kgo.Client, p planned) error {
				if err := kafka.Apply(cmd.Context(), cl, p.Changes); err != nil {
					return fmt.Errorf("apply: %w", err)
				}
				if p.Refused > 0 {
					return &ExitError{Code: ExitPartial, Err: fmt.Errorf("%d of %d changes cannot be made, see the lines that say refuse", p.Refused, len(p.Changes))}
				}
				return nil
			})
		},
	}
	config.ClientFlags(cmd.Flags())
	return cmd
}

// withPlan makes the plan, prints it, and gives it to then if there is something to do.
func (a *app) withPlan(cmd *cobra.Command, then func(*kgo.Client, planned) error) error {
	cfg, err := a.load(cmd)
	if err != nil {
		return err
	}
	layout, _, err := worker.Layout(cfg)
	if err != nil {
		return err
	}
	cl, err := a.connect(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer cl.Close()
	changes, err := kafka.Plan(cmd.Context(), cl, layout)
	if err != nil {
		return err
	}
	p := planned{Changes: changes}
	if changes == nil {
		p.Changes = []kafka.Change{}
	}
	for _, ch := range changes {
		if ch.Action == kafka.Refuse {
			p.Refused++
		}
	}
	if a.json() {
		err = a.writeJSON(p)
	} else {
		err = printChanges(a.out, changes)
	}
	if err != nil {
		return err
	}
	if len(changes) == 0 {
		fmt.Fprintln(a.err, "nothing to do: all topics are as the configuration needs them")
		return nil
	}
	return then(cl, p)
}

// connect opens a client once the cluster has answered. What the client has to
// say goes to stderr.
func (a *app) connect(ctx context.Context, cfg config.Config, opts ...kgo.Opt) (*kgo.Client, error) {
	conn, err := worker.Conn(cfg)
	if err != nil {
		return nil, err
	}
	conn.Logger = a.logger()
	conn.Watch = kafka.NewWatch(conn.Logger, nil)
	if err := kafka.Reach(ctx, conn); err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(conn.Opts(), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("open a client: %w", err)
	}
	return cl, nil
}

// printChanges writes one line for each change; a longer change continues on
// the lines below its first.
func printChanges(w io.Writer, changes []kafka.Change) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, ch := range changes {
		var what []string
		switch ch.Action {
		case kafka.CreateTopic:
			what = append(what, fmt.Sprintf("partitions=%d replication=%d", ch.Partitions, ch.Replication))
		case kafka.AddPartitions:
			what = append(what, fmt.Sprintf("partitions=%d", ch.Partitions))
		case kafka.Refuse:
			what = append(what, ch.Reason)
		}
		var settings []string
		for _, s := range ch.Config {
			if s.From == "" {
				settings = append(settings, s.Key+"="+s.To)
			} else {
				settings = append(settings, fmt.Sprintf("%s=%s (was %s)", s.Key, s.To, s.From))
			}
		}
		what = append(what, settings...)
		fmt.Fprintf(tw, "%s\t%s\t%s\n", ch.Action, ch.Topic, strings.Join(what, " "))
	}
	if err := tw.Flush(); err != nil {
		return errors.Join(errors.New("write output"), err)
	}
	return nil
}

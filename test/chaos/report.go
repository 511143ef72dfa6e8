package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// result is what one run found.
type result struct {
	Records   int `json:"records"`
	Resolved  int `json:"resolved"`
	Retried   int `json:"retried"`
	Poisoned  int `json:"poisoned"`
	Escalated int `json:"escalated"`
	Kills     int `json:"kills"`

	Lost    int `json:"lost"`
	Doubled int `json:"doubled"`
	Early   int `json:"early"` // handler calls before a copy's not-before

	Calls    int `json:"handler_calls"`
	RunAgain int `json:"handlers_run_again"` // calls beyond the first of an attempt: killed before it was committed, or not counted

	LongestStall time.Duration `json:"longest_stall_ns"` // without a new visible effect
	StalledAt    time.Duration `json:"stalled_at_ns"`    // when that began, from the first record produced
	Lateness     time.Duration `json:"lateness_ns"`      // the longest from a not-before to its call, kills included
	Settled      time.Duration `json:"settled_ns"`       // from the first record produced until all was done
	PerSecond    float64       `json:"records_per_second"`
	Wall         time.Duration `json:"wall_ns"` // of everything, the cluster's start left out

	Seed     uint64   `json:"seed"` // of the random moments
	Workers  int      `json:"workers"`
	Nodes    int      `json:"nodes"`
	Kafka    string   `json:"kafka"`
	Delivery string   `json:"delivery"`
	Faults   []string `json:"faults,omitempty"` // empty: the promise was kept
	Kept     string   `json:"kept,omitempty"`   // directory of the logs, after a fault or on request
}

func (r *result) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

func (r *result) print(w io.Writer, output string) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name string, value any) { fmt.Fprintf(tw, "%s\t%v\t\n", name, value) }
	line("records", r.Records)
	line("resolved", r.Resolved)
	line("retried", r.Retried)
	line("poisoned", r.Poisoned)
	line("escalated", r.Escalated)
	line("kills", r.Kills)
	line("lost", r.Lost)
	line("doubled", r.Doubled)
	line("early", r.Early)
	line("handler calls", r.Calls)
	line("handlers run again", r.RunAgain)
	line("longest stall", fmt.Sprintf("%s, at %s", r.LongestStall.Round(time.Millisecond), r.StalledAt.Round(time.Millisecond)))
	line("latest call after due", r.Lateness.Round(time.Millisecond))
	line("until settled", r.Settled.Round(time.Millisecond))
	line("records/s", fmt.Sprintf("%.0f", r.PerSecond))
	line("wall time", r.Wall.Round(time.Millisecond))
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "Apache Kafka %s, nodes %d, workers %d, %s, -seed %d\n", r.Kafka, r.Nodes, r.Workers, r.Delivery, r.Seed)
	for _, f := range r.Faults {
		fmt.Fprintf(w, "FAULT: %s\n", f)
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "logs are kept in %s\n", r.Kept)
	}
	return nil
}

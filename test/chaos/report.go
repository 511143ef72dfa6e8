package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/recon-dlq/recon-dlq/config"
)

// result is what one run found.
type result struct {
	Records   int `json:"records"`
	Resolved  int `json:"resolved"`
	Retried   int `json:"retried"`
	Poisoned  int `json:"poisoned"`
	Escalated int `json:"escalated"`

	Struck map[string]int `json:"struck"`     // faults that were made, by kind
	GaveUp int            `json:"gave_up"`    // starts in which the cluster could not be reached; the worker ended and was started again
	Met    map[string]int `json:"errors_met"` // lines of the workers' logs, by the Kafka error code they name

	Lost    int `json:"lost"`
	Doubled int `json:"doubled"`
	// DoubledBound is what may be doubled at least once: twice what was in flight
	// at each fault, for its enqueued event and its effect.
	DoubledBound int `json:"doubled_bound,omitempty"`
	Early        int `json:"early"` // handler calls before a copy's not-before

	Calls    int `json:"handler_calls"`
	RunAgain int `json:"handlers_run_again"` // calls beyond the first of an attempt: killed before it was committed, or not counted

	LongestStall time.Duration `json:"longest_stall_ns"` // without a new visible effect
	StalledAt    time.Duration `json:"stalled_at_ns"`    // when that began, from the first record produced
	StalledBy    []string      `json:"stalled_by"`       // faults at work meanwhile
	LongestStop  time.Duration `json:"longest_stop_ns"`  // from SIGTERM to the end of a worker
	Lateness     time.Duration `json:"lateness_ns"`      // the longest from a not-before to its call, kills included
	Settled      time.Duration `json:"settled_ns"`       // from the first record produced until all was done
	PerSecond    float64       `json:"records_per_second"`
	Wall         time.Duration `json:"wall_ns"` // of everything, the cluster's start left out

	Seed               uint64   `json:"seed"` // of the random moments
	Workers            int      `json:"workers"`
	Nodes              int      `json:"nodes"`
	Kafka              string   `json:"kafka"`
	Delivery           string   `json:"delivery"`
	Static             bool     `json:"static"`              // workers have an instance name
	TransactionVersion int      `json:"transaction_version"` // 0: Kafka's default
	Faults             []string `json:"faults,omitempty"`    // empty: the promise was kept
	Kept               string   `json:"kept,omitempty"`      // directory of the logs, after a fault or on request
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
	line("lost", r.Lost)
	line("doubled", r.Doubled)
	if r.Delivery == string(config.AtLeastOnce) {
		line("doubled at most", r.DoubledBound)
	}
	line("early", r.Early)
	line("handler calls", r.Calls)
	line("handlers run again", r.RunAgain)
	line("longest stop", r.LongestStop.Round(time.Millisecond))
	line("longest stall", fmt.Sprintf("%s, at %s", r.LongestStall.Round(time.Millisecond), r.StalledAt.Round(time.Millisecond)))
	line("latest call after due", r.Lateness.Round(time.Millisecond))
	line("until settled", r.Settled.Round(time.Millisecond))
	line("records/s", fmt.Sprintf("%.0f", r.PerSecond))
	line("wall time", r.Wall.Round(time.Millisecond))
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(r.Struck)) {
		total += r.Struck[kind]
		line("fault: "+kind, r.Struck[kind])
	}
	line("faults", total)
	line("starts given up", r.GaveUp)
	for _, name := range slices.Sorted(maps.Keys(r.Met)) {
		line("met: "+name, r.Met[name])
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range r.StalledBy {
		fmt.Fprintf(w, "in the longest stall: %s\n", s)
	}
	members, protocol := "dynamic", ""
	if r.Static {
		members = "static"
	}
	if r.TransactionVersion > 0 {
		protocol = fmt.Sprintf(", transaction.version %d", r.TransactionVersion)
	}
	fmt.Fprintf(w, "Apache Kafka %s, nodes %d, %d %s workers, %s%s, -seed %d\n", r.Kafka, r.Nodes, r.Workers, members, r.Delivery, protocol, r.Seed)
	for _, f := range r.Faults {
		fmt.Fprintf(w, "FAULT: %s\n", f)
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "logs are kept in %s\n", r.Kept)
	}
	return nil
}

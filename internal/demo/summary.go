package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/internal/demo/data"
	"github.com/recon-dlq/recon-dlq/internal/demo/ledger"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// Summary is what became of the records of a demo. Its JSON is the output of
// `recon-dlq demo -o json`.
type Summary struct {
	Discrepancies  int                 `json:"discrepancies"` // records that were enqueued
	Resolved       int                 `json:"resolved"`
	Poison         int                 `json:"poison"`
	PoisonByReason map[string]int      `json:"poison_by_reason"`
	PoisonIDs      map[string][]string `json:"poison_ids"` // discrepancy ids by reason
	Escalated      int                 `json:"escalated"`  // poison records that people were told of

	Calls      int `json:"calls"`       // of the target that ended, those that found it down included
	Retried    int `json:"retried"`     // failed calls that were counted, and followed by another
	NotCounted int `json:"not_counted"` // calls that found the target down: no attempt of the record

	Outages       int     `json:"outages"`
	OutageSeconds float64 `json:"outage_seconds"`
	HeldPeak      int     `json:"held_peak"` // records that were held at one moment, at most

	// Unaccounted are records whose end is not to be found. Duplicates are ends,
	// copies and events beyond the one, and fixes that the ledger made twice.
	Unaccounted    int      `json:"unaccounted"`
	UnaccountedIDs []string `json:"unaccounted_ids,omitempty"`
	Duplicates     int      `json:"duplicates"`

	CalledEarly     int      `json:"called_early"`       // calls before a retry was due
	LatenessSeconds float64  `json:"lateness_seconds"`   // the longest from due to called, the outage included
	BrokenPromises  []string `json:"broken_promises"`    // what the invariants found; empty if all was kept
	LedgerEntries   int      `json:"ledger_entries"`     // of the ledger at the end
	LedgerInPoison  int      `json:"ledger_in_poison"`   // entries that differ from the source of truth because their record is in poison
	LedgerDiffering int      `json:"ledger_differences"` // entries that differ for no such reason

	Seconds float64 `json:"seconds"`
}

// Err is nil if every record is accounted for, nothing was done twice, no
// promise was broken, and the ledger is as it should be.
func (s Summary) Err() error {
	var errs []error
	if s.Unaccounted > 0 {
		errs = append(errs, fmt.Errorf("%d of %d records are unaccounted for: %s", s.Unaccounted, s.Discrepancies, few(s.UnaccountedIDs, 10)))
	}
	if s.Duplicates > 0 {
		errs = append(errs, fmt.Errorf("%d effects were made twice", s.Duplicates))
	}
	if s.Escalated != s.Poison {
		errs = append(errs, fmt.Errorf("%d records are in poison, and people were told of %d", s.Poison, s.Escalated))
	}
	if s.LedgerDiffering > 0 {
		errs = append(errs, fmt.Errorf("%d entries of the ledger differ from the source of truth without a record in poison", s.LedgerDiffering))
	}
	if len(s.BrokenPromises) > 0 {
		errs = append(errs, fmt.Errorf("promises were broken:\n  %s", strings.Join(s.BrokenPromises, "\n  ")))
	}
	return errors.Join(errs...)
}

// account finds the end of each record that was sent, by its origin.
func account(records []sent, trail []audit.Event) Summary {
	ends := make(map[string][]audit.Event, len(records))
	escalated := make(map[string]bool)
	for _, e := range trail {
		switch e.Type {
		case audit.Resolved, audit.Poisoned, audit.Expired:
			ends[e.Origin] = append(ends[e.Origin], e)
		case audit.Escalated:
			escalated[e.Origin] = true
		case audit.Enqueued, audit.RetryScheduled, audit.Retiered:
		}
	}
	s := Summary{Discrepancies: len(records), PoisonByReason: map[string]int{}, PoisonIDs: map[string][]string{}, BrokenPromises: []string{}}
	for _, r := range records {
		found := ends[r.origin]
		s.Duplicates += max(0, len(found)-1)
		switch {
		case len(found) > 0 && found[0].Type == audit.Resolved:
			s.Resolved++
		case len(found) > 0 && found[0].Type == audit.Poisoned:
			s.Poison++
			s.PoisonByReason[found[0].Reason]++
			s.PoisonIDs[found[0].Reason] = append(s.PoisonIDs[found[0].Reason], r.discrepancy.ID)
			if escalated[r.origin] {
				s.Escalated++
			}
		default:
			s.Unaccounted++
			s.UnaccountedIDs = append(s.UnaccountedIDs, r.discrepancy.ID)
		}
	}
	for _, ids := range s.PoisonIDs {
		slices.Sort(ids)
	}
	slices.Sort(s.UnaccountedIDs)
	return s
}

// reconcile compares the ledger with the source of truth. What differs because
// its record is in poison, or was not sent, is as it should be.
func (s *Summary) reconcile(records []sent, entries []data.Entry) {
	was := make(map[string]bool, len(records))
	for _, r := range records {
		was[r.discrepancy.ID] = true
	}
	poison := make(map[string]bool)
	for _, ids := range s.PoisonIDs {
		for _, id := range ids {
			poison[id] = true
		}
	}
	s.LedgerEntries = len(entries)
	for _, diff := range ledger.Compare(entries) {
		switch {
		case poison[diff.DiscrepancyID]:
			s.LedgerInPoison++
		case was[diff.DiscrepancyID]:
			s.LedgerDiffering++
		}
	}
}

// check adds what the invariants found.
func (s *Summary) check(r invariants.Report) {
	s.Retried = r.Retried
	s.Duplicates = max(s.Duplicates, r.Doubled)
	s.CalledEarly = r.Early
	s.LatenessSeconds = r.Lateness.Seconds()
	s.BrokenPromises = append(s.BrokenPromises, r.Faults...)
}

// summarize counts what became of every record, from the topics and the ledger.
// Of the last state it takes what is only there to be seen while it happens.
func (d *demo) summarize(ctx context.Context, last State) (Summary, error) {
	conn := kafka.Conn{Brokers: d.cfg.Kafka.Brokers, ClientID: "recon-dlq-demo-count"}
	d.mu.Lock()
	records := slices.Clone(d.sent)
	calls := maps.Clone(d.calls)
	outages, down := d.outages, d.down
	d.mu.Unlock()

	s, err := d.accountSettled(ctx, conn, records)
	if err != nil {
		return Summary{}, err
	}
	report, err := invariants.Check(ctx, conn.Opts(), invariants.Spec{
		Sources: d.cfg.Source.Topics, RetryPrefix: d.cfg.Topics.Retry, HoldPrefix: d.cfg.Topics.Hold,
		Poison: d.cfg.Topics.Poison, Audit: d.cfg.Topics.Audit, Group: d.cfg.Kafka.Group,
		Settled: true, Escalated: true, HandlerCalls: calls,
	})
	if err != nil {
		return Summary{}, err
	}
	s.check(report)
	entries, err := d.ledger.Snapshot(ctx)
	if err != nil {
		return Summary{}, err
	}
	s.reconcile(records, entries)
	stats, err := d.ledger.Stats(ctx)
	if err != nil {
		return Summary{}, err
	}
	s.Duplicates += int(stats.Duplicates)
	s.Calls, s.NotCounted, s.HeldPeak = last.Calls, last.NotCounted, last.HeldPeak
	s.Outages, s.OutageSeconds = outages, down.Seconds()
	s.Seconds = time.Since(d.start).Seconds()
	return s, nil
}

// accountSettled accounts for the records. It waits a little for the escalator,
// which notes that it has told people after it has.
func (d *demo) accountSettled(ctx context.Context, conn kafka.Conn, records []sent) (Summary, error) {
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		trail, err := readTrail(ctx, conn.Opts(), d.cfg.Topics.Audit)
		if err != nil {
			return Summary{}, err
		}
		s := account(records, trail)
		if s.Escalated == s.Poison {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return Summary{}, ctx.Err()
		case <-deadline.C:
			return s, nil
		case <-t.C:
		}
	}
}

// WriteText writes the summary for people.
func (s Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line("arrived", "%5d discrepancies, in %.0f s", s.Discrepancies, s.Seconds)
	line("resolved", "%5d", s.Resolved)
	line("poison", "%5d in front of people, %d of them told", s.Poison, s.Escalated)
	for _, reason := range slices.Sorted(maps.Keys(s.PoisonByReason)) {
		line("", "%5d %s: %s", s.PoisonByReason[reason], reason, few(s.PoisonIDs[reason], 5))
	}
	sum := "="
	if s.Resolved+s.Poison != s.Discrepancies {
		sum = "≠"
	}
	line("accounted", "%5d arrived %s %d resolved + %d poison; unaccounted for: %d", s.Discrepancies, sum, s.Resolved, s.Poison, s.Unaccounted)
	line("duplicates", "%5d", s.Duplicates)
	line("calls", "%5d of the target; %d failed and were retried, %d of them before they were due", s.Calls, s.Retried, s.CalledEarly)
	line("outage", "%5d for %.1f s; up to %d records held; %d calls found the target down and cost no attempt", s.Outages, s.OutageSeconds, s.HeldPeak, s.NotCounted)
	line("ledger", "%5d entries; %d differ from the source of truth: %d whose record is in poison, %d without reason",
		s.LedgerEntries, s.LedgerInPoison+s.LedgerDiffering, s.LedgerInPoison, s.LedgerDiffering)
	_, err := io.WriteString(w, b.String())
	return err
}

// few lists ids, n at most.
func few(ids []string, n int) string {
	if len(ids) <= n {
		return strings.Join(ids, " ")
	}
	return fmt.Sprintf("%s … and %d more", strings.Join(ids[:n], " "), len(ids)-n)
}

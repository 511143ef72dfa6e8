package main

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// sampleEvery is how often workers are asked for what they have in flight.
const sampleEvery = 500 * time.Millisecond

// sample is what a worker had in flight at a moment: records it was about to
// call, called, or had results of that were not committed.
type sample struct {
	at      time.Time
	records int
}

// watchInflight samples what the workers have in flight until ctx ends. One
// that is stopped or away gives no samples.
func (x *arena) watchInflight(ctx context.Context) error {
	for rest(ctx, sampleEvery) == nil {
		for i, w := range x.workers {
			metrics, err := scrape(ctx, w.metrics, sampleEvery)
			if err != nil {
				continue
			}
			x.mu.Lock()
			x.samples[i] = append(x.samples[i], sample{time.Now(), inflightOf(metrics)})
			x.mu.Unlock()
		}
	}
	return nil
}

// inflightOf reads what a worker has in flight from its metrics.
func inflightOf(metrics string) (records int) {
	for line := range strings.Lines(metrics) {
		for _, state := range []string{"due", "calling", "uncommitted"} {
			if value, ok := strings.CutPrefix(line, `recon_dlq_inflight{state="`+state+`"} `); ok {
				n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
				records += int(n)
			}
		}
	}
	return records
}

// atMost is the most a worker had in flight between two moments, or just before
// the first where it gave no sample.
func atMost(samples []sample, from, to time.Time) (records int) {
	for _, s := range samples {
		switch {
		case s.at.After(to):
			return records
		case s.at.Before(from):
			records = s.records
		default:
			records = max(records, s.records)
		}
	}
	return records
}

// inflightAtFaults sums up over all faults what all workers had in flight from
// a fault's begin until a moment after its end. All workers, because a fault of
// one lets the group form anew, in which a commit of any can fail.
func (x *arena) inflightAtFaults() (records int) {
	for _, s := range x.history {
		for _, samples := range x.samples {
			records += atMost(samples, s.from, s.to.Add(2*sampleEvery))
		}
	}
	return records
}

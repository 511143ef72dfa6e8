package main

import (
	"context"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

// failOnce: every record of the source fails once and is resolved from a 1 s
// tier. The engine writes three events a record (enqueued, the copy's, resolved),
// the loop two. Its first answer is "in progress": a target that fails all first
// calls is an outage to the engine, which then rightly holds everything; the way
// of the record is the same, one copy and one event.
func (b *bench) failOnce(ctx context.Context) ([]result.Row, error) {
	engine := func(ctx context.Context, n names, records int) (time.Duration, error) {
		return b.engine(ctx, work{Names: n, Counter: resolved, Until: records}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Snoozes == 0 {
				return inProgress(ctx, r)
			}
			return deadletter.Outcome{Class: deadletter.Resolved}
		})
	}
	runs, err := b.compare(ctx, "fail-once", input{delays: []time.Duration{hop}}, b.records/2,
		contender{"engine", engine}, contender{"at-least-once loop", b.failOnceLoop})
	if err != nil {
		return nil, err
	}
	return []result.Row{{
		Name: "fail-once", Figure: "every record fails once and is resolved from a 1 s tier, against an at-least-once loop",
		Unit: "x", Digits: 2, Reach: result.AtLeast(0.85), Reps: ratios(runs[0], runs[1]),
	}}, nil
}

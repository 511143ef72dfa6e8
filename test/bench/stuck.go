package main

import (
	"context"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

// stuck: a hop in which the handler of the first record never returns. How much
// longer do the others take than in a run without it?
func (b *bench) stuck(ctx context.Context) ([]result.Row, error) {
	run := func(hang bool) func(context.Context, names, int) (time.Duration, error) {
		return func(ctx context.Context, n names, records int) (time.Duration, error) {
			released := make(chan struct{})
			defer close(released)
			// Both have the timeout after which a handler is given up.
			w := work{Names: n, Timeout: 200 * time.Millisecond, Counter: retries, Until: records}
			if hang {
				w.Until--
			}
			return b.engine(ctx, w, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
				if hang && r.Input.Partition == 0 && r.Input.Offset == 0 {
					<-released
				}
				return inProgress(ctx, r)
			})
		}
	}
	runs, err := b.compare(ctx, "stuck", hopInput, b.records*2/3, contender{"one record stuck", run(true)}, contender{"none stuck", run(false)})
	if err != nil {
		return nil, err
	}
	return []result.Row{{
		Name: "stuck", Figure: "one record stuck for ever: time to settle the others, against a run without it",
		Unit: "x", Digits: 3, Reach: result.AtMost(1.02), Reps: ratios(runs[1], runs[0]),
	}}, nil
}

package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

const (
	inFlight    = 256
	handlerTime = 10 * time.Millisecond
	slowTime    = 10 * handlerTime
	slowEvery   = 100
)

// ceiling: a hop with handlers that take their time, one in a hundred ten times
// as long. No engine can do more than workers / mean handler time; how much of
// that is done? The mean is measured inside of the handler: a timer fires late on
// a busy machine, and that is not the engine's.
func (b *bench) ceiling(ctx context.Context) ([]result.Row, error) {
	var means []time.Duration // by run, that of the warm-up first
	engine := func(ctx context.Context, n names, records int) (time.Duration, error) {
		var calls, spent atomic.Int64
		took, err := b.engine(ctx, work{Names: n, Concurrency: inFlight, Counter: retries, Until: records}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
			begin, d := time.Now(), handlerTime
			if calls.Add(1)%slowEvery == 0 {
				d = slowTime
			}
			wait(ctx, d)
			spent.Add(int64(time.Since(begin)))
			return inProgress(ctx, r)
		})
		means = append(means, time.Duration(spent.Load()/max(calls.Load(), 1)))
		return took, err
	}
	runs, err := b.compare(ctx, "ceiling", hopInput, b.records*2/3, contender{"engine", engine})
	if err != nil {
		return nil, err
	}
	row := result.Row{
		Name: "ceiling", Figure: "10 ms handlers, 1 % ten times slower, 256 in flight: share of workers / mean handler time",
		Digits: 3, Reach: result.AtLeast(0.94),
	}
	for i, m := range runs[0] {
		mean := means[i+1]
		b.log.Printf("ceiling: the handlers took %.2f ms on average", mean.Seconds()*1e3)
		row.Reps = append(row.Reps, result.Rep{Value: m.rate() * mean.Seconds() / inFlight, Foreign: m.used.foreign()})
	}
	return []result.Row{row}, nil
}

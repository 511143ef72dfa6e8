package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is one way to hurt a worker. Another one – stopped and continued, asked
// to end, cut off from the broker – is another value of this type.
type fault struct {
	name string
	// strike hurts the worker for the length of pause and heals it again. It has
	// the worker for itself.
	strike func(ctx context.Context, w *worker, pause time.Duration) error
}

// killed is kill -9 and, after the pause, a new process.
var killed = fault{name: "kill -9", strike: func(ctx context.Context, w *worker, pause time.Duration) error {
	w.proc.kill()
	if err := rest(ctx, pause); err != nil {
		return err
	}
	return w.start()
}}

// blow is one fault that will happen.
type blow struct {
	fault  fault
	worker int           // index
	at     int           // once so many effects are visible
	delay  time.Duration // and so much later: not always right after a commit
	pause  time.Duration // how long it lasts
}

// Bounds of the random times of a blow.
const (
	maxDelay = 500 * time.Millisecond
	maxPause = 3 * time.Second
)

// plan makes n blows at random moments of a run that will have at least so many effects.
// A moment is a count of effects and not a time, so that they are spread over
// the run however fast the machine is. The same generator gives the same plan.
func plan(rng *rand.Rand, f fault, n, workers, effects int) []blow {
	blows := make([]blow, n)
	for i := range blows {
		blows[i] = blow{
			fault:  f,
			worker: rng.IntN(workers),
			at:     rng.IntN(effects*9/10 + 1),
			delay:  time.Duration(rng.Int64N(int64(maxDelay))),
			pause:  time.Duration(rng.Int64N(int64(maxPause))),
		}
	}
	slices.SortStableFunc(blows, func(a, b blow) int { return cmp.Compare(a.at, b.at) })
	return blows
}

// rest waits for d, or returns why ctx ended.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

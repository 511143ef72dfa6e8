package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// blow is one fault that will happen.
type blow struct {
	fault  fault
	victim int           // index of a worker or a node
	at     int           // once so many effects are visible
	after  time.Duration // and so long after the start
	delay  time.Duration // and so much later: not always right after a commit
	pause  time.Duration // how long it lasts
}

// maxDelay bounds the delay of a blow.
const maxDelay = 500 * time.Millisecond

// planByEffects makes n blows at random moments of a run that will have at least
// so many effects. A moment is a count of effects and not a time, so that they
// are spread over the run however fast the machine is. The same generator gives
// the same plan.
func planByEffects(rng *rand.Rand, f fault, n, workers, effects int) []blow {
	blows := make([]blow, n)
	for i := range blows {
		blows[i] = blow{fault: f, victim: rng.IntN(workers), at: rng.IntN(effects*9/10 + 1), delay: between(rng, 0, maxDelay), pause: between(rng, f.least, f.most)}
	}
	slices.SortStableFunc(blows, func(a, b blow) int { return cmp.Compare(a.at, b.at) })
	return blows
}

// nodeEvery is the mean time from one fault of a node to the next. It takes
// about 15 s until a killed one is in sync again.
const nodeEvery = 25 * time.Second

// planByTime makes blows for the length of a run: on workers, one every so
// often on average, and on nodes if there are several. The same generator gives
// the same plan.
func planByTime(rng *rand.Rand, length, every time.Duration, workers, nodes int) []blow {
	var blows []blow
	series := func(faults []fault, victims int, every time.Duration) {
		gap := func() time.Duration { return between(rng, every/8, every*15/8) }
		for t := gap(); t < length; t += gap() {
			f := draw(rng, faults)
			blows = append(blows, blow{fault: f, victim: rng.IntN(victims), after: t, pause: between(rng, f.least, f.most)})
		}
	}
	series(workerFaults, workers, every)
	if nodes >= 3 {
		series(nodeFaults, nodes, nodeEvery)
	}
	slices.SortStableFunc(blows, func(a, b blow) int { return cmp.Compare(a.after, b.after) })
	return blows
}

// draw picks a fault by its weight.
func draw(rng *rand.Rand, faults []fault) fault {
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	n := rng.IntN(sum)
	for _, f := range faults {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("a weight is negative")
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

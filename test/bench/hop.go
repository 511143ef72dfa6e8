package main

import (
	"context"
	"time"

	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

// A hop: each record of a tier, due long ago, becomes one copy in another tier
// and one audit event. The handler does nothing.

var hopInput = input{delays: []time.Duration{hop, next}, tier: true}

func (b *bench) hop(ctx context.Context) ([]result.Row, error) {
	others := []contender{
		lingering("GroupTransactSession loop", b.session, clientsLinger),
		lingering("at-least-once loop", b.hopLoop, clientsLinger),
		lingering("GroupTransactSession loop, no linger", b.session, noLinger),
		lingering("at-least-once loop, no linger", b.hopLoop, noLinger),
	}
	runs, err := b.compare(ctx, "hop", hopInput, b.records, append([]contender{b.engineHop()}, others...)...)
	if err != nil {
		return nil, err
	}
	rows := make([]result.Row, len(others))
	for i, c := range others {
		rows[i] = result.Row{Name: "hop", Figure: "exactly-once engine against a " + c.name, Unit: "x", Digits: 2, Reach: result.AtLeast([]float64{1.7, 1}[i%2]), Reps: ratios(runs[0], runs[i+1])}
	}
	return rows, nil
}

// lingering is a loop whose producer lingers for so long.
func lingering(name string, loop func(context.Context, names, int, time.Duration) (time.Duration, error), linger time.Duration) contender {
	return contender{name, func(ctx context.Context, n names, records int) (time.Duration, error) { return loop(ctx, n, records, linger) }}
}

// hop3 is the same on three nodes with replication 3, which all run on one
// machine: a fifth of the records is as long a run.
func (b *bench) hop3(ctx context.Context) ([]result.Row, error) {
	runs, err := b.compare(ctx, "hop3", hopInput, b.records/5, b.engineHop(), lingering("GroupTransactSession loop", b.session, clientsLinger))
	if err != nil {
		return nil, err
	}
	return []result.Row{{
		Name: "hop3", Figure: "engine on three nodes, replication 3, against a GroupTransactSession loop",
		Unit: "x", Digits: 2, Reach: result.AtLeast(2), Reps: ratios(runs[0], runs[1]),
	}}, nil
}

func (b *bench) engineHop() contender {
	return contender{"engine", func(ctx context.Context, n names, records int) (time.Duration, error) {
		return b.engine(ctx, work{Names: n, Counter: retries, Until: records}, inProgress)
	}}
}

// engine lets the engine do its work in this process.
func (b *bench) engine(ctx context.Context, w work, h remedy.HandlerFunc) (time.Duration, error) {
	return runEngine(ctx, b.kafka.Opts(), b.cluster, w, h)
}

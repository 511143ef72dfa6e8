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
	runs, err := b.compare(ctx, "hop", hopInput, b.records, b.engineHop(),
		contender{"GroupTransactSession loop", b.session}, contender{"at-least-once loop", b.hopLoop})
	if err != nil {
		return nil, err
	}
	return []result.Row{
		{Name: "hop", Figure: "exactly-once engine against a GroupTransactSession loop", Unit: "x", Digits: 2, Reach: result.AtLeast(1.7), Reps: ratios(runs[0], runs[1])},
		{Name: "hop", Figure: "exactly-once engine against an at-least-once loop", Unit: "x", Digits: 2, Reach: result.AtLeast(1), Reps: ratios(runs[0], runs[2])},
	}, nil
}

// hop3 is the same on three nodes with replication 3, which all run on one
// machine: a third of the records is a run as long, or longer.
func (b *bench) hop3(ctx context.Context) ([]result.Row, error) {
	runs, err := b.compare(ctx, "hop3", hopInput, b.records/3, b.engineHop(), contender{"GroupTransactSession loop", b.session})
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

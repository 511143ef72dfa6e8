package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

// allocations: heap objects per record of a hop, in a process where nothing else
// runs. Those of the Kafka client, which reads and writes, are included; what the
// engine makes by itself is counted by a benchmark of its package.
func (b *bench) allocations(ctx context.Context) ([]result.Row, error) {
	row := result.Row{
		Name: "allocations", Figure: "allocations per record of a hop, the Kafka client's included",
		Digits: 1, Reach: result.AtMost(8),
	}
	for rep := range b.reps {
		before := readCPU()
		perRecord, err := b.allocationsOnce(ctx, b.records/3)
		if err != nil {
			return nil, err
		}
		foreign := readCPU().since(before).foreign()
		b.log.Printf("allocations %d/%d: %.1f a record", rep+1, b.reps, perRecord)
		row.Reps = append(row.Reps, result.Rep{Value: perRecord, Foreign: foreign})
	}
	own, err := engineAllocations(ctx, b.reps)
	if err != nil {
		return nil, err
	}
	return []result.Row{own, row}, nil
}

var perOp = regexp.MustCompile(`(\d+) allocs/op`)

// engineAllocations runs consumer.BenchmarkRecord, which is a hop without Kafka.
func engineAllocations(ctx context.Context, reps int) (result.Row, error) {
	row := result.Row{Name: "allocations", Figure: "allocations per record of a hop, the engine's own", Reach: result.AtMost(8)}
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkRecord$", "-benchtime", "50000x", "-count", strconv.Itoa(reps),
		"github.com/recon-dlq/recon-dlq/consumer").CombinedOutput()
	if err != nil {
		return row, fmt.Errorf("the engine's own allocations: %w: %s", err, out)
	}
	for _, m := range perOp.FindAllSubmatch(out, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return row, err
		}
		row.Reps = append(row.Reps, result.Rep{Value: float64(n)})
	}
	if len(row.Reps) != reps {
		return row, fmt.Errorf("the engine's own allocations: %d figures of %d: %s", len(row.Reps), reps, out)
	}
	return row, nil
}

func (b *bench) allocationsOnce(ctx context.Context, records int) (perRecord float64, err error) {
	n, err := b.create(ctx, hopInput.delays, partitions)
	if err != nil {
		return 0, err
	}
	defer b.remove(ctx, n)
	if err := b.fill(ctx, n, records, n.tier(hop), partitions, longAgo()); err != nil {
		return 0, err
	}
	c, err := b.startChild(work{Names: n, Counter: retries, Until: records}, 0)
	if err != nil {
		return 0, err
	}
	r, err := c.result(ctx)
	return float64(r.Mallocs) / float64(records), err
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

const (
	memoryHandler = time.Second // so that the backlog stays: 64 records a second
	memoryTimeout = 5 * time.Second
	memoryTime    = 12 * time.Second
	memoryReps    = 3 // it hardly varies
)

// memory: the most that an engine with default options has resident in the first
// seconds on a backlog that its handlers cannot keep up with.
func (b *bench) memory(ctx context.Context) ([]result.Row, error) {
	large, small, spread, manyPartitions := 1_000_000, 10_000, 200_000, int32(600)
	length, reps := memoryTime, min(b.reps, memoryReps)
	if b.quick {
		large, spread, manyPartitions, length = large/10, spread/10, manyPartitions/10, length/3
	}
	backlogs := []struct {
		records    int
		partitions int32
		peaks      []result.Rep // MiB
	}{{records: large, partitions: partitions}, {records: small, partitions: partitions}, {records: spread, partitions: manyPartitions}}
	for i := range backlogs {
		l := &backlogs[i]
		n, err := b.create(ctx, hopInput.delays, l.partitions)
		if err != nil {
			return nil, err
		}
		err = b.fill(ctx, n, l.records, n.source(), l.partitions, time.Time{})
		for rep := 0; rep < reps && err == nil; rep++ {
			var peak result.Rep
			if peak, err = b.peakOnce(ctx, n, rep, length); err == nil {
				b.log.Printf("memory %d/%d: %d records in %d partitions: %.1f MiB", rep+1, reps, l.records, l.partitions, peak.Value)
				l.peaks = append(l.peaks, peak)
			}
		}
		b.remove(ctx, n) // at once: the large one is most of what the disk holds
		if err != nil {
			return nil, err
		}
	}
	ratio := result.Row{
		Name: "memory", Figure: fmt.Sprintf("resident memory, a backlog of %s records against %s", thousands(large), thousands(small)),
		Unit: "x", Digits: 2, Reach: result.AtMost(1.10),
	}
	for i, peak := range backlogs[0].peaks {
		other := backlogs[1].peaks[i]
		ratio.Reps = append(ratio.Reps, result.Rep{Value: peak.Value / other.Value, Foreign: max(peak.Foreign, other.Foreign)})
	}
	return []result.Row{
		ratio,
		{
			Name: "memory", Figure: fmt.Sprintf("resident memory, %s records in %d partitions", thousands(large), partitions),
			Unit: " MiB", Reach: result.AtMost(128), Reps: backlogs[0].peaks,
		},
		{
			Name: "memory", Figure: fmt.Sprintf("resident memory, %s records in %d partitions", thousands(spread), manyPartitions),
			Unit: " MiB", Reach: result.AtMost(256), Reps: backlogs[2].peaks,
		},
	}, nil
}

// peakOnce starts an engine in a group of its own and returns its peak.
func (b *bench) peakOnce(ctx context.Context, n names, rep int, length time.Duration) (result.Rep, error) {
	n.Group = fmt.Sprintf("%s.%d", n.Prefix, rep)
	before := readCPU()
	c, err := b.startChild(work{Names: n, Timeout: memoryTimeout, FirstStart: true, Counter: resolved}, memoryHandler)
	if err != nil {
		return result.Rep{}, err
	}
	defer c.kill()
	wait(ctx, length)
	if ctx.Err() != nil {
		return result.Rep{}, ctx.Err()
	}
	peak, err := peakMemory(c.cmd.Process.Pid)
	if err != nil {
		return result.Rep{}, fmt.Errorf("the engine has ended, or there is no /proc: %w", err)
	}
	return result.Rep{Value: float64(peak) / (1 << 20), Foreign: readCPU().since(before).foreign()}, nil
}

// thousands is n with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

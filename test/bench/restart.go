package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

const (
	restartBacklog = 30_000
	restartAfter   = 1_000                 // events, then it is killed
	restartHandler = 20 * time.Millisecond // so that it is killed in the middle of work
	restartBound   = time.Minute
)

// restart: a static member is killed with kill -9 in the middle of work and
// started again at once. How long until a read-committed reader sees the first
// event that the new process has written?
func (b *bench) restart(ctx context.Context) ([]result.Row, error) {
	row := result.Row{
		Name: "restart", Figure: "kill -9 and restart of a static member: time to the first commit",
		Unit: " s", Digits: 2, Reach: result.AtMost(2),
	}
	for rep := range b.reps {
		before := readCPU()
		took, err := b.restartOnce(ctx)
		if err != nil {
			return nil, err
		}
		foreign := readCPU().since(before).foreign()
		b.log.Printf("restart %d/%d: %.2f s; foreign load %.0f %%", rep+1, b.reps, took.Seconds(), 100*foreign)
		row.Reps = append(row.Reps, result.Rep{Value: took.Seconds(), Foreign: foreign})
	}
	return []result.Row{row}, nil
}

func (b *bench) restartOnce(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, restartBound, fmt.Errorf("no event was seen in %s", restartBound))
	defer cancel()
	n, err := b.create(ctx, []time.Duration{hop, next}, partitions)
	if err != nil {
		return 0, err
	}
	defer b.remove(ctx, n)
	if err := b.fill(ctx, n, restartBacklog, n.source(), partitions, time.Time{}); err != nil {
		return 0, err
	}
	events, err := kgo.NewClient(append(b.kafka.Opts(), kgo.ConsumeTopics(n.audit()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return 0, err
	}
	defer events.Close()
	w := work{Names: n, Instance: "one", Counter: resolved}
	first, err := b.startChild(w, restartHandler)
	if err != nil {
		return 0, err
	}
	seen := 0
	err = read(ctx, events, func(*kgo.Record) bool { seen++; return seen >= restartAfter })
	first.kill()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	second, err := b.startChild(w, restartHandler)
	if err != nil {
		return 0, err
	}
	defer second.kill()
	// An event has the time of its decision: one that was decided after the new
	// process began is not the old one's.
	err = read(ctx, events, func(r *kgo.Record) bool {
		var event struct{ Time time.Time }
		return json.Unmarshal(r.Value, &event) == nil && event.Time.After(begin)
	})
	return time.Since(begin), err
}

// read polls until found says that a record is the one that is looked for.
func read(ctx context.Context, cl *kgo.Client, found func(*kgo.Record) bool) error {
	for {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := fs.Err(); err != nil {
			return err
		}
		for it := fs.RecordIter(); !it.Done(); {
			if found(it.Next()) {
				return nil
			}
		}
	}
}

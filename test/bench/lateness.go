package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

const (
	otherTier   = time.Minute
	othersCount = 50_000 // wait in the other tier
	lateCount   = 5_000  // become due, one every lateEvery
	lateEvery   = 2 * time.Millisecond
)

// lateness: records become due in a 1 s tier, one after the other, while many
// more wait in another. How long after its not-before does a handler see each?
func (b *bench) lateness(ctx context.Context) ([]result.Row, error) {
	count, others := lateCount, othersCount
	if b.quick {
		count, others = count/10, others/10
	}
	early := result.Row{
		Name: "lateness", Figure: fmt.Sprintf("calls before their time, with %s records waiting in another tier", thousands(others)),
		Reach: result.AtMost(0),
	}
	p50 := result.Row{Name: "lateness", Figure: "lateness in a tier, p50", Unit: " ms", Digits: 2, Reach: result.AtMost(2)}
	p99 := result.Row{Name: "lateness", Figure: "lateness in a tier, p99", Unit: " ms", Digits: 2, Reach: result.AtMost(20)}
	for rep := -1; rep < b.reps; rep++ {
		n := count
		if rep < 0 {
			n = count / 10
		}
		before := readCPU()
		late, err := b.lateOnce(ctx, n, others)
		if err != nil {
			return nil, err
		}
		foreign := readCPU().since(before).foreign()
		if rep < 0 {
			continue
		}
		tooEarly := 0
		for _, ms := range late {
			if ms < 0 {
				tooEarly++
			}
		}
		early.Reps = append(early.Reps, result.Rep{Value: float64(tooEarly), Foreign: foreign})
		p50.Reps = append(p50.Reps, result.Rep{Value: result.Percentile(late, 50), Foreign: foreign})
		p99.Reps = append(p99.Reps, result.Rep{Value: result.Percentile(late, 99), Foreign: foreign})
		b.log.Printf("lateness %d/%d: %d early, p50 %.2f ms, p99 %.2f ms, most %.2f ms; foreign load %.0f %%", rep+1, b.reps, tooEarly,
			result.Percentile(late, 50), result.Percentile(late, 99), result.Percentile(late, 100), 100*foreign)
	}
	return []result.Row{early, p50, p99}, nil
}

// lateOnce returns by how many milliseconds each call was late.
func (b *bench) lateOnce(ctx context.Context, count, others int) ([]float64, error) {
	n, err := b.create(ctx, []time.Duration{hop, otherTier}, partitions)
	if err != nil {
		return nil, err
	}
	defer b.remove(ctx, n)
	if err := b.fill(ctx, n, others, n.tier(otherTier), partitions, time.Now().Add(otherTier)); err != nil {
		return nil, err
	}
	// The first record, which is due, only shows that the engine is at work.
	if err := b.fill(ctx, n, 1, n.tier(hop), partitions, time.Now().Add(-hop)); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	atWork := make(chan struct{})
	var producer sync.WaitGroup
	producer.Go(func() {
		select {
		case <-atWork:
			if err := b.produceDue(ctx, n, count); err != nil {
				stop(err)
			}
		case <-ctx.Done():
		}
	})
	var mu sync.Mutex
	var late []float64
	_, err = b.engine(ctx, work{Names: n, Counter: resolved, Until: count + 1}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		ms := time.Since(time.UnixMilli(r.NotBefore)).Seconds() * 1e3
		mu.Lock()
		defer mu.Unlock()
		if late == nil {
			late = make([]float64, 0, count)
			close(atWork)
		} else {
			late = append(late, ms)
		}
		return deadletter.Outcome{Class: deadletter.Resolved}
	})
	stop(nil)
	producer.Wait()
	return late, err
}

// produceDue sends records to the tier as a worker would, each due after the tier's delay.
func (b *bench) produceDue(ctx context.Context, n names, count int) error {
	cl, err := kgo.NewClient(append(b.kafka.Opts(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var once sync.Once
	var failed error
	tick := time.NewTicker(lateEvery)
	defer tick.Stop()
	for i := range count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			cl.Produce(ctx, &kgo.Record{
				Topic: n.tier(hop), Partition: int32(i) % partitions, Key: fmt.Appendf(nil, "k%d", i),
				Value: value(i, now), Headers: headers(n, i, now, now.Add(hop)),
			}, func(_ *kgo.Record, err error) {
				if err != nil {
					once.Do(func() { failed = err })
				}
			})
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	return failed
}

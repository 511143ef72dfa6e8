package main

import (
	"context"
	"fmt"
	"time"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

// contender is one side of a comparison: how it makes its topics ready, and how
// it works on so many records, answering how long that took.
type contender struct {
	name string
	run  func(ctx context.Context, n names, records int) (time.Duration, error)
}

// input is what each run of each contender of a comparison begins with.
type input struct {
	delays []time.Duration
	tier   bool // the records lie in the first tier, due; else in the source
}

// measured is one run.
type measured struct {
	took    time.Duration
	used    cpu
	records int
}

func (m measured) rate() float64 { return float64(m.records) / m.took.Seconds() }

// compare lets the contenders run in turn, each repetition with another one
// first, so that neither a machine that grows slower nor what the one before has
// left to the brokers favours anybody. A first round of a tenth, which warms the
// brokers' compiler and caches, is not counted: a cold broker is seven times
// slower. The answer has one slice a contender, of the repetitions in order.
func (b *bench) compare(ctx context.Context, scenario string, in input, records int, contenders ...contender) ([][]measured, error) {
	runs := make([][]measured, len(contenders))
	for rep := -1; rep < b.reps; rep++ {
		for i := range contenders {
			i = (i + rep + 1) % len(contenders)
			c, count := contenders[i], records
			if rep < 0 {
				count = max(records/10, 1000)
			}
			m, err := b.once(ctx, in, count, c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if rep < 0 {
				continue
			}
			b.log.Printf("%s %d/%d %-26s %8.0f records/s, CPU a record: client %.1f µs, brokers %.1f µs; foreign load %.0f %%", scenario, rep+1, b.reps, c.name,
				m.rate(), micros(m.used.client, count), micros(m.used.brokers, count), 100*m.used.foreign())
			runs[i] = append(runs[i], m)
		}
	}
	for i, c := range contenders {
		b.run.Contenders = append(b.run.Contenders, summary(scenario, c.name, runs[i]))
	}
	return runs, nil
}

// runBound is far above what a run takes: something stands still.
const runBound = 5 * time.Minute

// once is one run of a contender on topics of its own.
func (b *bench) once(ctx context.Context, in input, records int, c contender) (measured, error) {
	n, err := b.create(ctx, in.delays, partitions)
	if err != nil {
		return measured{}, err
	}
	defer b.remove(ctx, n)
	topic := n.source()
	if in.tier {
		topic = n.tier(in.delays[0])
	}
	if err := b.fill(ctx, n, records, topic, partitions, longAgo()); err != nil {
		return measured{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, runBound, fmt.Errorf("not done after %s", runBound))
	defer cancel()
	before := readCPU()
	took, err := c.run(ctx, n, records)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // not what it led to
	}
	return measured{took: took, used: readCPU().since(before), records: records}, err
}

func summary(scenario, name string, runs []measured) result.Contender {
	c := result.Contender{Scenario: scenario, Name: name, Reps: len(runs)}
	var rates, client, brokers []float64
	for _, m := range runs {
		c.Records = m.records
		rates = append(rates, m.rate())
		client = append(client, micros(m.used.client, m.records))
		brokers = append(brokers, micros(m.used.brokers, m.records))
	}
	c.Rate, c.ClientMicros, c.BrokerMicros = result.Median(rates), result.Median(client), result.Median(brokers)
	c.Slowest, c.Fastest = result.Percentile(rates, 0), result.Percentile(rates, 100)
	return c
}

// micros is CPU time a record.
func micros(d time.Duration, records int) float64 {
	return d.Seconds() * 1e6 / float64(records)
}

// ratios compare two contenders repetition by repetition: how many times faster
// the first was. Both are in one repetition, a minute apart at most.
func ratios(first, second []measured) (reps []result.Rep) {
	for i, m := range first {
		reps = append(reps, result.Rep{
			Value:   second[i].took.Seconds() / m.took.Seconds(),
			Foreign: max(m.used.foreign(), second[i].used.foreign()),
		})
	}
	return reps
}

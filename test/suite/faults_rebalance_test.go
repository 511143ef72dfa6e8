package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestWorkersThatComeAndGoUnderLoadShareTheWorkAndDoNothingTwice(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name   string
			tweaks []func(*consumer.Options)
		}{{"exactly once", nil}, {"at least once", []func(*consumer.Options){atLeastOnce}}} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				const records = 2400
				x := newBench(t, b, 6, 3, []time.Duration{time.Second}, slow(50*time.Millisecond))
				x.sendN(records)
				few := func(o *consumer.Options) { o.Concurrency = 12 }
				tweaks := append(c.tweaks, few)
				ps := []*player{x.launch(tweaks...)}
				x.eventually("one worker works", func() bool { return done(ps...) >= 200 })
				ps = append(ps, x.launch(tweaks...), x.launch(tweaks...))
				x.eventually("all three work", func() bool { return done(ps[1]) >= 50 && done(ps[2]) >= 50 })
				ps[0].halt()
				ps[1].halt()
				// At least once a copy can be there twice, and have two ends.
				x.eventually("all records are done", func() bool { return done(ps...) >= records })
				x.drained(ps[2])
				x.counted(spec(c.tweaks...))
				// In order, so nothing is given up: what ran when a partition was revoked was waited for.
				// At least once a commit that meets a rebalance is made again, copies and all.
				if n := x.calledTwice(); n > 0 && len(c.tweaks) == 0 {
					t.Errorf("%d records were handed to a handler again", n)
				}
				for i, p := range ps {
					if n := p.metric("recon_dlq_lost_partitions_total"); n > 0 {
						t.Errorf("worker %d lost %v partitions instead of handing them over", i, n)
					}
				}
			})
		}
	})
}

// A pause survives a rebalance in the client: a partition that was paused when
// it went must flow when it comes back.
func TestAPartitionThatWasPausedWhenItWentFlowsWhenItComesBack(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		g := newGate()
		x := newBench(t, b, 4, 3, []time.Duration{time.Second}, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
			if !g.pass(ctx) {
				return deadletter.Outcome{Class: deadletter.Stopped}
			}
			return resolved
		})
		x.target[0].Timeout = 20 * time.Second
		const records = 4000
		x.sendN(records)
		small := func(o *consumer.Options) { o.MaxInflightBytes, o.Concurrency = 1<<20, 4 }
		first := x.launch(small)
		paused := func() float64 {
			return first.metric("recon_dlq_partition_state", "topic", x.names.Source, "state", "paused")
		}
		x.eventually("all source partitions are full", func() bool { return paused() == 4 })
		second := x.launch(small)
		x.eventually("partitions are being handed over", func() bool {
			return first.metric("recon_dlq_partition_state", "state", "leaving") > 0 || len(second.c.Snapshot().Partitions) > 0
		})
		g.open()
		x.eventually("the second worker has its share", func() bool { return len(second.c.Snapshot().Partitions) > 0 && done(second) > 0 })
		second.halt()
		x.eventually(fmt.Sprintf("%d records are done", records), func() bool { return done(first, second) == records })
		x.drained(first)
		x.counted(nil)
	})
}

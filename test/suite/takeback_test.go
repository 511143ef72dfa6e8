package suite

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestAnOutageTakesBackOnlyTheFailuresInARow(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const mixed, row = 40, 5 // every second of the first fails, then all of the others
		var down atomic.Bool
		var failed [mixed]atomic.Bool
		again := make(chan int, mixed) // called anew with the attempt that was to be counted
		down.Store(true)
		x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "first" {
				return resolved
			}
			var n int
			if _, err := fmt.Sscanf(r.DiscrepancyID, "d-%d", &n); err != nil {
				t.Error(err)
			}
			if r.Attempt > 0 && (n >= mixed || n%2 == 1) {
				t.Errorf("record %d lost an attempt to the outage", n)
			}
			if n < mixed && n%2 == 0 && r.Attempt == 0 && failed[n].Swap(true) {
				again <- n
			}
			if down.Load() && r.Attempt == 0 && (n >= mixed || n%2 == 0) {
				return failing
			}
			return resolved
		})
		x.target[0].Breaker = policy.BreakerOptions{Threshold: row, ProbeMin: 100 * time.Millisecond, ProbeMax: 200 * time.Millisecond}
		x.tweak = func(o *consumer.Options) {
			o.Concurrency = 1            // they end in the order of their offsets
			o.Interval = 5 * time.Second // and, on a slow machine, too, before the first of them is committed
		}
		w := x.start()
		x.send(value("first", "")) // the first transaction does not wait for the interval
		x.settled(1, w)
		x.sendN(mixed + row)
		x.eventually("the target is thought down", func() bool { return w.open("ledger") })
		x.eventually("what failed between successes is counted", func() bool {
			if len(again) > 0 {
				t.Fatalf("the failure of record %d was taken back with the others", <-again)
			}
			return w.metric("recon_dlq_retries_total") >= mixed/2
		})
		down.Store(false)
		x.settled(1+mixed+row, w)
		if rep := x.check(true); rep.Retried != mixed/2 || rep.Resolved != 1+mixed+row {
			t.Errorf("retried %d, resolved %d, want %d and %d", rep.Retried, rep.Resolved, mixed/2, 1+mixed+row)
		}
	})
}

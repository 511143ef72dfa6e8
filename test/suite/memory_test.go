package suite

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// ballast is text of at least n bytes that compresses only where it is repeated.
func ballast(n int) string {
	var s strings.Builder
	for s.Len() < n {
		s.WriteString(rand.Text())
	}
	return s.String()
}

func TestABacklogFarLargerThanTheBudgetStaysWithinIt(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		const (
			budget  = 2 << 20
			records = 4000 // of 10 KiB; a batch of them compresses well, and a fetch grows tenfold
		)
		t.Parallel()
		var w *worker
		started := make(chan struct{})
		var most atomic.Int64
		x := newBench(t, b, 3, 3, second, func(_ context.Context, _ *deadletter.Record) deadletter.Outcome {
			<-started
			held := w.c.Snapshot().InflightBytes
			for old := most.Load(); held > old && !most.CompareAndSwap(old, held); old = most.Load() {
			}
			<-time.After(2 * time.Millisecond) // a target has its time
			return resolved
		})
		x.tweak = func(o *consumer.Options) { o.MaxInflightBytes = budget }
		text := ballast(10 << 10)
		values := make([][]byte, records)
		for i := range values {
			values[i] = value(fmt.Sprintf("d-%d", i), fmt.Sprintf(`"text":%q`, text[i%1024:]))
		}
		x.send(values...)
		w = x.start()
		close(started)
		x.settled(records, w)
		if n := most.Load(); n > budget || n < budget/4 {
			t.Errorf("held at most %d KiB of a budget of %d KiB", n>>10, budget>>10)
		}
		w.is(0, "recon_dlq_inflight_bytes")
		x.check(true)
	})
}

func TestATierFullOfWaitingRecordsDoesNotStarveTheSource(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const (
			budget  = 1 << 20
			waiting = 1000 // of 4 KiB: four times the budget
			fresh   = 500
		)
		x := newBench(t, b, 1, 3, []time.Duration{time.Hour}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if strings.HasPrefix(r.DiscrepancyID, "waits") {
				t.Errorf("%s was called an hour early", r.DiscrepancyID)
			}
			return resolved
		})
		x.tweak = func(o *consumer.Options) { o.MaxInflightBytes = budget }
		text := ballast(4 << 10)
		long := make([]*kgo.Record, waiting)
		for i := range long {
			long[i] = tiered(fmt.Sprintf("waits-%d", i), deadletter.HeaderAttempt, "1")
			long[i].Value = value(fmt.Sprintf("waits-%d", i), fmt.Sprintf(`"text":%q`, text))
		}
		x.inTier(time.Hour, long...)
		w := x.start()
		x.eventually("the tier is paused, full", func() bool {
			return w.metric("recon_dlq_partition_state", "topic", x.names.Tier(time.Hour), "state", "paused") == 1
		})
		x.sendN(fresh)
		w.is(fresh, "resolved_total")
		w.is(waiting, "dlq_depth") // what is not read counts too
		if n := w.metric("recon_dlq_inflight_bytes"); n > budget {
			t.Errorf("held are %v bytes, budget %d", n, budget)
		}
		w.halt()
		x.check(false)
	})
}

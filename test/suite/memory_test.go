package suite

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
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

func TestACopyThatDoesNotFitIsHeldAloneAndNeverCut(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const limit = 20_000
		x := newBench(t, b, 1, 2, []time.Duration{100 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt == 0 && r.DiscrepancyID != "resolves" {
				return failing
			}
			return resolved
		})
		x.target[0].Breaker.Threshold = 64
		// Tiers as small as the source, as the worker's start would refuse them.
		x.names = brokers.Topics(t, b, 1, x.names.Delays, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
		x.tweak = func(o *consumer.Options) {
			o.MaxMessageBytes = map[string]int32{x.names.Source: limit, x.names.Poison: limit}
			for _, tier := range x.names.Tiers() {
				o.MaxMessageBytes[tier] = limit
			}
		}
		full := make([]byte, limit-400) // random: no compression makes room for a copy's headers
		rand.Read(full)
		fills := func(id string) *kgo.Record {
			return &kgo.Record{Topic: x.names.Source, Value: value(id, ""), Headers: []kgo.RecordHeader{{Key: "blob", Value: full}}}
		}
		// It fits by compression only, upstream's and ours.
		compresses := &kgo.Record{Topic: x.names.Source, Value: value("compresses", fmt.Sprintf(`"text":%q`, strings.Repeat("0123456789", 20_000)))}
		for _, r := range []*kgo.Record{fills("does not fit"), compresses, fills("resolves")} {
			brokers.Produce(t, b, r) // each in a batch of its own
		}
		x.sendN(20)
		w := x.start()
		w.is(22, "resolved_total")
		w.is(1, "recon_dlq_oversized_total")
		w.is(1, "recon_dlq_inflight", "state", "oversized")
		w.is(1, "dlq_depth")
		w.halt()

		// Once the limit is raised and the worker restarted, it goes its way.
		x.tweak = nil
		adm := kadm.NewClient(brokers.Client(t, brokers.AdminOpts(b)...))
		raised := fmt.Sprint(10 * limit)
		if _, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &raised}}, x.names.Tiers()...); err != nil {
			t.Fatal(err)
		}
		w = x.start()
		x.settled(1, w)
		if rep := x.check(true); rep.Retried != 22 || rep.Resolved != 23 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
	})
}

package suite

import (
	"context"
	"errors"
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

// After an offset out of range the stale offset is committed again and again, or
// reading goes on at the end.
func TestC073_ReadingGoesOnAtTheEarliestOffsetThatIsLeftAndTheLossIsTold(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 1, 4, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	x.sendN(2)
	first := x.launch()
	x.eventually("two are done", func() bool { return done(first) == 2 })
	x.drained(first)
	first.halt()
	for i := 2; i < 10; i++ {
		x.send(value(fmt.Sprintf("r-180%d", i), ""))
	}
	x.prune(0, 6)
	second := x.launch()
	x.eventually("what is left is done", func() bool { return done(second) == 4 })
	x.drained(second)
	rep := x.counted(nil)
	if rep.Expired != 4 || second.metric("recon_dlq_expired_total") != 4 {
		t.Errorf("told as expired: %d, on the metric %v, want 4", rep.Expired, second.metric("recon_dlq_expired_total"))
	}
	if !second.log.has("records expired before they were done") {
		t.Error("the log does not tell of the loss")
	}
	if rep.Lag != 0 {
		t.Errorf("the lag is %d, want the end committed", rep.Lag)
	}
	if n := len(x.called()); n != 6 {
		t.Errorf("%d records were called, want 2 and 4", n)
	}
}

// Committed offsets expire while the group is empty: the next start replays
// everything or skips. The worker refuses, says how much, and is told what to do.
func TestC074_AWorkerWhoseProgressExpiredNeverStartsSilently(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 1, 4, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	x.sendN(20)
	p := x.launch()
	x.eventually("all are done", func() bool { return done(p) == 20 })
	x.drained(p)
	p.halt()
	x.counted(nil)
	if _, err := x.admin().DeleteGroup(t.Context(), x.names.Group); err != nil { // as offsets.retention.minutes does
		t.Fatal(err)
	}
	again := x.launch()
	select {
	case <-again.end:
	case <-time.After(20 * time.Second):
		t.Fatal("it started")
	}
	if !errors.Is(again.err, consumer.ErrNoProgress) || !strings.Contains(again.err.Error(), "at most 20 records") || !strings.Contains(again.err.Error(), "--first-start") {
		t.Errorf("it ended with %v", again.err)
	}
	if n := len(x.called()); n != 20 || x.calledTwice() > 0 {
		t.Error("records were handled again without a word")
	}
	if rep, err := x.report(false, nil); err != nil || rep.Err() != nil || rep.Resolved != 20 {
		t.Errorf("%v\n%s", err, rep)
	}
}

// A record larger than what is fetched at a time blocks its partition.
func TestC076_ARecordLargerThanAFetchIsDoneAndDoesNotBlockWhatFollows(t *testing.T) {
	t.Parallel()
	const (
		limit  = 8 << 20 // of the topics, bytes
		large  = 6_000_000
		budget = 16 << 20 // a fetch is an eighth of it, and 256 KiB of a partition
	)
	b := brokers.NewKfake(t)
	var most atomic.Int64
	var p *player
	started := make(chan struct{})
	x := newBench(t, b, 1, 4, []time.Duration{200 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		<-started
		most.Store(max(most.Load(), p.c.Snapshot().InflightBytes))
		if r.DiscrepancyID == "large" && r.Attempt == 0 {
			return failing
		}
		return resolved
	})
	x.names = brokers.Topics(t, b, 1, x.names.Delays, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	cl := brokers.Client(t, append(b.Opts(), kgo.ProducerBatchMaxBytes(limit), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	for _, v := range [][]byte{value("large", fmt.Sprintf(`"text":%q`, strings.Repeat("q", large))), value("r-1820", "")} {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: x.names.Source, Value: v}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	p = x.launch(func(o *consumer.Options) {
		o.MaxInflightBytes = budget
		o.MaxMessageBytes = map[string]int32{x.names.Source: limit, x.names.Poison: limit}
		for _, tier := range x.names.Tiers() {
			o.MaxMessageBytes[tier] = limit
		}
	})
	close(started)
	x.settled(2, p.worker)
	if rep := x.counted(nil); rep.Resolved != 2 || rep.Retried != 1 {
		t.Errorf("resolved %d, retried %d", rep.Resolved, rep.Retried)
	}
	if n := most.Load(); n < large || n > budget {
		t.Errorf("held at most %d bytes, budget %d", n, budget)
	}
}

// After a rebalance a member keeps partitions and never fetches them again. The
// design decides otherwise what a stall turns on: a metric and an alert, never readiness.
func TestC077_PartitionsThatAMemberKeepsGoOnOverARebalance(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 6, 4, second, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
		takes(ctx, 250*time.Millisecond)
		return resolved
	})
	few := func(o *consumer.Options) { o.Concurrency = 3 }
	partitions := make([]int32, 90)
	for i := range partitions {
		partitions[i] = int32(i % 6)
	}
	x.spread("r", partitions...)
	a := x.launch(few)
	x.eventually("some are in flight", func() bool { return a.metric("recon_dlq_inflight", "state", "calling") == 3 })
	b := x.launch(few)
	x.eventually("the other has its share", func() bool { return b.owns() > 0 })
	kept := map[int32]bool{}
	for _, s := range a.c.Snapshot().Partitions {
		if s.Topic == x.names.Source {
			kept[s.Partition] = true
		}
	}
	if len(kept) == 0 || len(kept) == 6 {
		t.Fatalf("the first member keeps %v", kept)
	}
	before, began := done(a), time.Now()
	x.eventually("it goes on with what it keeps", func() bool { return done(a) > before })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it went on after %s", took)
	}
	x.spread("later", partitions[:12]...) // to each partition, the kept ones included
	x.eventually("all are done", func() bool { return done(a, b) == 102 })
	x.drained(a, b)
	x.counted(nil)
}

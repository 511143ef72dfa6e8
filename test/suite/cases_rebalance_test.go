package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// owns is how many partitions a worker holds, those that it still loads excepted.
func (p *player) owns() (n int) {
	for _, s := range p.c.Snapshot().Partitions {
		if s.State != "loading" {
			n++
		}
	}
	return n
}

// spread produces one source record to each of the partitions named, with ids from a prefix.
func (x *bench) spread(prefix string, partitions ...int32) {
	x.t.Helper()
	records := make([]*kgo.Record, len(partitions))
	for i, n := range partitions {
		records[i] = &kgo.Record{Topic: x.names.Source, Partition: n, Value: value(fmt.Sprintf("%s-%d", prefix, i), "")}
	}
	brokers.ProduceTo(x.t, x.b, records...)
}

// widen gives topics more partitions.
func (x *bench) widen(partitions int, topics ...string) {
	x.t.Helper()
	rs, err := x.admin().UpdatePartitions(x.t.Context(), partitions, topics...)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// aware makes a worker look for new topics and partitions each second.
func aware(o *consumer.Options) {
	o.Client = append(o.Client, kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(250*time.Millisecond))
}

// A downstream error pauses a partition and nothing resumes it.
func TestC040_AfterAnOutageEveryPartitionFlowsAgainByItself(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	x := newBench(t, brokers.NewKfake(t), 3, 4, second, func(context.Context, *deadletter.Record) deadletter.Outcome {
		if down.Load() {
			return deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_503", Status: 503}
		}
		return resolved
	})
	x.target[0].Breaker = policy.BreakerOptions{Threshold: 3, ProbeMin: 50 * time.Millisecond, ProbeMax: 200 * time.Millisecond}
	partitions := make([]int32, 30)
	for i := range partitions {
		partitions[i] = int32(i % 3)
	}
	x.spread("r", partitions...)
	seen, tweak := observe()
	p := x.launch(tweak)
	x.eventually("the target is thought down", func() bool { return p.open("ledger") })
	x.eventually("some probes fail", func() bool { return p.metric("recon_dlq_attempts_total", "class", "suspect") > 10 })
	joins := seen.of(kmsg.JoinGroup)
	down.Store(false)
	recovered := time.Now()
	x.settled(30, p.worker)
	if took := time.Since(recovered); took > 200*time.Millisecond+5*time.Second {
		t.Errorf("all partitions flowed %s after the target was back", took)
	}
	if n := seen.of(kmsg.JoinGroup); n != joins {
		t.Error("it took a rebalance")
	}
	if rep := x.counted(nil); rep.Resolved != 30 || rep.Retried > 3 {
		t.Errorf("resolved %d, retried %d", rep.Resolved, rep.Retried)
	}
}

// What waits in memory is forgotten, or waited for, over a rebalance.
func TestC041_WhatWaitsForATargetGoesOnAfterPartitionsWereAddedAndMoved(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	x := newBench(t, brokers.NewKfake(t), 3, 4, second, func(context.Context, *deadletter.Record) deadletter.Outcome {
		if down.Load() {
			return refused
		}
		return resolved
	})
	x.target[0].Breaker = quickProbes
	x.spread("r-1510", 0, 0, 1, 2)
	held := func(ps ...*player) (n float64) {
		for _, p := range ps {
			n += p.metric("recon_dlq_inflight", "state", "held") + p.metric("recon_dlq_inflight", "state", "calling")
		}
		return n
	}
	first := x.launch(aware)
	x.eventually("all wait", func() bool { return held(first) == 4 })
	x.widen(4, x.names.Source)
	x.spread("r-1511", 3)
	x.eventually("the new partition's record waits too", func() bool { return held(first) == 5 })
	second := x.launch(aware)
	x.eventually("the second worker has its share", func() bool { return second.owns() > 0 && second.owns()+first.owns() == 4+3 })
	x.eventually("each waits once, with its owner", func() bool { return held(first, second) == 5 })
	down.Store(false)
	x.settled(5, first.worker, second.worker)
	if rep := x.counted(nil); rep.Resolved != 5 || rep.Retried != 0 {
		t.Errorf("resolved %d, retried %d", rep.Resolved, rep.Retried)
	}
	first.halt()
	second.halt()
	first.is(0, "recon_dlq_inflight")
}

// kgoVersion is the version of the Kafka client that go.mod requires: a test binary does not say.
func kgoVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "github.com/twmb/franz-go" {
			return words[1]
		}
	}
	t.Fatal("go.mod does not require franz-go")
	return ""
}

// Polling again before a rebalance was allowed dead-locked the client: fixed in
// franz-go 1.20.6, and polls that return only errors block a rebalance from 1.20.7 on.
func TestC043_ARebalanceBetweenSmallPollsEndsAndBothMembersWork(t *testing.T) {
	t.Parallel()
	var major, minor, patch int
	version := kgoVersion(t)
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatalf("version %q: %v", version, err)
	}
	if slices.Compare([]int{major, minor, patch}, []int{1, 20, 7}) < 0 {
		t.Errorf("go.mod must require github.com/twmb/franz-go v1.20.7 or later, not %s", version)
	}

	x := newBench(t, brokers.NewKfake(t), 6, 4, second, slow(50*time.Millisecond))
	small := func(o *consumer.Options) { o.MaxInflightBytes, o.Concurrency = 1<<20, 4 } // a poll takes a few records
	x.sendN(300)
	first := x.launch(small)
	x.eventually("it works", func() bool { return done(first) >= 20 })
	began := time.Now()
	next := x.launch(small)
	x.eventually("both own partitions", func() bool { return first.owns() > 0 && next.owns() > 0 })
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the rebalance took %s", took)
	}
	x.sendN(300) // to both, however long the rebalance took
	x.eventually("the next one works", func() bool { return done(next) > 0 })
	x.eventually("all records are done", func() bool { return done(first, next) == 600 })
	x.drained(first, next)
	x.counted(nil)
	if n := first.metric("recon_dlq_lost_partitions_total"); n > 0 {
		t.Errorf("%v partitions were lost", n)
	}
}

// A member whose handlers take longer than a rebalance may is evicted. Here the
// drain bound (25 s, here 1 s) is far below the rebalance timeout (60 s).
func TestC044_APartitionIsHandedOverInTimeWhateverItsHandlersDo(t *testing.T) {
	t.Parallel()
	g := newGate()
	t.Cleanup(g.open)
	var calls tally
	x := newBench(t, brokers.NewKfake(t), 2, 4, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		if calls.next(r.DiscrepancyID) == 1 {
			<-g.c // whatever the context says
		}
		return resolved
	})
	x.spread("r-153", 0, 1)
	first := x.launch(hasty)
	x.eventually("both are called", func() bool { return len(x.called()) == 2 })
	began := time.Now()
	next := x.launch(hasty)
	x.eventually("the second has called what it took over", func() bool { return calls.of("r-153-0")+calls.of("r-153-1") > 2 })
	// A heartbeat, the drain, and the two rounds of a cooperative rebalance.
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it was handed over after %s", took)
	}
	g.open()
	x.eventually("both are done", func() bool { return done(first, next) == 2 })
	x.drained(first, next)
	x.counted(nil)
	for _, id := range []string{"r-153-0", "r-153-1"} {
		if n := calls.of(id); n < 1 || n > 2 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	for name, p := range map[string]*player{"first": first, "next": next} {
		if n := p.metric("recon_dlq_lost_partitions_total") + p.metric("recon_dlq_regroups_total"); n != 0 || p.stopped() {
			t.Errorf("the %s worker was evicted", name)
		}
	}
}

// A commit is retried a hundred times in ten milliseconds while the coordinator
// is away, and then the consumer dies.
func TestC046_CommitsBackOffWhileTheCoordinatorIsAwayAndTheWorkerLives(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		key    kmsg.Key
		tweaks []func(*consumer.Options)
	}{
		{"exactly once", kmsg.TxnOffsetCommit, nil},
		{"at least once", kmsg.OffsetCommit, []func(*consumer.Options){atLeastOnce}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			x := newBench(t, b, 2, 4, second, mixed)
			seen, tweak := observe()
			p := x.launch(append(c.tweaks, tweak)...)
			x.eventually("it is assigned", func() bool { return p.owns() > 0 })
			away := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, Err: kerr.CoordinatorNotAvailable, Count: -1})
			before := seen.of(c.key)
			x.sendN(20)
			x.eventually("a commit fails", func() bool { return away.Hits() > 0 })
			takes(t.Context(), 5*time.Second)
			tried := seen.of(c.key) - before
			t.Logf("%d commits in 5 s", tried)
			if tried > 20 {
				t.Errorf("%d commits in 5 s", tried)
			}
			moving := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, Err: kerr.RebalanceInProgress, Count: 1})
			defer moving.Remove()
			away.Remove()
			// At least once: a copy that was written before the commit failed is there twice.
			x.eventually("all records are done", func() bool { return done(p) >= 20 })
			x.drained(p)
			rep := x.counted(spec(c.tweaks...))
			if rep.Lag != 0 {
				t.Errorf("lag is %d", rep.Lag)
			}
			if p.stopped() || moving.Hits() != 1 {
				t.Errorf("ended: %v; the rebalance was told %d times", p.stopped(), moving.Hits())
			}
		})
	}
}

// Pausing for each record that is not due interrupts running fetches and floods
// the broker. Waiting records are in memory, and fetching goes on.
func TestC047_WaitingRecordsCauseNeitherFetchesNorConnections(t *testing.T) {
	t.Parallel()
	const (
		records = 500
		apart   = 5 * time.Millisecond
	)
	x := newBench(t, brokers.NewKfake(t), 1, 4, []time.Duration{4 * time.Second}, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	start := time.Now().Add(time.Second)
	rs := make([]*kgo.Record, records)
	for i := range rs {
		rs[i] = tiered(fmt.Sprintf("r-%d", i), deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, inMillis(start.Add(time.Duration(i)*apart)))
	}
	x.inTier(4*time.Second, rs...)
	seen, tweak := observe()
	p := x.launch(tweak)
	x.eventually("the first are called", func() bool { return done(p) > 0 })
	began, fetches, dials := time.Now(), seen.of(kmsg.Fetch), seen.connections()
	x.settled(records, p.worker)
	took := time.Since(began)
	if rate := float64(seen.of(kmsg.Fetch)-fetches) / took.Seconds(); rate > 20 {
		t.Errorf("%.0f fetches a second", rate)
	}
	if n := seen.connections() - dials; n > 0 {
		t.Errorf("%d connections were opened", n)
	}
	rep := x.counted(nil)
	if rep.Lateness > time.Second || rep.Retiered != 0 {
		t.Errorf("the latest call was %s late, %d retiered", rep.Lateness, rep.Retiered)
	}
}

// A revoke that waits for a commit which waits for the revoke freezes the group.
func TestC049_ARollingRestartStopsNobodyForLong(t *testing.T) {
	t.Parallel()
	const records = 500
	x := newBench(t, brokers.NewKfake(t), 6, 4, second, slow(100*time.Millisecond))
	few := func(o *consumer.Options) { o.Concurrency = 6 }
	all := []*player{x.launch(few), x.launch(few)}
	x.eventually("both have their share", func() bool { return all[0].owns() > 0 && all[1].owns() > 0 })
	x.sendN(records)
	x.eventually("both work", func() bool { return done(all[0]) > 0 && done(all[1]) > 0 })
	for _, old := range slices.Clone(all) {
		if took := old.ends(); took > 10*time.Second || old.err != nil {
			t.Errorf("it stopped after %s with %v", took, old.err)
		}
		next := x.launch(few)
		all = append(all, next)
		x.eventually("the new one has its share", func() bool { return next.owns() > 0 })
	}
	x.eventually("all records are done", func() bool { return done(all...) == records })
	x.drained(all[2:]...)
	x.counted(nil)
	var at []time.Time
	for _, calls := range x.called() {
		for _, c := range calls {
			at = append(at, c.At)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	for i := range at[1:] {
		if gap := at[i+1].Sub(at[i]); gap > 10*time.Second {
			t.Errorf("nothing was called for %s", gap)
		}
	}
	groups, err := x.admin().DescribeGroups(t.Context(), x.names.Group)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(groups[x.names.Group].Members); n != 2 {
		t.Errorf("the group has %d members, want the 2 that run", n)
	}
}

// An initial position is committed for a partition on which nothing was done.
func TestC050_TheProgressOfAQuietPartitionStaysOverManyRebalances(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 3, 4, second, slow(5*time.Millisecond))
	quiet := func(when string) {
		t.Helper()
		offsets, err := x.admin().FetchOffsets(t.Context(), x.names.Group)
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := offsets.Lookup(x.names.Source, 2); !ok || o.At != 7 || o.Err != nil {
			t.Errorf("%s: the committed offset of partition 2 is %+v", when, o)
		}
	}
	x.spread("old", 2, 2, 2, 2, 2, 2, 2)
	p := x.launch()
	x.eventually("the old ones are done", func() bool { return done(p) == 7 })
	x.drained(p)
	p.halt()
	quiet("at first")
	x.spread("busy", make([]int32, 100)...)
	ps := []*player{x.launch()}
	for range 5 { // ten rebalances, of which some with another member
		ps[len(ps)-1].halt()
		ps = append(ps, x.launch())
		last := ps[len(ps)-1]
		x.eventually("it is assigned", func() bool { return last.owns() == 3+3 })
		quiet("after a rebalance")
	}
	other := x.launch()
	x.eventually("the other has its share", func() bool { return other.owns() > 0 })
	other.halt()
	ps[len(ps)-1].halt()
	quiet("with nobody left")
	last := x.launch()
	x.eventually("all are done", func() bool { return done(append(ps, other, last)...) == 100 })
	x.drained(last)
	quiet("at the end")
	x.counted(nil)
	if n := x.calledTwice(); n > 0 {
		t.Errorf("%d records were called again", n)
	}
}

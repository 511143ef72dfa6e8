package suite

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// The metadata limit is the broker's: past it, that one partition fails and the
// others of the request are staged.
func TestProgressThatPassesTheBrokersLimitWaitsAndIsNeverCut(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{Properties: map[string]string{"offset.metadata.max.bytes": "300"}})
	for _, c := range []struct {
		name  string
		limit int // what the worker is told; 0: Kafka's default
	}{{"known to the worker", 300}, {"found out by refusals", 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const records = 2500 // of each partition: too many for a bitmap of 300 characters
			g := newGate()
			x := newBench(t, b, 2, 3, []time.Duration{time.Second}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
				if r.Input.Partition == 0 && r.Input.Offset%2 == 0 {
					g.pass(ctx)
				}
				return resolved
			})
			x.target[0].Timeout = 20 * time.Second
			var rs []*kgo.Record
			for i := range 2 * records {
				rs = append(rs, &kgo.Record{Topic: x.names.Source, Partition: int32(i % 2), Value: value("d", "")})
			}
			brokers.ProduceTo(t, b, rs...)
			p := x.launch(func(o *consumer.Options) { o.MetadataLimit, o.Concurrency = c.limit, 4000 })
			x.eventually("the other partition is done, and this one as far as it fits", func() bool {
				return done(p) > records && p.metric("recon_dlq_holes", "topic", x.names.Source, "partition", "1") == 0
			})
			x.eventually("results wait", func() bool { return p.metric("recon_dlq_inflight", "state", "uncommitted") > 0 })
			if n := done(p); n >= records+records/2 {
				t.Errorf("%d results are committed: the pattern of holes is not longer than the limit", n)
			}
			if aborted := p.metric("recon_dlq_transactions_total", "result", "aborted"); (aborted > 0) != (c.limit == 0) {
				t.Errorf("%v transactions were aborted", aborted)
			}
			g.open()
			x.eventually("all records are done", func() bool { return done(p) == 2*records })
			x.drained(p)
			x.counted(nil)
		})
	}
}

func (x *bench) commit(offsets ...kadm.Offset) {
	x.t.Helper()
	all := kadm.Offsets{}
	for _, o := range offsets {
		o.Topic, o.LeaderEpoch = x.names.Source, -1
		all.Add(o)
	}
	if err := x.admin().CommitAllOffsets(x.t.Context(), x.names.Group, all); err != nil {
		x.t.Fatal(err)
	}
}

// Progress that is not ours, newer than ours or set by hand is never read as "no holes".
func TestAPartitionWhoseProgressCannotBeReadIsRefusedAndTheOthersGoOn(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 4, 3, []time.Duration{time.Second}, mixed)
		x.sendN(200)
		x.commit(
			kadm.Offset{Partition: 0, At: 0, Metadata: "hello"},
			kadm.Offset{Partition: 1, At: 5, Metadata: ""}, // kafka-consumer-groups.sh --reset-offsets
			kadm.Offset{Partition: 2, At: 0, Metadata: "2AAAA"},
		)
		bounds, err := x.admin().ListEndOffsets(t.Context(), x.names.Source)
		if err != nil {
			t.Fatal(err)
		}
		last, _ := bounds.Lookup(x.names.Source, 3)
		p := x.launch()
		x.eventually("three partitions are refused", func() bool {
			return p.metric("recon_dlq_partition_state", "topic", x.names.Source, "state", "refused") == 3
		})
		x.eventually("the fourth is done", func() bool { return done(p) == int(last.Offset) })
		x.drained(p)
		if !p.log.has("it is refused") || !p.log.has("partition=1") {
			t.Errorf("the log does not say which partition is refused:\n%s", p.log)
		}
		p.halt()
		if n := len(x.called()); n != int(last.Offset) {
			t.Errorf("%d records were called, want the %d of the partition that is not refused", n, last.Offset)
		}

		// What an operator does: nothing was done there, so the offsets may go.
		set := kadm.TopicsSet{}
		set.Add(x.names.Source, 0, 1, 2)
		gone, err := x.admin().DeleteOffsets(t.Context(), x.names.Group, set)
		if err == nil {
			err = gone.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		next := x.launch()
		x.eventually("all records are done", func() bool { return done(p, next) == 200 })
		x.drained(next)
		x.counted(nil)
	})
}

// Progress expires with an empty group. To begin again from the start is an operator's decision.
func TestAWorkerWhoseProgressIsGoneRefusesToStartUntilItIsTold(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name  string
			again int  // records that the message must name at least, and little more: markers count
			prune bool // the source is empty, the tiers are not
			ended int  // by the second start
		}{
			// 50 in the source and the five that went through the tier.
			{name: "source", again: 55, ended: 55},
			{name: "tiers only", again: 5, prune: true, ended: 5},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
				x.sendN(50)
				p := x.launch()
				x.eventually("all records are done", func() bool { return done(p) == 50 })
				x.drained(p)
				p.halt()
				x.counted(nil)
				if _, err := x.admin().DeleteGroup(t.Context(), x.names.Group); err != nil {
					t.Fatal(err)
				}
				if c.prune {
					x.prune(0, 50)
				}
				refused := x.launch()
				select {
				case <-refused.end:
				case <-time.After(20 * time.Second):
					t.Fatal("a worker whose progress is gone starts all over")
				}
				if !errors.Is(refused.err, consumer.ErrNoProgress) || !strings.Contains(refused.err.Error(), "--first-start") {
					t.Fatalf("want ErrNoProgress that says what to do, have %v", refused.err)
				}
				said := 0
				if m := regexp.MustCompile(`at most (\d+) records`).FindStringSubmatch(refused.err.Error()); m != nil {
					said, _ = strconv.Atoi(m[1])
				}
				if said < c.again || said > c.again+10 {
					t.Errorf("want at most %d records or a few more, have %v", c.again, refused.err)
				}
				told := x.launch(func(o *consumer.Options) { o.FirstStart = true })
				x.eventually("it begins again", func() bool { return done(told) == c.ended })
				x.drained(told)
				rep := x.counted(func(s *invariants.Spec) { s.AtLeastOnce = true }) // that was the decision
				if rep.Doubled == 0 && !c.prune {
					t.Errorf("nothing was done again: %s", rep)
				}
			})
		}
	})
}

// prune deletes the records of a source partition below offset.
func (x *bench) prune(partition int32, offset int64) {
	x.t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(x.names.Source, partition, offset, -1)
	deleted, err := x.admin().DeleteRecords(x.t.Context(), offsets)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// stubborn is a handler that one record hangs in, whatever its context says, until it is let go.
func stubborn(offset int64, g *gate) func(context.Context, *deadletter.Record) deadletter.Outcome {
	return func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		if r.Kind == deadletter.Source && r.Input.Offset == offset && !g.isOpen() {
			<-g.c
		}
		return mixed(ctx, r)
	}
}

// hasty makes a hanging handler stuck, and a drain short.
func hasty(o *consumer.Options) {
	o.Targets[0].Timeout, o.Drain = 300*time.Millisecond, time.Second
}

func TestARestartSkipsWhatIsDoneAboveAHole(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name   string
			tweaks []func(*consumer.Options)
		}{{"exactly once", nil}, {"at least once", []func(*consumer.Options){atLeastOnce}}} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				g := newGate()
				t.Cleanup(g.open)
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, stubborn(5, g))
				x.sendN(300)
				first := x.launch(append(c.tweaks, hasty)...)
				x.eventually("all but the stuck record are done", func() bool {
					return done(first) == 299 && first.metric("recon_dlq_stuck_handlers") == 1
				})
				first.halt()
				g.open()
				second := x.launch(c.tweaks...)
				x.eventually("the stuck record is done", func() bool { return done(second) == 1 })
				x.drained(second)
				x.counted(spec(c.tweaks...))
				if n := x.calledTwice(); n != 1 {
					t.Errorf("%d records were handed to the handler again, want the stuck one only", n)
				}
			})
		}
	})
}

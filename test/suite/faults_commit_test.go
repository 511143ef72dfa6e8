package suite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// An answer of the broker that comes once or a few times, in the middle of the work.
func TestABrokersErrorIsWorkedAroundOnce(t *testing.T) {
	t.Parallel()
	type fault = kfake.Fault
	few := func(err *kerr.Error, n int, keys ...kmsg.Key) fault { return fault{Keys: keys, Err: err, Count: n} }
	for _, c := range []struct {
		name      string
		fault     fault
		also      *fault // comes after it
		source    bool   // the fault is on a source partition only
		ambiguous bool   // the end's outcome must be read back
		aborted   bool   // a transaction must have been done again
		changed   bool   // the member must have got another id
	}{
		{name: "end: the commit is refused for no reason", fault: few(kerr.UnknownServerError, 1, kmsg.EndTxn), ambiguous: true},
		{name: "end: the coordinator is loading", fault: few(kerr.CoordinatorLoadInProgress, 2, kmsg.EndTxn)},
		{name: "end: the coordinator has moved", fault: few(kerr.NotCoordinator, 2, kmsg.EndTxn)},
		{name: "end: concurrent transactions", fault: few(kerr.ConcurrentTransactions, 2, kmsg.EndTxn)},
		{name: "end: the producer is fenced", fault: few(kerr.ProducerFenced, 1, kmsg.EndTxn), ambiguous: true},
		{name: "end: the epoch is old", fault: few(kerr.InvalidProducerEpoch, 1, kmsg.EndTxn), ambiguous: true},
		{name: "offsets: one partition fails", fault: few(kerr.UnknownServerError, 1, kmsg.TxnOffsetCommit), source: true, aborted: true},
		{name: "offsets: metadata of one partition is too long", fault: few(kerr.OffsetMetadataTooLarge, 1, kmsg.TxnOffsetCommit), source: true, aborted: true},
		{name: "offsets: they are applied and nobody says so", fault: few(kerr.RequestTimedOut, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: the coordinator is not available", fault: few(kerr.CoordinatorNotAvailable, 2, kmsg.TxnOffsetCommit)},
		{name: "offsets: the coordinator is loading", fault: few(kerr.CoordinatorLoadInProgress, 2, kmsg.TxnOffsetCommit)},
		{name: "offsets: the coordinator has moved", fault: few(kerr.NotCoordinator, 2, kmsg.TxnOffsetCommit)},
		{name: "offsets: concurrent transactions", fault: few(kerr.ConcurrentTransactions, 3, kmsg.TxnOffsetCommit)},
		{name: "offsets: another generation", fault: few(kerr.IllegalGeneration, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: a rebalance", fault: few(kerr.RebalanceInProgress, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: an unknown member", fault: few(kerr.UnknownMemberID, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: the epoch is old", fault: few(kerr.InvalidProducerEpoch, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: the producer id is unknown", fault: few(kerr.InvalidProducerIDMapping, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "offsets: an invalid transaction state", fault: few(kerr.InvalidTxnState, 1, kmsg.TxnOffsetCommit), aborted: true},
		{name: "produce: not the leader", fault: few(kerr.NotLeaderForPartition, 3, kmsg.Produce)},
		{name: "produce: concurrent transactions", fault: few(kerr.ConcurrentTransactions, 3, kmsg.Produce)},
		{name: "produce: written, and the answer is a timeout", fault: few(kerr.RequestTimedOut, 2, kmsg.Produce)},
		{name: "produce: written, and too few replicas", fault: few(kerr.NotEnoughReplicasAfterAppend, 2, kmsg.Produce)},
		{name: "produce: too few replicas", fault: few(kerr.NotEnoughReplicas, 2, kmsg.Produce)},
		{name: "produce: the epoch is old", fault: few(kerr.InvalidProducerEpoch, 1, kmsg.Produce), aborted: true},
		{name: "produce: the producer id is unknown", fault: few(kerr.UnknownProducerID, 1, kmsg.Produce)},
		{name: "produce: out of order", fault: few(kerr.OutOfOrderSequenceNumber, 1, kmsg.Produce)},
		{name: "produce: a storage error", fault: few(kerr.KafkaStorageError, 2, kmsg.Produce)},
		{name: "produce: refused for no reason", fault: few(kerr.UnknownServerError, 1, kmsg.Produce), aborted: true},
		{name: "heartbeat: an unknown member", fault: few(kerr.UnknownMemberID, 1, kmsg.Heartbeat)},
		// A cooperative member is not told then what it lost meanwhile.
		{name: "join: an unknown member in a rebalance", fault: few(kerr.RebalanceInProgress, 1, kmsg.Heartbeat), also: &fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.UnknownMemberID}, changed: true},
		// The answer to a join was lost and it was sent again: the member fences itself.
		{name: "sync: fenced by its own second join", fault: few(kerr.UnknownMemberID, 1, kmsg.Heartbeat), also: &fault{Keys: []kmsg.Key{kmsg.SyncGroup}, Err: kerr.FencedInstanceID, Count: 1}, changed: true},
		{name: "heartbeat: another generation", fault: few(kerr.IllegalGeneration, 1, kmsg.Heartbeat)},
		{name: "heartbeat: a rebalance", fault: few(kerr.RebalanceInProgress, 1, kmsg.Heartbeat)},
		{name: "heartbeat: the coordinator has moved", fault: few(kerr.NotCoordinator, 2, kmsg.Heartbeat)},
		{name: "fetch: not the leader", fault: few(kerr.NotLeaderForPartition, 3, kmsg.Fetch)},
		{name: "fetch: a storage error", fault: few(kerr.KafkaStorageError, 3, kmsg.Fetch)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			x := newBench(t, b, 2, 3, []time.Duration{time.Second}, slow(10*time.Millisecond))
			p := x.launch(func(o *consumer.Options) { o.Concurrency = 8 })
			x.sendN(200)
			x.eventually("the work is on its way", func() bool { return done(p) >= 40 })
			if c.source {
				c.fault.Topic, c.fault.Partitions = x.names.Source, []int32{1}
			}
			faults := []fault{c.fault}
			if c.also != nil {
				faults = append(faults, *c.also)
			}
			h := b.Cluster.Fault(faults...)
			defer h.Remove()
			sent := x.flow(p, 200, "the fault comes", func() bool { return h.Hits() >= c.fault.Count+len(faults)-1 })
			x.eventually("all records are done", func() bool { return done(p) == sent })
			x.sendN(50) // and it goes on
			x.eventually("the records after it are done", func() bool { return done(p) == sent+50 })
			x.drained(p)
			x.counted(nil)
			if n := p.metric("recon_dlq_ambiguous_transactions_total"); (n > 0) != c.ambiguous {
				t.Errorf("recon_dlq_ambiguous_transactions_total is %v", n)
			}
			again := p.metric("recon_dlq_transactions_total", "result", "aborted") + p.metric("recon_dlq_transactions_total", "result", "fenced")
			if c.aborted && again == 0 {
				t.Error("no transaction was done again")
			}
			if n := p.metric("recon_dlq_regroups_total"); (n > 0) != c.changed {
				t.Errorf("recon_dlq_regroups_total is %v", n)
			}
		})
	}
}

// Errors while a worker starts.
func TestABrokersErrorAtTheStartIsWaitedOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault kfake.Fault
	}{
		{"producer id: the coordinator is loading", kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorLoadInProgress, Count: 3}},
		{"producer id: concurrent transactions", kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ConcurrentTransactions, Count: 3}},
		{"producer id: refused for no reason", kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.UnknownServerError, Count: 2}},
		{"progress: a transaction is open", kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.UnstableOffsetCommit, Count: 3}},
		{"progress: the coordinator is loading", kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.CoordinatorLoadInProgress, Count: 3}},
		{"progress: refused for no reason", kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.UnknownServerError, Count: 1}},
		{"log starts: not the leader", kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.NotLeaderForPartition, Count: 3}},
		{"coordinator: not available", kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: 3}},
		{"join: the coordinator is loading", kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.CoordinatorLoadInProgress, Count: 2}},
		{"sync: a rebalance", kfake.Fault{Keys: []kmsg.Key{kmsg.SyncGroup}, Err: kerr.RebalanceInProgress, Count: 1}},
		// A coordinator that takes over before the join is stored knows this worker's predecessor only.
		{"sync: fenced by its predecessor", kfake.Fault{Keys: []kmsg.Key{kmsg.SyncGroup}, Err: kerr.FencedInstanceID, Count: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
			x.sendN(100)
			x.options() // asks for the cluster's id, which is not what is to fail
			h := b.Cluster.Fault(c.fault)
			defer h.Remove()
			p := x.launch(instance("w1"))
			x.eventually("all records are done", func() bool { return done(p) == 100 })
			x.drained(p)
			x.counted(nil)
			if h.Hits() < c.fault.Count {
				t.Errorf("the fault came %d times", h.Hits())
			}
		})
	}
}

// A worker that is fenced whenever it joins does not try for ever.
func TestAWorkerThatIsFencedAtEachJoinEnds(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
	x.sendN(10)
	h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SyncGroup}, Err: kerr.FencedInstanceID, Count: -1})
	p := x.launch(instance("w1"))
	x.eventually("it ends", p.stopped)
	if !errors.Is(p.err, consumer.ErrFenced) {
		t.Errorf("it ended with %v, want ErrFenced", p.err)
	}
	if n := h.Hits(); n < 2 || n > 8 {
		t.Errorf("it joined %d times, want a few", n)
	}
}

// Answers that are lost on the way, on every broker.
func TestALostAnswerIsNotALostOrDoubledRecord(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range lostAnswers {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.play(t, b)
			})
		}
	})
}

// lostAnswer is a request that fails on its way or back.
type lostAnswer struct {
	name      string
	key       kmsg.Key
	fate      fate
	ambiguous bool // the end's outcome must be read back
}

var lostAnswers = []lostAnswer{
	{"the end is done and its answer says that it failed", kmsg.EndTxn, garbleEnd, true},
	{"the end is done and its answer is lost", kmsg.EndTxn, loseAnswer, true},
	{"the end is lost", kmsg.EndTxn, loseRequest, true},
	{"produced, and the answer is lost", kmsg.Produce, loseAnswer, false},
	{"the produce request is lost", kmsg.Produce, loseRequest, false},
	{"offsets are staged and the answer is lost", kmsg.TxnOffsetCommit, loseAnswer, false},
	{"the offsets are lost", kmsg.TxnOffsetCommit, loseRequest, false},
}

func (c lostAnswer) play(t *testing.T, b brokers.Broker) {
	t.Helper()
	x := newBench(t, b, 2, 3, []time.Duration{time.Second}, slow(10*time.Millisecond))
	p := x.launch(func(o *consumer.Options) { o.Concurrency = 8 })
	x.sendN(200)
	x.eventually("the work is on its way", func() bool { return done(p) >= 40 })
	// The client asks twice, and there are two lanes: of three in a row, two are one lane's.
	rule, hits := times(3, c.key, c.fate)
	p.wire.treat(rule)
	sent := x.flow(p, 200, "it was lost three times", func() bool { return len(hits) == 3 })
	x.eventually("all records are done", func() bool { return done(p) == sent })
	x.drained(p)
	x.counted(nil)
	if n := p.metric("recon_dlq_ambiguous_transactions_total"); (n > 0) != c.ambiguous {
		t.Errorf("recon_dlq_ambiguous_transactions_total is %v", n)
	}
}

// The same, with the network gone for so long that the client gives up.
func TestAnEndWithoutAnAnswerIsReadBack(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name string
			fate fate
		}{{"it was done", cutAfter}, {"it was not done", cutBefore}} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 2, 3, []time.Duration{time.Second}, slow(10*time.Millisecond))
				p := x.launch(instance("w1"), func(o *consumer.Options) { o.Concurrency = 8 })
				x.sendN(300)
				x.eventually("the work is on its way", func() bool { return done(p) >= 40 })
				rule, hits := times(1, kmsg.EndTxn, c.fate)
				p.wire.treat(rule)
				sent := x.flow(p, 300, "the end is lost", func() bool { return len(hits) == 1 })
				x.eventually("its outcome is asked for", func() bool { return p.log.has("its outcome is read back") })
				p.wire.heal()
				x.eventually("all records are done", func() bool { return done(p) == sent })
				x.drained(p)
				x.counted(nil)
				if n := p.metric("recon_dlq_ambiguous_transactions_total"); n == 0 {
					t.Error("recon_dlq_ambiguous_transactions_total is 0")
				}
			})
		}
	})
}

// Progress that only passed control and aborted records is committed plainly, so
// that offset lag reaches zero, whatever the broker answers at first.
func TestIdleProgressIsCommittedInTheEnd(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, f := range []fate{pass, loseAnswer, loseRequest} {
			t.Run(fmt.Sprint(f), func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
				p := x.launch()
				x.sendN(50)
				x.eventually("all records are done", func() bool { return done(p) == 50 })
				rule, hits := times(1, kmsg.OffsetCommit, f)
				p.wire.treat(rule)
				x.leaveOpen(20).end(kgo.TryAbort)
				x.eventually("idle progress is committed", func() bool { return len(hits) == 1 })
				x.eventually("the lag is zero", func() bool { return x.counted(nil).Lag == 0 })
			})
		}
	})
}

// At least once there is no transaction around a copy, its event and the
// progress: the copy goes first, or the trail would tell of one that may never
// be there, and the progress last.
func TestAtLeastOnceNeitherEventNorProgressTellsOfACopyThatIsNotThere(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
	h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: x.names.Tier(time.Second), Err: kerr.NotEnoughReplicas, Count: -1})
	defer h.Remove()
	p := x.launch(atLeastOnce)
	x.sendN(4) // the last fails once
	x.eventually("the tier takes no copy", func() bool { return h.Hits() >= 3 })
	for _, r := range x.read(x.names.Audit) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == audit.RetryScheduled {
			t.Errorf("the trail tells of a copy of %s that is not there", e.Subject)
		}
	}
	rep, err := x.report(false, spec(atLeastOnce))
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		t.Errorf("%v\n%s", err, rep)
	}
	h.Remove()
	x.eventually("all records are done", func() bool { return done(p) == 4 })
	x.drained(p)
	x.counted(spec(atLeastOnce))
}

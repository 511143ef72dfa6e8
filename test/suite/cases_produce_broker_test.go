package suite

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
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
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Faults that other systems' users met, by their id. In this file: brokers that
// do not take what is written to them.

func TestC064AFailureOfOneCopyIsNotTakenForItsNeighbours(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 1, 3, short, once)
	x.set("max.message.bytes", "2000000", x.names.Source)
	x.tweak = func(o *consumer.Options) {
		o.MaxMessageBytes = map[string]int32{x.names.Source: 2_000_000, x.names.Tier(short[0]): kafka.DefaultMaxMessageBytes + deadletter.MaxOverhead}
	}
	w := x.start()
	<-w.c.Assigned()
	// Their batch must be the broker's own: the client's limit is a million bytes.
	cl := brokers.Client(t, append(brokers.AdminOpts(x.b), kgo.ProducerBatchMaxBytes(2_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	if err := cl.ProduceSync(t.Context(),
		&kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: value("r-1705", "")},
		&kgo.Record{Topic: x.names.Source, Key: []byte("k1"), Value: noise("r-1706", 1_250_000)},
		&kgo.Record{Topic: x.names.Source, Key: []byte("k2"), Value: value("r-1707", "")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	x.aside(w, 2)
	var there []string
	for _, r := range x.read(x.names.Tier(short[0])) {
		there = append(there, discrepancy(r))
	}
	if slices.Sort(there); strings.Join(there, " ") != "r-1705 r-1707" {
		t.Errorf("the tier has %v", there)
	}
	if at := x.committed(0); at != 1 {
		t.Errorf("committed is %d, want 1: the second record is open", at)
	}
}

// lastCall are a record whose next failure is its last, and one that is new.
func (x *bench) lastCall() {
	x.t.Helper()
	x.inTier(short[0], tiered("r-1710", deadletter.HeaderAttempt, "3", deadletter.HeaderNotBefore, "1"))
	x.send(value("r-1711", ""))
}

// lastCalls fails what is on its last call and resolves the others.
func lastCalls(_ context.Context, r *deadletter.Record) deadletter.Outcome {
	if r.Attempt == 3 {
		return failing
	}
	return resolved
}

// The right itself is tested on Apache Kafka's authorizer: at the start in
// internal/kafka, taken away later in faults_rights_test.go.
func TestC065AMissingRightToWriteIsWaitedForAndHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"poison", "audit"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			x := newBench(t, b, 3, 4, short, lastCalls)
			denied := map[string]string{"poison": x.names.Poison, "audit": x.names.Audit}[what]
			h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: denied, Err: kerr.TopicAuthorizationFailed, Count: -1})
			x.lastCall()
			p := x.launch()
			x.eventually("it is tried again", func() bool { return p.metric("recon_dlq_produce_failures_total", "topic", denied) >= 3 })
			x.eventually("the log names the right", func() bool {
				return p.log.has("no right to WRITE topic") && p.log.has(denied) && p.log.has("grant it")
			})
			if what == "poison" {
				p.is(1, "resolved_total")
				x.sendN(30)
				p.is(31, "resolved_total")
				p.is(1, "dlq_depth")
			}
			if n := p.metric("poison_total"); n != 0 {
				t.Errorf("poison_total is %v", n)
			}
			if n := strings.Count(p.log.String(), "no right to WRITE"); n > 2 {
				t.Errorf("%d lines about it in a second or two, want one in ten seconds", n)
			}
			x.unharmed()
			h.Remove() // the right is granted
			x.eventually("it is in poison", func() bool { return p.metric("poison_total") == 1 })
			x.drained(p)
			if rep := x.counted(nil); rep.Poisoned != 1 {
				t.Errorf("want one poisoned record: %s", rep)
			}
		})
	}
}

// A stall turns a metric and the alerts of depth and age on; readiness stays.
func TestC067WithoutAPoisonTopicNothingIsCommittedThatBelongsThere(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 3, 4, short, lastCalls)
	p := x.launch()
	<-p.c.Assigned()
	if err := b.Cluster.DeleteTopic(x.names.Poison); err != nil {
		t.Fatal(err)
	}
	x.lastCall()
	p.is(1, "resolved_total")
	x.eventually("the stall shows", func() bool {
		return p.metric("recon_dlq_produce_failures_total", "topic", x.names.Poison) > 0 && p.metric("dlq_depth") == 1 && p.metric("dlq_oldest_age_ms", "state", "due") > 0
	})
	x.sendN(30)
	p.is(31, "resolved_total") // what has nothing to do with it goes on
	if n := p.metric("poison_total"); n != 0 {
		t.Errorf("poison_total is %v without a poison topic", n)
	}
	brokers.Create(t, b, 3, map[string]string{"retention.ms": "-1"}, x.names.Poison)
	x.eventually("it is in poison", func() bool { return p.metric("poison_total") == 1 })
	x.drained(p)
	x.counted(nil)
}

// That each copy is on two of three nodes when it is acknowledged needs Apache
// Kafka: TestThreeNodesOfWhichOneDiesKeepThePromise. Here: every write asks for
// it, and whatever a moving leader answers is looked at.
func TestC068EveryWriteAsksForAllReplicasAndOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	const records = 600
	b := brokers.NewKfake(t, kfake.NumBrokers(3))
	var weak atomic.Int64
	watched := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, When: func(r kmsg.Request) bool {
		if p, ok := r.(*kmsg.ProduceRequest); ok && p.Acks != -1 {
			weak.Add(1)
		}
		return true
	}})
	x := newBench(t, b, 3, 3, []time.Duration{time.Second}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		if suffix(r.DiscrepancyID, "5") { // a storm of failures, and not an outage
			return resolved
		}
		return once(ctx, r)
	})
	x.target[0].Breaker.Threshold = 64
	x.sendN(records)
	p := x.launch()
	tier := x.names.Tier(time.Second)
	x.eventually("the storm is on its way", func() bool { return p.metric("recon_dlq_retries_total") >= 50 })
	for range 5 {
		for n := range int32(3) {
			leader := b.Cluster.LeaderFor(tier, n)
			if err := b.Cluster.MoveTopicPartition(tier, n, (leader+1)%3); err != nil {
				t.Fatal(err)
			}
		}
		h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: tier, Err: kerr.NotEnoughReplicasAfterAppend})
		defer h.Remove()
	}
	x.eventually("all records are done", func() bool { return done(p) == records })
	x.drained(p)
	if rep := x.counted(nil); rep.Retried != records*9/10 {
		t.Errorf("want nine copies of ten records: %s", rep)
	}
	if watched.Hits() == 0 || weak.Load() > 0 {
		t.Errorf("%d of %d writes do not ask for all replicas", weak.Load(), watched.Hits())
	}
}

func TestC070AFencedWorkerStopsAndATimedOutTransactionIsDoneAgain(t *testing.T) {
	t.Parallel()
	t.Run("the same name twice", func(t *testing.T) {
		t.Parallel()
		x := newBench(t, brokers.NewKfake(t), 1, 3, short, slow(10*time.Millisecond))
		x.sendN(100)
		one := x.launch(instance("w1"))
		x.eventually("it works", func() bool { return done(one) > 0 })
		two := x.launch(instance("w1"))
		x.eventually("one of them ends", func() bool { return one.stopped() || two.stopped() })
		loser, winner := one, two
		if two.stopped() {
			loser, winner = two, one
		}
		if !errors.Is(loser.err, consumer.ErrFenced) {
			t.Errorf("it ended with %v, want ErrFenced", loser.err)
		}
		x.reaches(100)
		x.drained(winner)
		x.counted(nil)
	})
	t.Run("the coordinator has given the transaction up", func(t *testing.T) {
		t.Parallel()
		b := brokers.NewKfake(t)
		g := newGate()
		var calls tally
		x := newBench(t, b, 1, 3, short, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next(r.DiscrepancyID)
			if r.Attempt == 0 {
				g.pass(ctx)
				return failing
			}
			return resolved
		})
		x.send(value("r-1750", ""))
		p := x.launch()
		p.is(1, "recon_dlq_enqueued_total")
		// No transaction waits for a handler: however long it takes, none times out for that.
		x.eventually("no transaction is open while the handler works", func() bool {
			open, err := x.admin().ListTransactions(t.Context(), nil, []string{"Ongoing"})
			return err == nil && len(open) == 0
		})
		h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: x.names.Tier(short[0]), Err: kerr.InvalidProducerEpoch})
		defer h.Remove()
		g.open()
		x.eventually("it is done", func() bool { return done(p) == 1 })
		x.drained(p)
		if h.Hits() != 1 || p.metric("recon_dlq_transactions_total", "result", "committed") == 0 {
			t.Errorf("the fault came %d times", h.Hits())
		}
		if rep := x.counted(nil); rep.Retried != 1 || calls.of("r-1750") != 2 {
			t.Errorf("want one copy and two calls, have %d: %s", calls.of("r-1750"), rep)
		}
	})
}

func TestC071CopiesCarryTheTimeTheyWereWritten(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		now := time.Now()
		x := newBench(t, b, 1, 2, short, always(failing))
		x.target[0].Breaker.Threshold = 64
		x.rules[0].MaxAge = 60 * 24 * time.Hour // by its timestamp one is a month old, whatever its value says
		if b.Features().RealKafka {
			x.set("message.timestamp.after.max.ms", "9223372036854775807", x.names.Source)
			x.set("message.timestamp.before.max.ms", "3600000", append(x.names.Tiers(), x.names.Poison, x.names.Audit)...)
		}
		x.set("retention.ms", "3600000", append(x.names.Tiers(), x.names.Poison)...)
		at := map[string]time.Time{"r-1760": now.Add(-30 * 24 * time.Hour), "r-1761": time.UnixMilli(0), "r-1762": now.Add(24 * time.Hour)}
		for _, id := range slices.Sorted(maps.Keys(at)) {
			brokers.Produce(t, b, &kgo.Record{Topic: x.names.Source, Key: []byte(id), Value: value(id, ""), Timestamp: at[id]})
		}
		w := x.start()
		x.settled(3, w)
		for _, r := range x.read(append(x.names.Tiers(), x.names.Poison, x.names.Audit)...) {
			if r.Timestamp.Before(now.Truncate(time.Second).Add(-time.Second)) || r.Timestamp.After(time.Now().Add(time.Second)) {
				t.Errorf("%s: stamped %s", r.Topic, r.Timestamp)
			}
		}
		if k, ok := b.(*brokers.Kfake); ok {
			k.Cluster.ApplyRetention()
			k.Cluster.ApplyRetention()
		}
		copies := x.read(append(x.names.Tiers(), x.names.Poison)...)
		if len(copies) != 6 {
			t.Errorf("%d copies, want a retry and a poison copy of three", len(copies))
		}
		for _, r := range copies {
			want := strconv.FormatInt(at[discrepancy(r)].UnixMilli(), 10)
			if want == "0" {
				want = "" // not known, and not said
			}
			if have := header(r, deadletter.HeaderTimestamp); have != want {
				t.Errorf("%s: %s is %q, want %q", discrepancy(r), deadletter.HeaderTimestamp, have, want)
			}
		}
		x.check(true)
	})
}

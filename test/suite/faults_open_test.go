package suite

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// An open transaction of somebody else hides everything behind it: the worker
// is idle and depth is zero, and only these metrics say why.
func TestAForeignOpenTransactionShowsAndHoldsUpOnlyUntilItEnds(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name string
			how  kgo.TransactionEndTry
			all  int
		}{{"aborted", kgo.TryAbort, 40}, {"committed", kgo.TryCommit, 43}} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
				x.sendN(20)
				f := x.leaveOpen(3)
				x.sendN(20)
				p := x.launch()
				x.eventually("what is before it is done", func() bool { return done(p) == 20 })
				x.eventually("what is behind it shows", func() bool { return p.metric("recon_dlq_unstable_records", "topic", x.names.Source) == 23 })
				x.eventually("its age shows", func() bool { return p.metric("recon_dlq_unstable_age_seconds", "topic", x.names.Source) > 1 })
				if n := done(p); n != 20 {
					t.Errorf("%d records are done, with an open transaction before 20 of them", n)
				}
				f.end(c.how)
				x.eventually("what is behind it is done", func() bool { return done(p) == c.all })
				x.eventually("nothing is hidden any more", func() bool {
					return p.metric("recon_dlq_unstable_records") == 0 && p.metric("recon_dlq_unstable_age_seconds") == 0
				})
				x.drained(p)
				x.counted(nil)
			})
		}
	})
}

// A worker with more tiers in its policy than the group has seen yet: the new
// tier is drained once the group leader has asked for the topics again.
func TestATierMadeWhileTheWorkerRunsIsDrained(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
		old := x.launch()
		x.sendN(50)
		x.eventually("the first records are done", func() bool { return done(old) == 50 })
		const delay = 500 * time.Millisecond
		brokers.Create(t, b, 2, map[string]string{"retention.ms": "-1"}, x.names.Tier(delay))
		x.rules = []policy.Rule{{Name: "default", Target: "ledger", Attempts: 3, Delays: []time.Duration{delay}, MaxAge: time.Hour}}
		began := time.Now()
		next := x.launch() // joins the group whose leader does not know the tier
		x.sendN(50)
		x.eventually("all records are done", func() bool { return done(old, next) == 100 })
		took := time.Since(began)
		t.Logf("seen after %s", took.Round(time.Millisecond))
		if took > 30*time.Second { // metadata age 15 s, a rebalance, the delay
			t.Errorf("the new tier was drained after %s", took)
		}
		x.drained(old, next)
		x.counted(nil)
	})
}

// A worker that loses its partitions while the end of a transaction is on its
// way must not read their progress before that end: it can still come, and what
// is in the transaction would be done again.
func TestProgressUnderAnOpenTransactionIsReadOnlyWhenThatHasEnded(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 2, 3, []time.Duration{time.Second}, slow(10*time.Millisecond))
	p := x.launch(func(o *consumer.Options) { o.Concurrency = 8 })
	x.sendN(200)
	x.eventually("the work is on its way", func() bool { return done(p) >= 40 })
	open := make(chan struct{})
	held, read, ended := false, 0, false // guarded by the wire's mutex, under which rules are called
	p.wire.treat(func(k kmsg.Key) fate {
		switch {
		case k == kmsg.EndTxn && !ended:
			if !held {
				close(open)
			}
			held = true
			return loseRequest
		case k == kmsg.OffsetFetch && held:
			read++
		}
		// It is read in vain, or has been read and the records follow.
		ended = ended || read > 1 || read == 1 && k == kmsg.Fetch
		return pass
	})
	<-open
	h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, Count: 1})
	defer h.Remove()
	x.eventually("the partitions are lost", func() bool { return p.metric("recon_dlq_lost_partitions_total") > 0 })
	x.eventually("all records are done", func() bool { return done(p) >= 200 })
	x.drained(p)
	x.counted(nil)
}

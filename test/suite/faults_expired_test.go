package suite

import (
	"context"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// The client moves on without an error when the log no longer holds what was
// not done: only the worker can tell.
func TestRecordsThatExpireWhileTheWorkerIsDownAreTold(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name    string
			below   int64
			expired int
		}{
			{"a hole, and what is done behind it", 50, 1},
			{"a hole, and what was never read", 110, 11},
			{"everything", 120, 21},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				g := newGate()
				t.Cleanup(g.open)
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, stubborn(5, g))
				x.sendN(100)
				first := x.launch(hasty)
				x.eventually("all but the stuck record are done", func() bool {
					return done(first) == 99 && first.metric("recon_dlq_stuck_handlers") == 1
				})
				first.halt()
				g.open()
				x.sendN(20)
				x.prune(0, c.below)
				second := x.launch()
				x.sendN(10)
				x.reaches(130 - int(c.below)) // what can still be read
				x.drained(second)
				x.eventually("what expired is told", func() bool {
					rep, err := x.report(false, nil)
					return err == nil && rep.Expired >= c.expired
				})
				rep := x.counted(nil)
				if rep.Expired != c.expired {
					t.Errorf("want %d expired records: %s", c.expired, rep)
				}
				if !second.log.has("records expired before they were done") {
					t.Errorf("the log does not tell:\n%s", second.log)
				}
			})
		}
	})
}

// More than a window: it is told piece by piece, and what follows is read only then.
func TestMoreThanAWindowThatExpiresIsToldToo(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
	x.sendN(10)
	first := x.launch()
	x.eventually("the first records are done", func() bool { return done(first) == 10 })
	first.halt()
	x.sendN(45_000)
	x.prune(0, 45_000)
	second := x.launch()
	x.eventually("the rest is done", func() bool { return done(second) == 10 })
	x.drained(second)
	if rep := x.counted(nil); rep.Expired != 44_990 {
		t.Errorf("want 44990 expired records: %s", rep)
	}
	if n := second.metric("recon_dlq_expired_total"); n != 44_990 {
		t.Errorf("recon_dlq_expired_total is %v", n)
	}
}

// A partition that is paused is not fetched, so the client has no word of a log
// start that moves past its position.
func TestRecordsThatExpireBehindAPauseAreTold(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		g := newGate()
		x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
			g.pass(ctx)
			return resolved
		})
		x.target[0].Timeout = 20 * time.Second
		x.sendN(6000)
		p := x.launch(func(o *consumer.Options) { o.MaxInflightBytes, o.Concurrency = 1<<20, 4 })
		x.eventually("the source is paused", func() bool {
			return p.metric("recon_dlq_partition_state", "topic", x.names.Source, "state", "paused") == 1
		})
		x.prune(0, 5900)
		g.open()
		x.reaches(100)
		x.drained(p)
		rep := x.counted(nil)
		if rep.Resolved+rep.Expired != 6000 || rep.Expired == 0 || rep.Resolved < 200 {
			t.Errorf("want what was held resolved, what was not expired, 6000 in all: %s", rep)
		}
	})
}

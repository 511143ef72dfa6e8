package suite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// A task that is running when the worker stops stays open for long. A second
// signal kills at once: that is tested with the program, and with killed workers.
// The design decides otherwise what a short grace does to a good handler: its
// timeout must be below the drain bound, so that it always ends; what ignores
// its deadline is given up, neither counted nor committed.
func TestC106_AWorkerThatStopsFinishesWhatRunsAndLeavesTheRestUntouched(t *testing.T) {
	t.Parallel()
	const source, waiting, slots = 30, 3, 5
	for _, c := range []struct {
		name    string
		drain   time.Duration
		timeout time.Duration
		obeys   bool // handlers end within the drain bound
	}{
		{"handlers end in time", 10 * time.Second, 5 * time.Second, true},
		{"handlers ignore their deadline", time.Second, 900 * time.Millisecond, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			t.Cleanup(g.open)
			b := brokers.NewKfake(t)
			const tier = 15 * time.Second // far longer than a start takes
			x := newBench(t, b, 3, 4, []time.Duration{tier}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
				<-g.c
				var n int
				if _, err := fmt.Sscanf(r.DiscrepancyID, "d-%d", &n); err == nil && n%2 == 0 && r.Attempt == 0 {
					return failing
				}
				return resolved
			})
			x.target[0].Breaker.Threshold = 64
			x.sendN(source)
			for i := range waiting {
				x.inTier(tier, tiered(fmt.Sprintf("not due %d", i), deadletter.HeaderAttempt, "3"))
			}
			seen, tweak := observe()
			p := x.launch(tweak, func(o *consumer.Options) {
				o.Concurrency, o.Drain = slots, c.drain
				o.Targets[0].Timeout = c.timeout
			})
			p.is(slots, "recon_dlq_inflight", "state", "calling")
			p.is(waiting, "recon_dlq_inflight", "state", "waiting")
			began := time.Now()
			p.stop()
			if c.obeys {
				p.is(3, "recon_dlq_partition_state", "topic", x.names.Source, "state", "leaving")
				g.open()
			}
			p.halt()
			if took := time.Since(began); took > 10*time.Second || p.err != nil {
				t.Errorf("stopped after %s with %v", took, p.err)
			}
			if n := seen.of(kmsg.LeaveGroup); n == 0 {
				t.Error("it did not leave the group")
			}
			if n := len(x.called()); n != slots {
				t.Errorf("%d records were called, want %d: none after the stop", n, slots)
			}
			ended := p.metric("resolved_total") + p.metric("recon_dlq_retries_total")
			if want := map[bool]float64{true: slots, false: 0}[c.obeys]; ended != want {
				t.Errorf("%v results are committed, want %v", ended, want)
			}
			if rep, err := x.report(false, nil); err != nil || rep.Err() != nil {
				t.Errorf("after the stop: %v\n%s", err, rep)
			}
			g.open()
			next := x.launch()
			x.eventually("all are done", func() bool { return done(p, next) == source+waiting })
			x.drained(next)
			rep := x.counted(nil)
			if rep.Records != source+waiting || rep.Resolved != source+waiting || rep.Retried != source/2 {
				t.Errorf("of %d records %d were resolved, %d failures counted", rep.Records, rep.Resolved, rep.Retried)
			}
			if n := x.calledTwice(); c.obeys && n > 0 || n > slots {
				t.Errorf("%d records were called again", n)
			}
		})
	}
}

// The producer is closed before a handler that is still running has failed.
func TestC107_AFailureThatComesWhileTheWorkerStopsIsInItsTierBeforeItEnds(t *testing.T) {
	t.Parallel()
	g := newGate()
	t.Cleanup(g.open)
	x := newBench(t, brokers.NewKfake(t), 1, 4, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		if r.Attempt > 0 {
			return resolved
		}
		<-g.c
		return failing
	})
	var order requestOrder
	p := x.launch(func(o *consumer.Options) {
		o.Drain = 10 * time.Second
		w := newWire()
		w.treat(order.note)
		o.Client = append(o.Client, kgo.Dialer(w.dial))
	})
	x.send(value("r-2300", ""))
	p.is(1, "recon_dlq_inflight", "state", "calling")
	p.stop()
	p.is(1, "recon_dlq_partition_state", "topic", x.names.Source, "state", "leaving")
	order.start()
	g.open()
	p.halt()
	if p.err != nil {
		t.Errorf("it ended with %v", p.err)
	}
	copies := x.read(x.names.Tier(time.Second))
	if len(copies) != 1 || discrepancy(copies[0]) != "r-2300" || header(copies[0], deadletter.HeaderAttempt) != "1" {
		t.Fatalf("the tier has %d copies", len(copies))
	}
	// publish, progress, end of the transaction, and only then leave.
	last := -1
	for _, k := range []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.LeaveGroup} {
		at := order.last(k)
		if at <= last {
			t.Errorf("%s came at %d, after what it must follow at %d", k.Name(), at, last)
		}
		last = at
	}
	next := x.launch()
	x.eventually("it is done after a restart", func() bool { return done(next) == 1 })
	x.drained(next)
	if rep := x.counted(nil); rep.Retried != 1 || rep.Resolved != 1 {
		t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
	}
}

// requestOrder is the order in which requests were sent, from start on.
type requestOrder struct {
	mu   sync.Mutex
	on   bool
	keys []kmsg.Key
}

func (o *requestOrder) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = true
}

func (o *requestOrder) note(k kmsg.Key) fate {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.on {
		o.keys = append(o.keys, k)
	}
	return pass
}

// last is when a request was sent last; -1: never.
func (o *requestOrder) last(key kmsg.Key) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := len(o.keys) - 1; i >= 0; i-- {
		if o.keys[i] == key {
			return i
		}
	}
	return -1
}

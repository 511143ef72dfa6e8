package suite

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// observed is a worker's network on which requests and connections are counted.
type observed struct {
	wire *wire

	mu       sync.Mutex
	requests map[kmsg.Key]int
	dials    int
}

// observe counts from the worker's start: give what it returns to launch.
func observe() (*observed, func(*consumer.Options)) {
	n := &observed{wire: newWire(), requests: map[kmsg.Key]int{}}
	n.wire.treat(func(k kmsg.Key) fate {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.requests[k]++
		return pass
	})
	return n, func(o *consumer.Options) {
		o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			n.mu.Lock()
			n.dials++
			n.mu.Unlock()
			return n.wire.dial(ctx, network, addr)
		}))
	}
}

func (n *observed) of(keys ...kmsg.Key) (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range keys {
		sum += n.requests[k]
	}
	return sum
}

func (n *observed) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// callsOf are the calls that each discrepancy got, in order.
func (x *bench) callsOf(names ...string) map[string][]invariants.Call {
	x.t.Helper()
	of := map[string][]invariants.Call{}
	ids := map[string]string{} // by recon-id
	for _, r := range x.read(append(x.names.Tiers(), x.names.Poison)...) {
		ids[header(r, deadletter.HeaderID)] = discrepancy(r)
	}
	for id, calls := range x.called() {
		if slices.Contains(names, ids[id]) {
			of[ids[id]] = append(of[ids[id]], calls...)
		}
	}
	return of
}

// timed remembers when each discrepancy was called first.
type timed struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (c *timed) call(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string]time.Time{}
	}
	if c.at[id].IsZero() {
		c.at[id] = time.Now()
	}
}

func (c *timed) of(id string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[id]
}

func inMillis(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

// Mixed delays in one tier: the record at the head holds up the one behind it.
func TestC031_ARecordBehindOneThatWaitsLongerIsCalledWhenItIsDue(t *testing.T) {
	t.Parallel()
	var calls timed
	x := newBench(t, brokers.NewKfake(t), 1, 4, []time.Duration{time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.call(r.DiscrepancyID)
		return resolved
	})
	start := time.Now()
	long, short := start.Add(3500*time.Millisecond), start.Add(time.Second)
	x.inTier(time.Second,
		tiered("r-1400", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, inMillis(long)),
		tiered("r-1401", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, inMillis(short)))
	w := x.start()
	x.settled(2, w)
	rep := x.check(true)
	for id, due := range map[string]time.Time{"r-1400": long, "r-1401": short} {
		if late := calls.of(id).Sub(due.Truncate(time.Millisecond)); late < 0 || late > 10*time.Second {
			t.Errorf("%s was called %s after it was due", id, late)
		}
	}
	// The long one is at the head for the tier's delay only; its hops show as retiered events.
	if rep.Retiered < 1 || rep.Retiered > 3 || rep.Retried != 0 {
		t.Errorf("retiered %d, retried %d", rep.Retiered, rep.Retried)
	}
	if n := w.metric("recon_dlq_lateness_seconds"); n != 2 {
		t.Errorf("lateness was measured %v times", n)
	}
}

// A due time computed from the delay of the topic that was read, not of the one
// that is written. Jitter shortens a delay by a fifth at most, by design.
func TestC032_EachCopyWaitsForTheDelayOfTheTierItIsIn(t *testing.T) {
	t.Parallel()
	delays := []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond}
	x := newBench(t, brokers.NewKfake(t), 1, 4, delays, func(context.Context, *deadletter.Record) deadletter.Outcome { return failing })
	x.send(value("r-1410", ""))
	w := x.start()
	x.settled(1, w)
	x.check(true)
	calls := x.callsOf("r-1410")["r-1410"]
	if len(calls) != 4 {
		t.Fatalf("%d calls, want 4", len(calls))
	}
	for i, delay := range delays {
		if gap := calls[i+1].At.Sub(calls[i].At); gap < delay*4/5 || gap > delay+time.Second {
			t.Errorf("call %d came %s after the one before, its tier is %s", i+2, gap, delay)
		}
		copies := x.read(x.names.Tier(delay))
		if len(copies) != 1 {
			t.Fatalf("%d copies in %s", len(copies), x.names.Tier(delay))
		}
		ms, err := strconv.ParseInt(header(copies[0], deadletter.HeaderNotBefore), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		// The copy is published a moment after its time was set.
		if wait := time.UnixMilli(ms).Sub(copies[0].Timestamp); wait > delay || wait < delay*4/5-time.Second {
			t.Errorf("the copy in %s waits %s", copies[0].Topic, wait)
		}
	}
}

// A wait that is longer than the client waits for records crashed the consumer.
func TestC034_AMemberStaysInItsGroupHoweverLongARecordWaits(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second // more than heartbeats and fetches wait
	var calls timed
	x := newBench(t, brokers.NewKfake(t), 1, 4, []time.Duration{delay}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.call(r.DiscrepancyID)
		return resolved
	})
	due := time.Now().Add(4500 * time.Millisecond)
	x.inTier(delay, tiered("r-1412", deadletter.HeaderAttempt, "3", deadletter.HeaderNotBefore, inMillis(due)))
	seen, tweak := observe()
	p := x.launch(tweak)
	p.is(1, "recon_dlq_inflight", "state", "waiting")
	joins, beats := seen.of(kmsg.JoinGroup), seen.of(kmsg.Heartbeat)
	x.settled(1, p.worker)
	if n := seen.of(kmsg.JoinGroup); n != joins {
		t.Errorf("it joined %d times more while the record waited", n-joins)
	}
	if n := seen.of(kmsg.Heartbeat); n == beats {
		t.Error("no heartbeat was sent while the record waited")
	}
	if late := calls.of("r-1412").Sub(due.Truncate(time.Millisecond)); late < 0 || late > 10*time.Second {
		t.Errorf("called %s after it was due", late)
	}
	if n := len(x.called()); n != 1 {
		t.Errorf("%d records were called", n)
	}
	x.counted(nil)
}

// A record's timestamp ahead of the clock makes the reader believe that it has caught up.
func TestC038_ARecordStampedInTheFutureIsNeitherYoungNorDoneTwice(t *testing.T) {
	t.Parallel()
	g := newGate()
	t.Cleanup(g.open)
	var calls tally
	b := brokers.NewKfake(t)
	x := newBench(t, b, 1, 4, second, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.next(r.DiscrepancyID)
		g.pass(ctx)
		return resolved
	})
	x.target[0].Timeout = 20 * time.Second
	ahead := time.Now().Add(time.Hour)
	brokers.Produce(t, b,
		&kgo.Record{Topic: x.names.Source, Value: value("r-1440", ""), Timestamp: ahead},
		&kgo.Record{Topic: x.names.Source, Value: value("said so itself", ""), Timestamp: ahead})
	w := x.start()
	w.is(2, "recon_dlq_inflight", "state", "calling")
	w.is(2, "dlq_depth") // it has not caught up
	before := w.metric("dlq_oldest_age_ms", "state", "due")
	x.eventually("they grow older", func() bool { return w.metric("dlq_oldest_age_ms", "state", "due") > before+100 })
	if before < 0 || before > 50_000 {
		t.Errorf("the age began at %v ms", before)
	}
	g.open()
	x.settled(2, w)
	if n := calls.of("r-1440"); n != 1 {
		t.Errorf("%d calls", n)
	}
	x.check(true)
}

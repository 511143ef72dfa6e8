package suite

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// On Apache Kafka a plain commit wins over the offsets of a transaction that is
// open: it would hide what the transaction says, that it has happened included.
// The lane's transaction is held open here for longer than two of its idle
// ticks, with aborted records passed meanwhile that idle progress would tell of.
func TestIdleProgressIsNotCommittedWhileTheLanesTransactionIsOpen(t *testing.T) {
	t.Parallel()
	const ticks = 2500 * time.Millisecond
	b := brokers.NewKfake(t)
	g := newGate()
	t.Cleanup(g.open)
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
		g.pass(ctx)
		return resolved
	})
	x.target[0].Timeout = 20 * time.Second
	var armed, open atomic.Bool
	var lane string                // its transactional id, while open
	var during, after atomic.Int32 // plain commits
	ends, aborted := make(chan struct{}), make(chan struct{})
	abort := sync.OnceFunc(func() { close(aborted) })
	t.Cleanup(abort)
	b.Cluster.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r, ok := req.(*kmsg.EndTxnRequest)
		if !ok || !armed.CompareAndSwap(true, false) { // the first since, so the lane's
			return nil, nil, false
		}
		lane = r.TransactionalID
		open.Store(true)
		close(ends)
		b.Cluster.SleepControl(func() {
			<-aborted
			takes(t.Context(), ticks)
		})
		open.Store(false)
		return nil, nil, false
	})
	b.Cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if r, ok := req.(*kmsg.InitProducerIDRequest); ok && r.TransactionalID != nil && open.Load() && *r.TransactionalID == lane {
			open.Store(false) // it ends what is open
		}
		return nil, nil, false
	})

	x.sendN(1)
	p := x.launch()
	p.wire.treat(func(k kmsg.Key) fate { // what is sent: the broker reads no more of a connection on which it holds an answer
		switch {
		case k != kmsg.OffsetCommit:
		case open.Load():
			during.Add(1)
		default:
			after.Add(1)
		}
		return pass
	})
	x.eventually("the record is told of as enqueued", func() bool { return p.metric("recon_dlq_enqueued_total") == 1 })
	armed.Store(true)
	g.open() // nothing but its result is left for the lane
	<-ends
	f := x.leaveOpen(20)
	f.end(kgo.TryAbort)
	abort()
	x.eventually("the record is done", func() bool { return done(p) == 1 })
	x.eventually("idle progress is committed after it", func() bool { return after.Load() > 0 })
	x.eventually("the lag is zero", func() bool { return x.counted(nil).Lag == 0 })
	if n := during.Load(); n > 0 {
		t.Errorf("%d plain commits while the transaction was open", n)
	}
}

// The other way round: while the answer to a plain commit is awaited, the lane
// has no transaction. The commit could come to the broker after the
// transaction's offsets, and win over them.
func TestNoTransactionBeginsWhileIdleProgressIsBeingCommitted(t *testing.T) {
	t.Parallel()
	const long = time.Second // many of the lane's intervals
	b := brokers.NewKfake(t)
	called := make(chan struct{}, 1)
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(context.Context, *deadletter.Record) deadletter.Outcome {
		select {
		case called <- struct{}{}:
		default:
		}
		return resolved
	})
	var armed, held atomic.Bool
	var during atomic.Int32 // requests of transactions
	commits := make(chan struct{})
	b.Cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		if !armed.CompareAndSwap(true, false) {
			return nil, nil, false
		}
		held.Store(true)
		close(commits)
		b.Cluster.SleepControl(func() {
			select {
			case <-called:
				takes(t.Context(), long)
			case <-t.Context().Done():
			}
		})
		held.Store(false)
		return nil, nil, false
	})
	x.sendN(1)
	p := x.launch()
	p.wire.treat(func(k kmsg.Key) fate {
		switch k {
		case kmsg.Produce, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn:
			if held.Load() {
				during.Add(1)
			}
		}
		return pass
	})
	// The lane has produced before: it asks the broker for nothing more, on a
	// connection on which that holds an answer.
	x.eventually("the first record is done", func() bool { return done(p) == 1 })
	<-called
	armed.Store(true)
	x.leaveOpen(20).end(kgo.TryAbort)
	<-commits
	x.sendN(1)
	x.eventually("the second record is done", func() bool { return done(p) == 2 })
	x.eventually("the lag is zero", func() bool { return x.counted(nil).Lag == 0 })
	if n := during.Load(); n > 0 {
		t.Errorf("%d requests of a transaction while a plain commit was on its way", n)
	}
}

// A copy or an event that the broker refused is not there: the progress that
// tells of it must not follow.
func TestProgressDoesNotFollowARefusedEvent(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
	h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: x.names.Audit, Err: kerr.UnknownServerError, Count: 1})
	defer h.Remove()
	p := x.launch()
	var next atomic.Int32 // what the lane asked for after that
	p.wire.treat(func(k kmsg.Key) fate {
		if (k == kmsg.TxnOffsetCommit || k == kmsg.EndTxn) && h.Hits() > 0 {
			next.CompareAndSwap(0, int32(k))
		}
		return pass
	})
	x.sendN(1)
	x.eventually("the lane goes on", func() bool { return next.Load() != 0 })
	if k := kmsg.Key(next.Load()); k != kmsg.EndTxn {
		t.Fatalf("%s follows an event that was refused", k.Name())
	}
	x.eventually("the record is done", func() bool { return done(p) == 1 })
	x.drained(p)
	x.counted(nil)
}

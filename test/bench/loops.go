package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// The loops that people write by hand. They take what the client library gives
// by default (compression included) and batches of 1,000 records; they do not
// parse values, hold no record back and know no outage.

const batch = 1000

// copyOf is what a loop sends to a tier: the record with one header set anew.
func copyOf(r *kgo.Record, topic, attempt string, more ...kgo.RecordHeader) *kgo.Record {
	hs := append(slices.Clone(r.Headers), more...)
	for i := range hs {
		if hs[i].Key == deadletter.HeaderAttempt {
			hs[i].Value = []byte(attempt)
		}
	}
	return &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Headers: hs}
}

// eventOf is a loop's audit event, of the size of the engine's.
func (n names) eventOf(r *kgo.Record, kind string) *kgo.Record {
	event := fmt.Appendf(nil, `{"specversion":"1.0","id":"%032x","source":"bench/loop","type":"recon.dlq.%s","subject":"d-%d","time":"2026-12-01T00:00:00.000Z",`+
		`"datacontenttype":"application/json","data":{"origin":"%s/%d/%d","input":"%s/%d/%d","recon_id":"%032x","attempt":2,"category":"amount_differs","reason":"failed","rule":"default","seq":%d}}`,
		r.Offset, kind, r.Offset, r.Topic, r.Partition, r.Offset, r.Topic, r.Partition, r.Offset, r.Offset, r.Offset)
	return &kgo.Record{Topic: n.audit(), Key: r.Key, Value: event}
}

// hopOutputs are what a loop produces for each record of a hop.
func (n names) hopOutputs(fs kgo.Fetches) []*kgo.Record {
	outs := make([]*kgo.Record, 0, 2*fs.NumRecords())
	fs.EachRecord(func(r *kgo.Record) {
		outs = append(outs, copyOf(r, n.tier(next), "2"), n.eventOf(r, "retry_scheduled"))
	})
	return outs
}

func (b *bench) loopOpts(n names, topic string) []kgo.Opt {
	return append(b.kafka.Opts(),
		kgo.ConsumerGroup(n.Group+"."+topic), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxWait(250*time.Millisecond),
		kgo.MetadataMinAge(20*time.Millisecond), // else what fails once, as the first transactions do, waits for seconds
	)
}

// loop reads a topic at least once: poll, make the outputs, produce, commit. It
// ends with ctx, and done is told of what has been committed.
func (b *bench) loop(ctx context.Context, n names, topic string, outputs func(context.Context, kgo.Fetches) []*kgo.Record, done func(records int)) error {
	cl, err := kgo.NewClient(b.loopOpts(n, topic)...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance() // a poll that was cut short holds the group
	for {
		fs := cl.PollRecords(ctx, batch)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := fs.Err(); err != nil {
			return err
		}
		if err := cl.ProduceSync(ctx, outputs(ctx, fs)...).FirstErr(); err != nil {
			return err
		}
		if err := cl.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		cl.AllowRebalance()
		done(fs.NumRecords())
	}
}

var errDone = errors.New("all records are done")

// hopLoop is the at-least-once loop over one tier.
func (b *bench) hopLoop(ctx context.Context, n names, records int) (time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var begin time.Time
	var took time.Duration
	left := records
	err := b.loop(ctx, n, n.tier(hop), func(_ context.Context, fs kgo.Fetches) []*kgo.Record {
		if begin.IsZero() && fs.NumRecords() > 0 {
			begin = time.Now()
		}
		return n.hopOutputs(fs)
	}, func(n int) {
		if left -= n; left <= 0 {
			took = time.Since(begin)
			stop(errDone)
		}
	})
	return took, unlessDone(ctx, err)
}

// failOnceLoop is the at-least-once loop that sends each record of the source to
// a tier, and resolves it from there once it is due: two loops side by side, so
// that waiting for the one does not hold up the other.
func (b *bench) failOnceLoop(ctx context.Context, n names, records int) (time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var begin, took, left atomic.Int64 // begin in ns since the epoch
	left.Store(int64(records))
	fail := func(_ context.Context, fs kgo.Fetches) []*kgo.Record {
		if fs.NumRecords() > 0 {
			begin.CompareAndSwap(0, time.Now().UnixNano())
		}
		due := fmt.Appendf(nil, "%d", time.Now().Add(hop).UnixMilli())
		outs := make([]*kgo.Record, 0, 2*fs.NumRecords())
		fs.EachRecord(func(r *kgo.Record) {
			id := fmt.Appendf(nil, "%s/%d/%d", r.Topic, r.Partition, r.Offset)
			outs = append(outs, copyOf(r, n.tier(hop), "1",
				kgo.RecordHeader{Key: deadletter.HeaderOrigin, Value: id}, kgo.RecordHeader{Key: deadletter.HeaderAttempt, Value: []byte("1")},
				kgo.RecordHeader{Key: deadletter.HeaderNotBefore, Value: due}), n.eventOf(r, "retry_scheduled"))
		})
		return outs
	}
	resolve := func(ctx context.Context, fs kgo.Fetches) []*kgo.Record {
		// A tier's records are in the order in which they become due, so the
		// last ones of a batch say when all of it is.
		var due time.Time
		outs := make([]*kgo.Record, 0, fs.NumRecords())
		fs.EachRecord(func(r *kgo.Record) {
			if at := notBefore(r); at.After(due) {
				due = at
			}
			outs = append(outs, n.eventOf(r, "resolved"))
		})
		wait(ctx, time.Until(due))
		return outs
	}
	var loops sync.WaitGroup
	run := func(topic string, outputs func(context.Context, kgo.Fetches) []*kgo.Record, done func(int)) {
		loops.Go(func() {
			if err := b.loop(ctx, n, topic, outputs, done); err != nil {
				stop(err) // the first one counts
			}
		})
	}
	run(n.source(), fail, func(int) {})
	run(n.tier(hop), resolve, func(n int) {
		if left.Add(int64(-n)) <= 0 {
			took.Store(time.Now().UnixNano() - begin.Load())
			stop(errDone)
		}
	})
	loops.Wait()
	return time.Duration(took.Load()), unlessDone(ctx, context.Cause(ctx))
}

// session is the exactly-once loop on franz-go's GroupTransactSession.
func (b *bench) session(ctx context.Context, n names, records int) (time.Duration, error) {
	s, err := kgo.NewGroupTransactSession(append(b.loopOpts(n, n.tier(hop)), kgo.TransactionalID(n.Group), kgo.TransactionTimeout(10*time.Second))...)
	if err != nil {
		return 0, err
	}
	defer s.CloseAllowingRebalance()
	var begin time.Time
	for done := 0; done < records; {
		fs := s.PollRecords(ctx, batch)
		if err := fs.Err(); err != nil {
			return 0, err
		}
		if fs.NumRecords() == 0 {
			s.AllowRebalance()
			continue
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		if err := s.Begin(); err != nil {
			return 0, err
		}
		if err := s.ProduceSync(ctx, n.hopOutputs(fs)...).FirstErr(); err != nil {
			return 0, err
		}
		ok, err := s.End(ctx, kgo.TryCommit)
		if err != nil {
			return 0, err
		}
		s.AllowRebalance()
		if ok {
			done += fs.NumRecords()
		}
	}
	return time.Since(begin), nil
}

// notBefore is when a loop's record is due; the zero time if it does not say.
func notBefore(r *kgo.Record) time.Time {
	for _, h := range r.Headers {
		if h.Key == deadletter.HeaderNotBefore {
			if ms, err := strconv.ParseInt(string(h.Value), 10, 64); err == nil {
				return time.UnixMilli(ms)
			}
		}
	}
	return time.Time{}
}

// wait waits for d, or the end of ctx.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// unlessDone is err, or nil if the loop ended because it had done everything.
func unlessDone(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errDone) {
		return nil
	}
	return err
}

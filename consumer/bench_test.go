package consumer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// BenchmarkRecord is the way of one record of a tier through the engine without
// Kafka: read, admitted, called, decided, its outputs made and settled. What a
// benchmark against a broker adds to it is the client's and the broker's.
func BenchmarkRecord(b *testing.B) {
	const batchSize = 4000
	c, p := benchmarked(b)
	now := time.Now()
	fetched := make([]*kgo.Record, batchSize)
	for i := range fetched {
		fetched[i] = tierRecord(i, now)
	}
	l := c.lanes[0]
	b.ReportAllocs()
	b.ResetTimer()
	offset := int64(0)
	for done := 0; done < b.N; {
		n := min(batchSize, b.N-done)
		for _, r := range fetched[:n] {
			r.Offset = offset
			offset++
			e, bad := c.parse(p, r, now)
			c.mu.Lock()
			c.arrive(p, arrival{offset: r.Offset, entry: e, bad: bad}, now)
			next := c.next(now)
			c.mu.Unlock()
			for next != nil {
				next = c.handle(next)
			}
		}
		s := &share{p: p, done: p.done}
		offsets := make([]int64, len(s.done))
		for i, e := range s.done {
			offsets[i] = e.offset
		}
		plan, fit, err := p.tr.Plan(offsets, 1, 0, p.tr.Committed().Seq, p.limit)
		if err != nil || fit != n {
			b.Fatalf("%d of %d results fit: %v", fit, n, err)
		}
		s.plan = plan
		tx := &batch{parts: []*share{s}, began: now}
		if outs := c.outputs(tx, &l.room); len(outs) != 2*n {
			b.Fatalf("%d outputs of %d results", len(outs), n)
		}
		p.done = nil
		l.room.empty()
		l.commitDone(tx)
		done += n
	}
}

func benchmarked(b *testing.B) (*Consumer, *partition) {
	b.Helper()
	pol, err := policy.New(policy.Options{Rules: []policy.Rule{{Name: "default", Target: "t", Attempts: 5, Delays: []time.Duration{time.Second, 10 * time.Second}, MaxAge: time.Hour}}})
	if err != nil {
		b.Fatal(err)
	}
	mux := remedy.NewMux()
	mux.HandleFunc("t", func(context.Context, *deadletter.Record) deadletter.Outcome {
		return deadletter.Outcome{Class: deadletter.InProgress, Cause: "in_progress"}
	})
	c, err := New(Options{
		Group: "g", ClusterID: "c", Sources: []string{"recon.dlq"}, RetryPrefix: "recon.dlq.retry.", Poison: "recon.dlq.poison", Audit: "recon.dlq.audit", AuditPartitions: 6,
		Policy: pol, Mux: mux, Targets: []Target{{Name: "t", Timeout: time.Second}}, MaxInflightBytes: 1 << 30,
	})
	if err != nil {
		b.Fatal(err)
	}
	c.callCtx = b.Context()
	c.timer = time.AfterFunc(time.Hour, c.onTimer)
	b.Cleanup(func() { c.timer.Stop() })
	p := newPartition(tp{"recon.dlq.retry.1s", 0}, "m", c.lanes[0], progress.DefaultLimit)
	p.kind, p.delay, p.topicID = deadletter.Tier, time.Second, [16]byte{1}
	p.tr = progress.NewTracker(progress.Progress{})
	c.parts[p.tp] = p
	return c, p
}

// tierRecord is a record of 1 KB as the client hands it out.
func tierRecord(i int, now time.Time) *kgo.Record {
	due := now.Add(-time.Minute).UnixMilli()
	r := deadletter.Record{
		ID: fmt.Sprintf("%032x", i), Origin: fmt.Sprintf("recon.dlq/0/%d", i), Attempt: 1,
		Timestamp: due, Enqueued: due, FirstFailed: due, NotBefore: due, ErrorClass: "http_500",
	}
	var headers []kgo.RecordHeader
	for _, h := range r.Headers() {
		headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	value := fmt.Appendf(nil, `{"discrepancy_id":"d-%d","category":"amount_differs","context":{%s"n":1},"enqueued_ms":%d}`,
		i, strings.Repeat(`"reference":"ledger 12345",`, 34), due)
	return &kgo.Record{Key: fmt.Appendf(nil, "k%d", i), Value: value, Headers: headers, Timestamp: now.Add(-time.Minute)}
}

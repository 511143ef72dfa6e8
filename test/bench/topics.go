package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

const (
	partitions = 6
	valueSize  = 1024

	hop  = time.Second      // the tier that is read
	next = 10 * time.Minute // the tier that is written: nothing of it is due within a run
)

// names are the topics and the group of one run.
type names struct {
	Prefix string
	Group  string
	Delays []time.Duration // the tiers
}

func (n names) source() string              { return n.Prefix + ".dlq" }
func (n names) retry() string               { return n.Prefix + ".dlq.retry." }
func (n names) tier(d time.Duration) string { return n.retry() + policy.FormatDelay(d) }
func (n names) poison() string              { return n.Prefix + ".dlq.poison" }
func (n names) audit() string               { return n.Prefix + ".dlq.audit" }

func (n names) outputs() []string {
	topics := []string{n.poison(), n.audit()}
	for _, d := range n.Delays {
		topics = append(topics, n.tier(d))
	}
	return topics
}

// create makes the topics of a run; the source has so many partitions.
func (b *bench) create(ctx context.Context, delays []time.Duration, sourcePartitions int32) (names, error) {
	b.runs++
	n := names{Prefix: fmt.Sprintf("b%d", b.runs), Delays: delays}
	n.Group = n.Prefix
	made, err := b.adm.CreateTopics(ctx, partitions, -1, b.configs(), n.outputs()...)
	if err == nil {
		err = made.Error()
	}
	if err == nil {
		made, err = b.adm.CreateTopics(ctx, sourcePartitions, -1, b.configs(), n.source())
	}
	if err == nil {
		err = made.Error()
	}
	if err == nil {
		err = b.known(ctx, append(n.outputs(), n.source())...)
	}
	if err != nil {
		return n, fmt.Errorf("create topics: %w", err)
	}
	return n, nil
}

// known waits until every broker knows the leaders of the topics: a client that
// is told otherwise asks again after seconds, and would be measured waiting.
func (b *bench) known(ctx context.Context, topics ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, knownBound, fmt.Errorf("brokers do not know new topics after %s", knownBound))
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	for _, broker := range b.cl.DiscoveredBrokers() {
		for {
			resp, err := req.RequestWith(ctx, broker)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil && led(resp) {
				break
			}
			wait(ctx, 20*time.Millisecond)
		}
	}
	return nil
}

const knownBound = time.Minute

func led(resp *kmsg.MetadataResponse) bool {
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return false
		}
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 || p.Leader < 0 {
				return false
			}
		}
	}
	return true
}

func (b *bench) configs() map[string]*string {
	return map[string]*string{"max.message.bytes": kadm.StringPtr(strconv.Itoa(1<<20 + deadletter.MaxOverhead)), "retention.ms": kadm.StringPtr("-1")}
}

// remove deletes what a run has left, and keeps account of the disk. After an
// interrupt the cluster goes with all it has.
func (b *bench) remove(ctx context.Context, n names) {
	if ctx.Err() != nil {
		return
	}
	topics := append(n.outputs(), n.source())
	if dirs, err := b.adm.DescribeAllLogDirs(ctx, nil); err == nil {
		var held int64
		own := map[string]bool{}
		for _, t := range topics {
			own[t] = true
		}
		dirs.Each(func(d kadm.DescribedLogDir) {
			held += d.Size()
			d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
				if own[p.Topic] {
					b.run.Written += p.Size
				}
			})
		})
		b.run.Held = max(b.run.Held, held)
	}
	if _, err := b.adm.DeleteTopics(ctx, topics...); err != nil {
		b.log.Printf("delete the topics of %s: %v", n.Prefix, err)
	}
}

// fill writes records to a topic, in turn to all its partitions. Those of a tier
// carry the worker's headers and are not due before due.
func (b *bench) fill(ctx context.Context, n names, records int, topic string, over int32, due time.Time) error {
	cl, err := kgo.NewClient(append(b.kafka.Opts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var once sync.Once
	var failed error
	tier := topic != n.source()
	now := time.Now()
	for i := range records {
		if ctx.Err() != nil {
			break
		}
		r := &kgo.Record{Topic: topic, Partition: int32(i) % over, Key: fmt.Appendf(nil, "k%d", i), Value: value(i, now)}
		if tier {
			r.Headers = headers(n, i, now, due)
		}
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	if err := errors.Join(cl.Flush(ctx), ctx.Err(), failed); err != nil {
		return fmt.Errorf("fill %s: %w", topic, err)
	}
	return nil
}

// longAgo is a not-before that has passed.
func longAgo() time.Time { return time.Now().Add(-time.Minute) }

// headers are those of a copy that the worker has sent to a tier after one
// failure. Of a record that has been answered "in progress" often the next such
// answer sends the copy to the longest tier.
func headers(n names, i int, now, due time.Time) []kgo.RecordHeader {
	then := now.Add(-time.Minute).UnixMilli()
	r := deadletter.Record{
		ID: fmt.Sprintf("%032x", i), Origin: fmt.Sprintf("%s/%d/%d", n.source(), i%partitions, i/partitions), Attempt: 1, Snoozes: 6,
		Timestamp: then, Enqueued: then, FirstFailed: then, NotBefore: due.UnixMilli(), ErrorClass: "http_500",
	}
	var hs []kgo.RecordHeader
	for _, h := range r.Headers() {
		hs = append(hs, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return hs
}

// Words that discrepancies are made of, so that values compress as text does.
var (
	currencies = []string{"EUR", "USD", "GBP", "CHF", "SEK", "PLN"}
	systems    = []string{"ledger", "card-processor", "bank-statement", "settlement", "invoicing", "treasury"}
	words      = []string{
		"payment", "refund", "invoice", "order", "transfer", "reversal", "fee", "charge", "credit", "standing", "customer", "monthly",
		"delivery", "subscription", "partial", "correction", "deposit", "interest", "booking", "terminal", "chargeback", "batch", "merchant", "account",
	}
)

// value is discrepancy number i: JSON of valueSize bytes or a few more, the same
// for the same number, with text, numbers and identifiers as such records have.
func value(i int, now time.Time) []byte {
	rnd := rand.New(rand.NewPCG(uint64(i), 1))
	side := func(b []byte, name string) []byte {
		return fmt.Appendf(b, `%q:{"system":%q,"id":"%08x-%012x","amount_minor":%d,"currency":%q,"booked":"2026-%02d-%02dT%02d:%02d:%02dZ"}`,
			name, systems[rnd.IntN(len(systems))], rnd.Uint32(), rnd.Uint64()>>16, rnd.IntN(5_000_000), currencies[rnd.IntN(len(currencies))],
			1+rnd.IntN(12), 1+rnd.IntN(28), rnd.IntN(24), rnd.IntN(60), rnd.IntN(60))
	}
	b := make([]byte, 0, valueSize+64)
	b = fmt.Appendf(b, `{"discrepancy_id":"d-%d","category":"amount_differs","enqueued_ms":%d,"context":{`, i, now.UnixMilli())
	b = side(b, "source")
	b = append(b, ',')
	b = side(b, "target")
	b = append(b, `,"text":"`...)
	const tail = `"}}`
	for len(b) < valueSize-len(tail) {
		b = append(b, words[rnd.IntN(len(words))]...)
		if rnd.IntN(6) == 0 {
			b = fmt.Appendf(b, " %d", rnd.IntN(100_000))
		}
		b = append(b, ' ')
	}
	return append(b, tail...)
}

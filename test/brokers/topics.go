package brokers

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/stable"
)

// DefaultDelays are the tiers that Topics makes: short, so that a test sees a whole life.
var DefaultDelays = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}

// Names are one test's own topics and group.
type Names struct {
	Prefix string // of all the names below, with no separator at its end
	Source string
	Retry  string // prefix of the tiers: a duration follows
	Hold   string // prefix of the hold topics: a target's name follows
	Poison string
	Audit  string
	State  string
	Group  string // a consumer group for the worker; not made

	Delays []time.Duration // the tiers that exist
}

// Tier is the name of the tier with a delay.
func (n Names) Tier(delay time.Duration) string { return n.Retry + policy.FormatDelay(delay) }

// Tiers are the names of all tiers.
func (n Names) Tiers() []string {
	tiers := make([]string, len(n.Delays))
	for i, delay := range n.Delays {
		tiers[i] = n.Tier(delay)
	}
	return tiers
}

// All are all topics that exist: source, tiers, poison, audit and state.
func (n Names) All() []string {
	return append([]string{n.Source, n.Poison, n.Audit, n.State}, n.Tiers()...)
}

// NewNames makes names that no other test has, and no topic. Delays nil is DefaultDelays.
func NewNames(delays []time.Duration) Names {
	if delays == nil {
		delays = DefaultDelays
	}
	return NamesOf("t"+strings.ToLower(rand.Text()[:10]), delays)
}

// NamesOf are the names that another process has made with NewNames.
func NamesOf(p string, delays []time.Duration) Names {
	return Names{
		Prefix: p,
		Source: p + ".dlq", Retry: p + ".dlq.retry.", Hold: p + ".dlq.hold.",
		Poison: p + ".dlq.poison", Audit: p + ".dlq.audit", State: p + ".dlq.state",
		Group: p, Delays: delays,
	}
}

// Topics makes a source topic with its tiers, poison, audit and state topics, all
// but state with so many partitions, and configured as the worker wants them:
// audit LogAppendTime, state compacted on one partition. Configs are for the
// source, tiers and poison; no tier has retention unless they say so, and tiers and
// poison take what the source takes and the worker's headers. Delays nil
// is DefaultDelays.
func Topics(tb testing.TB, b Broker, partitions int32, delays []time.Duration, configs map[string]string) Names {
	tb.Helper()
	names := NewNames(delays)
	data := map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": strconv.Itoa(kafka.DefaultMaxMessageBytes)}
	maps.Copy(data, configs)
	Create(tb, b, partitions, data, names.Source)
	if configs["max.message.bytes"] == "" {
		data["max.message.bytes"] = strconv.Itoa(kafka.DefaultMaxMessageBytes + deadletter.MaxOverhead)
	}
	Create(tb, b, partitions, data, append([]string{names.Poison}, names.Tiers()...)...)
	Create(tb, b, partitions, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}, names.Audit)
	Create(tb, b, 1, map[string]string{"cleanup.policy": "compact"}, names.State)
	return names
}

// Create makes topics with the broker's replication and waits until they have leaders.
func Create(tb testing.TB, b Broker, partitions int32, configs map[string]string, topics ...string) {
	tb.Helper()
	cl := Client(tb, AdminOpts(b)...)
	adm := kadm.NewClient(cl)
	pointers := make(map[string]*string, len(configs))
	for key, value := range configs {
		pointers[key] = &value
	}
	made, err := adm.CreateTopics(tb.Context(), partitions, -1, pointers, topics...)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		tb.Fatalf("create topics %v: %v", topics, err)
	}
	// A topic exists a moment before all of its partitions have leaders.
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	for {
		meta, err := adm.Metadata(ctx, topics...)
		if err == nil && led(meta, topics, partitions) {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("topics %v have no leaders: %v", topics, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func led(meta kadm.Metadata, topics []string, partitions int32) bool {
	for _, topic := range topics {
		detail := meta.Topics[topic]
		if detail.Err != nil || len(detail.Partitions) != int(partitions) {
			return false
		}
		for _, p := range detail.Partitions {
			if p.Err != nil || p.Leader < 0 {
				return false
			}
		}
	}
	return true
}

// AdminOpts connect a client that may do everything: the super user's options
// of a broker with an authorizer, else Opts.
func AdminOpts(b Broker) []kgo.Opt {
	if admin, ok := b.(interface{ AdminOpts() []kgo.Opt }); ok {
		return admin.AdminOpts()
	}
	return b.Opts()
}

// Client makes a client that is closed at the end of the test.
func Client(tb testing.TB, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)...)
	if err != nil {
		tb.Fatalf("make a client: %v", err)
	}
	tb.Cleanup(cl.Close)
	return cl
}

// Produce writes records as they are, each to the partition of its key.
func Produce(tb testing.TB, b Broker, records ...*kgo.Record) {
	tb.Helper()
	produce(tb, b, records)
}

// ProduceTo writes records as they are, each to the partition it names.
func ProduceTo(tb testing.TB, b Broker, records ...*kgo.Record) {
	tb.Helper()
	produce(tb, b, records, kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

func produce(tb testing.TB, b Broker, records []*kgo.Record, opts ...kgo.Opt) {
	tb.Helper()
	cl := Client(tb, append(append(AdminOpts(b), kgo.ProducerLinger(0)), opts...)...)
	if err := cl.ProduceSync(tb.Context(), records...).FirstErr(); err != nil {
		tb.Fatalf("produce %d records: %v", len(records), err)
	}
}

// ReadAll returns every record of the topics that a read-committed consumer sees
// now, by topic, partition and offset. It does not wait for open transactions.
func ReadAll(ctx context.Context, b Broker, topics ...string) ([]*kgo.Record, error) {
	cl, err := kgo.NewClient(append(AdminOpts(b), kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	defer cl.Close()
	bounds, err := stable.List(ctx, cl, topics...)
	if err != nil {
		return nil, err
	}
	var records []*kgo.Record
	if err := stable.Read(ctx, cl, bounds, func(r *kgo.Record) { records = append(records, r) }); err != nil {
		return nil, err
	}
	slices.SortFunc(records, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records, nil
}

package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// readTimeout bounds the reading of one record.
const readTimeout = 10 * time.Second

// ErrNoRecord is wrapped by ReadAt's errors that say why there is no record at a place.
var ErrNoRecord = errors.New("no record")

// ReadAtOpts are what a client for ReadAt needs beside those of Conn.
func ReadAtOpts(p deadletter.Place) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.Partition: kgo.NewOffset().At(p.Offset)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// The markers of transactions tell that a record before them was aborted.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(500 * time.Millisecond),
	}
}

// ReadAt reads the committed record at p, and the cluster's id, with a client
// made of ReadAtOpts. It takes at most 10 s. Errors: *MissingError, *RightError, the
// network's, and ErrNoRecord with the reason: deleted, aborted, not yet there.
func ReadAt(ctx context.Context, cl *kgo.Client, p deadletter.Place) (m deadletter.Message, clusterID string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errors.New("the brokers did not answer in time: look at their health"))
	defer cancel()
	c := cluster{topics: make(map[string]topicState)}
	if err := c.metadata(ctx, cl, named([]string{p.Topic}), func(string) bool { return true }); err != nil {
		return m, "", err
	}
	t := c.topics[p.Topic]
	switch {
	case t.err != nil:
		return m, "", Explain(t.err, Need(ResourceTopic, p.Topic, Read))
	case !allowed(t.ops, Read):
		return m, "", Need(ResourceTopic, p.Topic, Read)
	case int(p.Partition) >= len(t.partitions):
		return m, "", fmt.Errorf("%s: %w: the topic has %d partitions, from 0", p, ErrNoRecord, len(t.partitions))
	}
	p.TopicID = t.id
	if err := within(ctx, kadm.NewClient(cl), p); err != nil {
		return m, "", err
	}
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return m, "", fmt.Errorf("read %s: %w", p, err)
		}
		for r := range fetches.RecordsAll() {
			if r.Offset > p.Offset || r.Attrs.IsControl() {
				return m, "", fmt.Errorf("%s: %w: what was written there was aborted, compacted away, or is the marker of a transaction", p, ErrNoRecord)
			}
			return message(r, p), c.id, nil
		}
	}
}

// within says why p lies outside of what can be read.
func within(ctx context.Context, adm *kadm.Client, p deadletter.Place) error {
	bound := func(list func(context.Context, ...string) (kadm.ListedOffsets, error)) (int64, error) {
		offsets, err := list(ctx, p.Topic)
		if err == nil {
			o, _ := offsets.Lookup(p.Topic, p.Partition)
			return o.Offset, o.Err
		}
		return 0, err
	}
	start, err := bound(adm.ListStartOffsets)
	if err != nil {
		return fmt.Errorf("read where %s begins: %w", p.Topic, err)
	}
	stable, err := bound(adm.ListCommittedOffsets)
	if err != nil {
		return fmt.Errorf("read where %s ends: %w", p.Topic, err)
	}
	switch {
	case p.Offset < start:
		return fmt.Errorf("%s: %w: it is gone, the partition begins at %d", p, ErrNoRecord, start)
	case p.Offset >= stable:
		return fmt.Errorf("%s: %w: what is committed ends before %d", p, ErrNoRecord, stable)
	}
	return nil
}

func message(r *kgo.Record, p deadletter.Place) deadletter.Message {
	m := deadletter.Message{Place: p, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, deadletter.Header{Key: h.Key, Value: h.Value})
	}
	return m
}

// KindOf says what a topic is to the worker, and a tier's delay; false: it holds no records of it.
func (l Layout) KindOf(topic string) (kind deadletter.Kind, delay time.Duration, ok bool) {
	for _, s := range l.Sources {
		if s == topic {
			return deadletter.Source, 0, true
		}
	}
	if d, ok := l.tierDelay(topic); ok {
		return deadletter.Tier, d, true
	}
	switch {
	case topic == l.Poison:
		return deadletter.Poison, 0, true
	case l.HoldPrefix != "" && len(topic) > len(l.HoldPrefix) && topic[:len(l.HoldPrefix)] == l.HoldPrefix:
		return deadletter.Hold, 0, true
	}
	return 0, 0, false
}

// Package stable reads topics as a read-committed consumer sees them: whole, up
// to the last stable offset, and no further. It issues its own Fetch requests,
// because a consumer does not tell how far it has come: after an aborted
// transaction or a marker there is no record to see, and a reader that waits
// for one hangs.
package stable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	retryAfter     = 50 * time.Millisecond
	fetchWaitMs    = 100
	fetchBytes     = 16 << 20
	partitionBytes = 4 << 20
)

// Bound is what a read-committed consumer can see of a partition: the offsets
// from Start (the log's start) up to, not including, End (its last stable offset).
type Bound struct{ Start, End int64 }

// Bounds holds a bound for each partition of each topic.
type Bounds map[string]map[int32]Bound

// End returns the last stable offset of a partition, 0 for one that is not known.
func (b Bounds) End(topic string, partition int32) int64 { return b[topic][partition].End }

// Start returns the log start of a partition, 0 for one that is not known.
func (b Bounds) Start(topic string, partition int32) int64 { return b[topic][partition].Start }

// List asks for the bounds of all partitions of the topics. A topic that does
// not exist is an error.
func List(ctx context.Context, cl *kgo.Client, topics ...string) (Bounds, error) {
	bounds := make(Bounds)
	if len(topics) == 0 {
		return bounds, nil // to kadm no topics are all topics
	}
	adm := kadm.NewClient(cl)
	ends, err := list(ctx, adm.ListCommittedOffsets, topics)
	if err != nil {
		return nil, fmt.Errorf("list last stable offsets: %w", err)
	}
	starts, err := list(ctx, adm.ListStartOffsets, topics)
	if err != nil {
		return nil, fmt.Errorf("list log starts: %w", err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		if bounds[o.Topic] == nil {
			bounds[o.Topic] = make(map[int32]Bound)
		}
		start, _ := starts.Lookup(o.Topic, o.Partition)
		bounds[o.Topic][o.Partition] = Bound{Start: start.Offset, End: o.Offset}
	})
	return bounds, nil
}

// Wait returns once every transaction that is open now on one of the topics has
// ended, that is, once each last stable offset has reached the present high
// watermark. What is written later does not matter. It returns the error of ctx
// with the name of a partition that is still blocked.
func Wait(ctx context.Context, cl *kgo.Client, topics ...string) error {
	if len(topics) == 0 {
		return nil
	}
	adm := kadm.NewClient(cl)
	marks, err := list(ctx, adm.ListEndOffsets, topics)
	if err != nil {
		return fmt.Errorf("list high watermarks: %w", err)
	}
	for {
		ends, err := list(ctx, adm.ListCommittedOffsets, topics)
		if err != nil {
			return fmt.Errorf("list last stable offsets: %w", err)
		}
		var blocked *kadm.ListedOffset
		marks.Each(func(mark kadm.ListedOffset) {
			end, _ := ends.Lookup(mark.Topic, mark.Partition)
			if end.Offset < mark.Offset && blocked == nil {
				blocked = &mark
			}
		})
		if blocked == nil {
			return nil
		}
		if err := sleep(ctx); err != nil {
			return fmt.Errorf("an open transaction hides records of %s/%d below offset %d: %w",
				blocked.Topic, blocked.Partition, blocked.Offset, err)
		}
	}
}

// Read calls fn for every record between the bounds, the records of a partition
// in the order of their offsets. Control records and aborted records are left
// out. It fails if retention removes what it is about to read.
func Read(ctx context.Context, cl *kgo.Client, bounds Bounds, fn func(*kgo.Record)) error {
	r := reader{cl: cl, fn: fn, decompressor: kgo.DefaultDecompressor(), todo: make(map[tp]*position)}
	for topic, partitions := range bounds {
		for partition, b := range partitions {
			if b.Start < b.End {
				r.todo[tp{topic, partition}] = &position{next: b.Start, end: b.End}
			}
		}
	}
	for len(r.todo) > 0 {
		progressed, err := r.round(ctx)
		if err != nil {
			return err
		}
		if !progressed {
			if err := sleep(ctx); err != nil {
				return fmt.Errorf("read %d partitions to their last stable offsets: %w", len(r.todo), errors.Join(err, r.last))
			}
		}
	}
	return nil
}

// list retries what a broker that is just electing leaders answers.
func list(ctx context.Context, ask func(context.Context, ...string) (kadm.ListedOffsets, error), topics []string) (kadm.ListedOffsets, error) {
	for {
		offsets, err := ask(ctx, topics...)
		if err == nil {
			err = offsets.Error()
		}
		if err == nil {
			return offsets, nil
		}
		// A topic can be unknown for a moment after it was created, so that is
		// retried by the caller's client, not here.
		if !kerr.IsRetriable(err) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil, err
		}
		if ctxErr := sleep(ctx); ctxErr != nil {
			return nil, errors.Join(ctxErr, err)
		}
	}
}

func sleep(ctx context.Context) error {
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

type tp struct {
	topic     string
	partition int32
}

type position struct{ next, end int64 }

type reader struct {
	cl           *kgo.Client
	fn           func(*kgo.Record)
	decompressor kgo.Decompressor
	todo         map[tp]*position
	last         error // the last retriable error, for the message when ctx ends
}

// leader is what one broker leads of what is still to be read.
type leader struct {
	broker int32
	req    *kmsg.FetchRequest
	topics map[[16]byte]string
}

// round asks every leader once, all at the same time, and says whether a
// position moved.
func (r *reader) round(ctx context.Context) (bool, error) {
	leaders, err := r.leaders(ctx)
	if err != nil {
		return false, err
	}
	resps := make([]*kmsg.FetchResponse, len(leaders))
	errs := make([]error, len(leaders))
	var wg sync.WaitGroup
	for i, l := range leaders {
		wg.Go(func() { resps[i], errs[i] = fetch(ctx, r.cl, l) })
	}
	wg.Wait()

	progressed := false
	for i, l := range leaders {
		if errs[i] != nil { // the broker is away or no longer the leader: ask again
			r.last = errs[i]
			continue
		}
		for _, t := range resps[i].Topics {
			topic := t.Topic
			if topic == "" {
				topic = l.topics[t.TopicID]
			}
			for _, p := range t.Partitions {
				moved, err := r.take(topic, &p)
				if err != nil {
					return false, err
				}
				progressed = progressed || moved
			}
		}
	}
	return progressed, nil
}

func fetch(ctx context.Context, cl *kgo.Client, l *leader) (*kmsg.FetchResponse, error) {
	resp, err := cl.Broker(int(l.broker)).RetriableRequest(ctx, l.req)
	if err != nil {
		return nil, err
	}
	fetched := resp.(*kmsg.FetchResponse)
	return fetched, kerr.ErrorForCode(fetched.ErrorCode)
}

func (r *reader) take(topic string, p *kmsg.FetchResponseTopicPartition) (bool, error) {
	at := r.todo[tp{topic, p.Partition}]
	if at == nil {
		return false, nil
	}
	fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset:         at.next,
		IsolationLevel: kgo.ReadCommitted(),
		Topic:          topic,
		Partition:      p.Partition,
	}, p, r.decompressor, nil)
	if err := fetched.Err; err != nil {
		if kerr.IsRetriable(err) && !errors.Is(err, kerr.OffsetOutOfRange) {
			r.last = err
			return false, nil
		}
		return false, fmt.Errorf("fetch %s/%d at offset %d: %w", topic, p.Partition, at.next, err)
	}
	for _, rec := range fetched.Records {
		if rec.Offset < at.end {
			r.fn(rec)
		}
	}
	moved := next > at.next
	at.next = next
	if next >= at.end {
		delete(r.todo, tp{topic, p.Partition})
	}
	return moved, nil
}

func (r *reader) leaders(ctx context.Context) ([]*leader, error) {
	topics := make([]string, 0, len(r.todo))
	for at := range r.todo {
		topics = append(topics, at.topic)
	}
	slices.Sort(topics)
	meta, err := kadm.NewClient(r.cl).Metadata(ctx, slices.Compact(topics)...)
	if err != nil {
		return nil, fmt.Errorf("find the leaders: %w", err)
	}
	byBroker := make(map[int32]*leader)
	for _, detail := range meta.Topics.Sorted() {
		if detail.Err != nil && !kerr.IsRetriable(detail.Err) {
			return nil, fmt.Errorf("find the leaders of %s: %w", detail.Topic, detail.Err)
		}
		perBroker := make(map[int32]*kmsg.FetchRequestTopic)
		for _, p := range detail.Partitions.Sorted() {
			at := r.todo[tp{detail.Topic, p.Partition}]
			if at == nil || p.Leader < 0 {
				continue
			}
			t := perBroker[p.Leader]
			if t == nil {
				t = &kmsg.FetchRequestTopic{Topic: detail.Topic, TopicID: detail.ID}
				perBroker[p.Leader] = t
			}
			fp := kmsg.NewFetchRequestTopicPartition()
			fp.Partition = p.Partition
			fp.FetchOffset = at.next
			fp.PartitionMaxBytes = partitionBytes
			t.Partitions = append(t.Partitions, fp)
		}
		for broker, t := range perBroker {
			l := byBroker[broker]
			if l == nil {
				req := kmsg.NewPtrFetchRequest()
				req.MaxWaitMillis = fetchWaitMs
				req.MinBytes = 1
				req.MaxBytes = fetchBytes
				req.IsolationLevel = 1
				l = &leader{broker: broker, req: req, topics: make(map[[16]byte]string)}
				byBroker[broker] = l
			}
			l.req.Topics = append(l.req.Topics, *t)
			l.topics[detail.ID] = detail.Topic
		}
	}
	leaders := make([]*leader, 0, len(byBroker))
	for _, l := range byBroker {
		leaders = append(leaders, l)
	}
	return leaders, nil
}

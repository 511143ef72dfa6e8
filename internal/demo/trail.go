package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
)

// readTrail reads the audit topic, read-committed, from its start to what its
// end is now.
func readTrail(ctx context.Context, opts []kgo.Opt, topic string) ([]audit.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(append(opts,
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.KeepControlRecords(), // a partition ends with a transaction's marker
	)...)
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	ends := make(map[int32]int64) // of partitions that are not read to their end
	listed.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			ends[o.Partition] = o.Offset
		}
	})
	var trail []audit.Event
	for len(ends) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read the audit trail: %w", err)
		}
		var fault error
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := ends[r.Partition]; ok && r.Offset+1 >= end {
				delete(ends, r.Partition)
			}
			if r.Attrs.IsControl() || fault != nil {
				return
			}
			e, err := audit.Parse(r.Value)
			if err != nil {
				fault = fmt.Errorf("read the audit trail: %s: %w", origin(r.Topic, r.Partition, r.Offset), err)
				return
			}
			trail = append(trail, e)
		})
		if fault != nil {
			return nil, fault
		}
	}
	return trail, nil
}

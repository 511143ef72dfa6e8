package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
)

// trail follows the audit topic as a read-committed reader sees it. It says when
// all is done; whether that was done right, the invariants say.
type trail struct {
	mu        sync.Mutex
	ended     map[string]struct{} // recon-ids of records that have come to their end
	escalated map[string]struct{} // recon-ids of records that people were told of
	events    int
	effects   int       // events that are effects: all but enqueued and escalated
	last      time.Time // when the last effects became visible
	stall     stall     // the longest, from the first effect on
}

// stall is a time without a new effect.
type stall struct {
	from time.Time
	took time.Duration
}

// standing is a trail at one moment.
type standing struct {
	events, effects, ended, escalated int
	stall                             stall
}

func newTrail() *trail {
	return &trail{ended: map[string]struct{}{}, escalated: map[string]struct{}{}}
}

func (t *trail) standing() standing {
	t.mu.Lock()
	defer t.mu.Unlock()
	return standing{events: t.events, effects: t.effects, ended: len(t.ended), escalated: len(t.escalated), stall: t.stall}
}

// follow reads until ctx ends. The audit topic must exist.
func (t *trail) follow(ctx context.Context, opts []kgo.Opt) error {
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(auditTopic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(250*time.Millisecond))...)
	if err != nil {
		return fmt.Errorf("make a reader of the trail: %w", err)
	}
	defer cl.Close()
	for {
		fetches := cl.PollRecords(ctx, 10_000)
		if ctx.Err() != nil {
			return nil
		}
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.Canceled) {
				return fmt.Errorf("read the trail: %w", e.Err)
			}
		}
		now := time.Now()
		var failed error
		t.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			e, err := audit.Parse(r.Value)
			if err != nil {
				failed = fmt.Errorf("read the trail at %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)
				return
			}
			t.take(e, now)
		})
		t.mu.Unlock()
		if failed != nil {
			return failed
		}
	}
}

// take notes an event that became visible at now. Called under mu.
func (t *trail) take(e audit.Event, now time.Time) {
	t.events++
	switch e.Type {
	case audit.Enqueued:
		return
	case audit.Escalated:
		t.escalated[e.RecordID] = struct{}{}
		return
	case audit.Resolved, audit.Poisoned, audit.Expired:
		t.ended[e.RecordID] = struct{}{}
	case audit.RetryScheduled, audit.Retiered:
	}
	t.effects++
	if took := now.Sub(t.last); !t.last.IsZero() && took > t.stall.took {
		t.stall = stall{from: t.last, took: took}
	}
	t.last = now
}

package consumer

import (
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// Snapshot is the state of the engine at one moment, for metrics, health and views.
type Snapshot struct {
	Assigned      bool // it has had an assignment, maybe an empty one
	Depth         map[string]int64
	OldestAge     map[string]time.Duration // by due, waiting, held
	Inflight      map[string]int           // records by due, calling, stuck, waiting, held, uncommitted, oversized
	InflightBytes int64
	Partitions    []PartitionSnapshot
	Targets       []TargetSnapshot
	ClockSkew     *time.Duration // nil: not known
}

// PartitionSnapshot is one partition of a Snapshot.
type PartitionSnapshot struct {
	Topic       string
	Partition   int32
	State       string // active, paused, loading, refused, leaving
	Holes       int64
	Lag         int64 // source topics: last stable minus committed offset; -1: not known
	Unstable    int64 // high watermark minus last stable offset; -1: not known
	UnstableFor time.Duration
}

// TargetSnapshot is one target of a Snapshot.
type TargetSnapshot struct {
	Name    string
	Breaker policy.BreakerState
	Running int
	Stuck   int
	Queued  int
}

// Snapshot computes the state. It is made when asked for, so that what it says is exact.
func (c *Consumer) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	s := Snapshot{
		Assigned:      c.isAssigned(),
		Depth:         map[string]int64{},
		OldestAge:     map[string]time.Duration{"due": 0, "waiting": 0, "held": 0},
		Inflight:      map[string]int{"due": 0, "calling": 0, "stuck": 0, "waiting": 0, "held": 0, "uncommitted": 0, "oversized": 0},
		InflightBytes: c.held,
		ClockSkew:     c.skew,
	}
	for _, t := range c.order {
		s.Targets = append(s.Targets, TargetSnapshot{Name: t.Name, Breaker: t.breaker.State(now), Running: t.running, Stuck: t.stuck, Queued: t.queue.len()})
	}
	for _, p := range c.parts {
		ps := PartitionSnapshot{Topic: p.topic, Partition: p.partition, State: p.stateName(), Lag: -1, Unstable: -1}
		if p.tr == nil || p.refused {
			s.Partitions = append(s.Partitions, ps)
			continue
		}
		ps.Holes = p.tr.Holes()
		depth := ps.Holes
		if p.lastStable >= 0 {
			depth += max(0, p.lastStable-max(p.tr.Next(), p.tr.Committed().Top))
			ps.Unstable = p.highWatermark - p.lastStable
			if !p.unstableSince.IsZero() {
				ps.UnstableFor = now.Sub(p.unstableSince)
			}
			if p.kind == deadletter.Source {
				ps.Lag = max(0, p.lastStable-p.tr.Committed().Low)
			}
		}
		s.Depth[p.topic] += depth
		s.Partitions = append(s.Partitions, ps)
		for e := p.head; e != nil; e = e.next {
			in, age := e.where(now)
			s.Inflight[in]++
			if age != "" {
				s.OldestAge[age] = max(s.OldestAge[age], now.Sub(time.UnixMilli(e.rec.Enqueued)))
			}
		}
	}
	return s
}

// where says in which state an entry is counted, and in which its age. A result
// that is not committed yet is unresolved still, and counts as due.
func (e *entry) where(now time.Time) (in, age string) {
	switch e.state {
	case waiting:
		return "waiting", "waiting"
	case ready:
		if e.target.breaker.State(now) != policy.BreakerClosed || e.target.stuck >= maxStuck {
			return "held", "held"
		}
		return "due", "due"
	case calling:
		return "calling", "due"
	case stuck:
		return "stuck", "due"
	case done, taken:
		if e.rec.Enqueued == 0 {
			return "uncommitted", ""
		}
		return "uncommitted", "due"
	case blocked:
		return "oversized", "held"
	}
	return "due", "due"
}

func (p *partition) stateName() string {
	switch {
	case p.refused:
		return "refused"
	case p.tr == nil:
		return "loading"
	case p.leaving:
		return "leaving"
	case p.paused:
		return "paused"
	}
	return "active"
}

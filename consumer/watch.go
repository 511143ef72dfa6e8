package consumer

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// How often what is looked at.
const (
	stuckEvery = 250 * time.Millisecond
	endsEvery  = 2 * time.Second // end offsets, for depth and lag
	startEvery = time.Minute     // log starts, against records that expire unseen
	skewEvery  = 10 * time.Second
)

// watch looks after what no record brings to light, until ctx ends.
func (c *Consumer) watch(ctx context.Context, cl *kgo.Client) {
	ticker := time.NewTicker(stuckEvery)
	defer ticker.Stop()
	var ends, starts, skews time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := c.now()
		c.mu.Lock()
		c.unstick(now)
		topics := map[string][]int32{}
		for _, p := range c.parts {
			if p.tr != nil && !p.dropped {
				topics[p.topic] = append(topics[p.topic], p.partition)
			}
		}
		c.mu.Unlock()
		if len(topics) == 0 {
			continue
		}
		if now.Sub(ends) >= endsEvery {
			ends = now
			c.watchEnds(ctx, cl, topics)
		}
		if now.Sub(starts) >= startEvery {
			starts = now
			c.watchStarts(ctx, cl, topics)
		}
		if now.Sub(skews) >= skewEvery && c.watchSkew(ctx, cl) {
			skews = now
		}
	}
}

// watchEnds reads end offsets: a paused or idle partition is told none by fetching.
func (c *Consumer) watchEnds(ctx context.Context, cl *kgo.Client, topics map[string][]int32) {
	ctx, cancel := context.WithTimeout(ctx, endsEvery)
	defer cancel()
	// Of what cannot be read the gauges keep what was known; the next round asks again.
	stable, _ := listOffsets(ctx, cl, topics, latest, committed)
	high, _ := listOffsets(ctx, cl, topics, latest, uncommitted)
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, s := range stable {
		if p := c.parts[k]; p != nil && !p.dropped {
			c.watermarks(p, max(high[k].offset, s.offset), s.offset, now)
		}
	}
}

// watermarks takes note of a partition's end offsets.
func (c *Consumer) watermarks(p *partition, high, stable int64, now time.Time) {
	if stable < 0 {
		stable = high
	}
	if high == stable {
		p.unstableSince = time.Time{}
	} else if p.unstableSince.IsZero() || stable != p.lastStable {
		p.unstableSince = now
	}
	p.highWatermark, p.lastStable = high, stable
}

// watchStarts looks for held records that the log has lost, by retention or by
// an operator's hand: they cannot be fetched again, and that must be told. What
// is in memory is still worked on; what is only a hole is expired.
func (c *Consumer) watchStarts(ctx context.Context, cl *kgo.Client, topics map[string][]int32) {
	ctx, cancel := context.WithTimeout(ctx, endsEvery)
	defer cancel()
	starts, _ := listOffsets(ctx, cl, topics, earliest, committed)
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, start := range starts {
		if p := c.parts[k]; p != nil && !p.dropped && p.tr != nil {
			p.logStart = max(p.logStart, start.offset)
			c.expire(p, now)
			c.adjust(p)
		}
	}
}

// acked is the audit events of one partition that were acknowledged last.
type acked struct {
	lane        *lane
	partition   int32
	first, last int64 // offsets
	at          time.Time
	ended       time.Time // when their transaction was; its marker is the record behind them
}

// noteAcked remembers where and when the broker acknowledged the last audit event.
func (l *lane) noteAcked(outs []output) {
	c := l.c
	last := outs[len(outs)-1].record // every batch ends with an event
	a := acked{lane: l, partition: last.Partition, first: last.Offset, last: last.Offset, at: c.now()}
	for i := range outs {
		if r := &outs[i].record; r.Topic == c.o.Audit && r.Partition == a.partition {
			a.first, a.last = min(a.first, r.Offset), max(a.last, r.Offset)
		}
	}
	c.mu.Lock()
	c.acked = a
	c.mu.Unlock()
}

// noteEnded remembers when the broker acknowledged the end of their transaction.
func (l *lane) noteEnded() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked.lane == l {
		c.acked.ended = c.now()
	}
}

// watchSkew compares the clocks: the audit topic is LogAppendTime, so the
// newest timestamp in it is the broker's time of our own last event or of the
// marker behind it, unless somebody else has written since. It reports whether
// that could be told.
func (c *Consumer) watchSkew(ctx context.Context, cl *kgo.Client) bool {
	c.mu.Lock()
	a := c.acked
	c.acked = acked{}
	c.mu.Unlock()
	if a.lane == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, endsEvery)
	defer cancel()
	k := tp{c.o.Audit, a.partition}
	offsets, err := listOffsets(ctx, cl, map[string][]int32{k.topic: {k.partition}}, latestTimestamp, uncommitted)
	newest, ok := offsets[k]
	if err != nil || !ok {
		return false
	}
	at := a.at
	switch {
	case a.first <= newest.offset && newest.offset <= a.last:
	case newest.offset == a.last+1 && !a.ended.IsZero():
		at = a.ended
	default:
		return false
	}
	skew := newest.at.Sub(at)
	c.mu.Lock()
	c.skew = &skew
	c.mu.Unlock()
	return true
}

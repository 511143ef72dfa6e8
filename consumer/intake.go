package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
)

// pollMax bounds the records taken in at a time, and so how long a rebalance
// waits for a poll. With a window before it is full, progress still fits the
// commit metadata: 24,000 offsets always do.
const pollMax = 24_000 - window

// poll takes records in until ctx ends. An error is what the worker cannot survive.
func (c *Consumer) poll(ctx context.Context, cl *kgo.Client) error {
	for {
		c.awaitRoom()
		fetches := cl.PollRecords(ctx, c.pollSize())
		if ctx.Err() != nil || fetches.IsClientClosed() {
			cl.AllowRebalance()
			return nil
		}
		err := c.fetchErrors(ctx, fetches)
		if err == nil {
			c.take(fetches)
		}
		c.inflate.Polled(cl)
		cl.AllowRebalance()
		if err != nil {
			return err
		}
	}
}

// Fetch errors can come as fast as the client polls: they are told and tried
// again in measure.
const (
	fetchErrorLog  = 10 * time.Second
	fetchErrorRest = 100 * time.Millisecond
)

// roomWait is how long a poll waits for room at most: what is held by a target
// that is down or slow does not go away by itself, and others must be read.
const roomWait = 50 * time.Millisecond

// awaitRoom lets results be committed before more is read, while most of the
// memory is in use. Pausing would do it, too, but throws away what is fetched,
// and a resumed partition waits for the long poll that is out.
func (c *Consumer) awaitRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := func() bool { return c.closing || c.held < c.o.MaxInflightBytes*3/8 }
	if !room() {
		c.waitUntil(roomWait, room)
	}
}

// pollSize is how many records to take in at a time. kgo hands out whole
// fetches, and a compressed batch can grow a hundredfold: so little is taken
// while memory is short, and what is left of a partition that is full then is
// dropped and fetched again. It goes by the size of the records before; a guess
// that is wrong costs a fetch at most.
func (c *Consumer) pollSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := max(c.o.MaxInflightBytes/2-c.held, c.share()/4)
	return int(min(max(room/c.typical, 1), pollMax))
}

// fetchErrors counts what went wrong and returns what the worker cannot survive.
func (c *Consumer) fetchErrors(ctx context.Context, fetches kgo.Fetches) error {
	var fatal error
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		if errors.Is(err, context.Canceled) || errors.Is(err, kafka.ErrInflated) {
			return
		}
		c.m.fetchErrors.Inc()
		if errors.Is(err, kerr.UnknownTopicID) { // the client never takes to the new topic of that name
			c.mu.Lock()
			c.regroup(errTopicGone)
			c.mu.Unlock()
		}
		if itself, why := c.fencedByItself(err), c.explainGroup(topic, err); why != nil && !itself {
			fatal = why
			return
		}
		failed = true
		if now := c.now(); now.Sub(c.fetchErrorAt) >= fetchErrorLog {
			c.fetchErrorAt = now
			c.log.Warn("fetching failed and is tried again", "topic", topic, "partition", partition, "error", err)
		}
	})
	if failed && fatal == nil && fetches.NumRecords() == 0 {
		sleep(ctx, fetchErrorRest) //nolint:errcheck // the loop looks at ctx
	}
	return fatal
}

// maxFences is how often a worker that joins is fenced before that is believed.
const maxFences = 3

// fencedByItself takes note of a group's error, and reports whether it is this
// worker's own past that fences it while it joins: its join was answered twice
// and the second one replaced the first, or a coordinator that took over knows
// its predecessor only. It joins anew then, a few times. A worker that is in the group is
// fenced by somebody else.
func (c *Consumer) fencedByItself(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, kerr.UnknownMemberID):
		c.present = false
	case errors.Is(err, kerr.FencedInstanceID) && !c.present && c.fences < maxFences:
		c.fences++
		c.regroup(errFencedJoining)
		return true
	}
	return false
}

// explainGroup returns the error that ends the worker if err, of a topic or of
// the group as a whole, cannot heal by itself.
func (c *Consumer) explainGroup(topic string, err error) error {
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		return c.fenced(err)
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("no right to READ group %q; grant it and start again: %w", c.o.Group, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("no right to READ topic %q; grant it and start again: %w", topic, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return fmt.Errorf("group %q is used by consumers of another kind; give kafka.group a name of its own: %w", c.o.Group, err)
	}
	return nil
}

func (c *Consumer) fenced(err error) error {
	if c.o.Instance == "" {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return fmt.Errorf("%w: kafka.instance %q is in use by another worker of group %q; every worker needs its own: %w", ErrFenced, c.o.Instance, c.o.Group, err)
}

// arrival is one fetched record, parsed before the lock is taken.
type arrival struct {
	offset  int64
	control bool
	entry   *entry
	bad     *deadletter.MalformedError
}

// take turns fetched records into entries. It runs between a poll and
// AllowRebalance, so partitions neither come nor go.
func (c *Consumer) take(fetches kgo.Fetches) {
	now := c.now()
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		c.mu.Lock()
		p := c.parts[tp{f.Topic, f.Partition}]
		ok := p != nil && p.active()
		c.mu.Unlock()
		if !ok {
			return
		}
		arrivals := make([]arrival, 0, len(f.Records))
		for _, r := range f.Records {
			a := arrival{offset: r.Offset, control: r.Attrs.IsControl()}
			if !a.control {
				a.entry, a.bad = c.parse(p, r, now)
			}
			arrivals = append(arrivals, a)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !p.active() {
			return
		}
		if f.HighWatermark >= 0 {
			c.watermarks(p, f.HighWatermark, f.LastStableOffset, now)
		}
		p.logStart = max(p.logStart, f.LogStartOffset)
		c.expire(p, now)
		if p.expiring() && len(arrivals) > 0 {
			c.regroup(errLogGone) // what was fetched lies behind what is to be told first
			return
		}
		if len(arrivals) > 0 && arrivals[0].offset < p.tr.Next() && f.HighWatermark >= 0 && f.HighWatermark < p.tr.Next() {
			c.regroup(errLogShrank)
			return
		}
		for _, a := range arrivals {
			c.arrive(p, a, now)
		}
		c.adjust(p)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dispatch(now)
	c.kickAll()
}

// parse makes an entry of a fetched record. It copies the bytes: the fetched
// ones share a buffer with their whole batch, which one held record would keep.
func (c *Consumer) parse(p *partition, r *kgo.Record, now time.Time) (*entry, *deadletter.MalformedError) {
	m := deadletter.Message{
		Place:     deadletter.Place{Topic: p.topic, TopicID: p.topicID, Partition: p.partition, Offset: r.Offset},
		Timestamp: r.Timestamp.UnixMilli(),
	}
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Value)
	}
	buf := make([]byte, 0, n)
	own := func(b []byte) []byte {
		if b == nil {
			return nil // null is not empty
		}
		buf = append(buf, b...)
		return buf[len(buf)-len(b) : len(buf) : len(buf)]
	}
	m.Key, m.Value = own(r.Key), own(r.Value)
	m.Headers = c.headers[:0]
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, deadletter.Header{Key: h.Key, Value: own(h.Value)})
	}
	c.headers = m.Headers
	e := &entry{p: p, offset: r.Offset, appended: m.Timestamp, index: -1, slot: -1}
	rec, err := deadletter.Read(m, deadletter.ReadOptions{
		Kind: p.kind, Delay: p.delay, MaxWait: c.o.Policy.MaxWait(), Now: now, ClusterID: c.o.ClusterID,
	})
	bad := malformed(err)
	e.rec = rec
	c.o.Policy.Prepare(&e.rec)
	e.rec.Foreign = append([]deadletter.Header(nil), rec.Foreign...) // else they are c.headers
	e.size = int64(rec.Size()) + entryOverhead
	if bad == nil && p.kind == deadletter.Source {
		if start := c.o.Policy.Start(&e.rec); start != e.rec.Attempt {
			e.rec.Attempt = start
			e.rec.Notes = append(e.rec.Notes, deadletter.NoteAttemptsClamped)
		}
	}
	e.target = c.targets[c.o.Policy.Rule(&e.rec).Target]
	return e, bad
}

// malformed is what is wrong with a record that cannot be read; nil: nothing.
func malformed(err error) *deadletter.MalformedError {
	if err == nil {
		return nil
	}
	bad := &deadletter.MalformedError{}
	errors.As(err, &bad)
	return bad
}

// entryOverhead is about what an entry weighs beside its record's bytes.
const entryOverhead = 512

// arrive takes one record in: passed over if progress says that it is done.
func (c *Consumer) arrive(p *partition, a arrival, now time.Time) {
	if a.control {
		c.gone(p, p.tr.Pass(a.offset), now)
		return
	}
	todo, gone := p.tr.Read(a.offset)
	c.gone(p, gone, now)
	if !todo {
		return
	}
	e := a.entry
	c.admit(p, e)
	for _, n := range e.rec.Notes {
		c.m.repaired.WithLabelValues(n).Inc()
	}
	if a.bad != nil {
		c.finish(e, policy.Decision{Action: policy.ToPoison, Reason: deadletter.ReasonMalformed},
			deadletter.Outcome{Class: deadletter.Permanent, Cause: deadletter.ReasonMalformed, Message: a.bad.Error()}, now)
		return
	}
	c.route(e, now)
}

// admit makes e one of p's entries.
func (c *Consumer) admit(p *partition, e *entry) {
	p.add(e)
	c.held += e.size
	if c.typical < e.size {
		c.typical = e.size
	} else {
		c.typical -= (c.typical - e.size) / 16
	}
	if p.kind == deadletter.Source && e.offset >= p.tr.Committed().Seen {
		p.unseen = append(p.unseen, e)
	}
}

// expire tells of what is gone below the log's start, as far as the window has
// room; committing makes room for the rest.
func (c *Consumer) expire(p *partition, now time.Time) {
	if p.expiring() && p.count < window {
		n := max(1, (c.share()-p.bytes)/entryOverhead)
		c.gone(p, p.tr.Expire(p.logStart, min(n, int64(window-p.count))), now)
	}
}

// expiring reports whether there is more to tell of what is gone below the log's start.
func (p *partition) expiring() bool { return p.tr != nil && p.tr.Next() < p.logStart }

// gone gives offsets that were known to be incomplete and are no longer in the
// log the only effect that is left: it is told that they expired.
func (c *Consumer) gone(p *partition, ranges []progress.Range, now time.Time) {
	if len(ranges) == 0 {
		return
	}
	c.log.Error("records expired before they were done", "topic", p.topic, "partition", p.partition,
		"from", ranges[0].From, "to", ranges[len(ranges)-1].To, "ranges", len(ranges))
	for _, g := range ranges {
		for o := g.From; o < g.To; o++ {
			place := deadletter.Place{Topic: p.topic, TopicID: p.topicID, Partition: p.partition, Offset: o}
			e := &entry{p: p, offset: o, index: -1, slot: -1, size: entryOverhead, expired: true}
			e.rec = deadletter.Record{ID: deadletter.Identity(c.o.ClusterID, place), Origin: place.String(), Kind: p.kind, Input: place}
			p.add(e)
			c.held += e.size
			e.state, e.decided = done, now
			p.done = append(p.done, e)
		}
	}
	p.lane.kick()
}

// takeUp is when a tier's record is looked at: at the earlier of its not-before
// and append + the tier's delay.
func (e *entry) takeUp() time.Time {
	return time.UnixMilli(min(e.rec.NotBefore, e.appended+e.p.delay.Milliseconds())).UTC()
}

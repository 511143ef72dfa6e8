package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// lane is one transactional producer and the partitions whose results it
// commits. Its loop is the only one that produces and commits for them.
type lane struct {
	c   *Consumer
	id  string        // transactional id: group.instance.lane
	pr  *producer     // of the loop, after open
	hot chan struct{} // there is work
	now bool          // guarded by Consumer.mu: do not wait for the interval

	fences  []time.Time   // when it was fenced lately
	backoff time.Duration // after the last failure
	told    time.Time     // when a failure was last logged
	untold  int           // failures since
	most    int           // characters of progress in one transaction
	room    outbox        // of the loop

	refusals map[string]*refusal // topics that take no copies at present; guarded by Consumer.mu
}

func newLane(c *Consumer, n int) *lane {
	return &lane{c: c, id: fmt.Sprintf("%s.%s.%d", c.o.Group, c.instance(), n), hot: make(chan struct{}, 1), refusals: map[string]*refusal{}, most: maxMetadata}
}

// kick tells the loop that there is something to commit.
func (l *lane) kick() {
	select {
	case l.hot <- struct{}{}:
	default:
	}
}

// kickAll kicks the lanes for enqueued events of what was just read.
func (c *Consumer) kickAll() {
	for _, l := range c.lanes {
		l.kick()
	}
}

// flush makes the next transaction begin at once. Called under Consumer.mu.
func (l *lane) flush() {
	l.now = true
	l.kick()
}

// idleEvery is how often progress that only passed control records is committed.
const idleEvery = time.Second

// run makes transactions until ctx ends, which is after everything is drained,
// or the worker cannot go on.
func (l *lane) run(ctx context.Context) {
	defer l.close()
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.hot:
			l.c.mu.Lock()
			now := l.now
			l.now = false
			l.c.mu.Unlock()
			if wait := l.c.o.Interval - time.Since(last); wait > 0 && !now {
				if l.rest(ctx, wait) != nil {
					return
				}
			}
			last = time.Now()
			b, more := l.collect()
			if b == nil {
				continue
			}
			if err := l.commit(ctx, b); err != nil {
				if !l.failed(ctx, b, err, time.Since(last)) {
					return
				}
				l.kick()
				continue
			}
			l.backoff = 0
			l.most = min(l.most+l.c.o.MetadataLimit, maxMetadata)
			if more {
				l.flushSoon()
			}
		case <-idle.C:
			l.commitIdle(ctx)
			l.kick() // what could not be collected while the group was changing
		}
	}
}

func (l *lane) flushSoon() {
	l.c.mu.Lock()
	l.flush()
	l.c.mu.Unlock()
}

// rest waits for d, or until flush is called, or ctx ends.
func (l *lane) rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return nil
		case <-l.hot:
			l.c.mu.Lock()
			now := l.now
			l.now = false
			l.c.mu.Unlock()
			if now {
				return nil
			}
		}
	}
}

// batch is what one transaction commits.
type batch struct {
	nonce      uint64
	member     string
	generation int32
	parts      []*share
	began      time.Time
	alone      bool // one result
	big        bool // one record larger than an ordinary batch: a producer with a raised cap
}

// share is one partition's part of a batch.
type share struct {
	p      *partition
	plan   progress.Plan
	done   []*entry // results, in offset order
	unseen []*entry // enqueued events, in offset order
}

// collect takes finished results of the lane's partitions, in offset order,
// while the progress fits its metadata. It reports whether some were left.
// Nothing is taken while a partition is held under another member id than the
// group's current one: the broker checks the generation, never who owns a partition.
func (l *lane) collect() (b *batch, more bool) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cl == nil {
		return nil, false
	}
	b = &batch{nonce: randomNonce(), began: c.now()}
	b.member, b.generation = c.cl.GroupMetadata()
	if b.member == "" || b.generation < 0 {
		return nil, false // between two memberships; the next poll or tick asks again
	}
	room, bytes, metadata := maxBatch, int64(0), 0
	for _, p := range c.parts {
		if p.member != b.member {
			c.regroup(errMemberChanged)
			return nil, false
		}
		if p.lane != l || p.tr == nil || p.refused || p.dropped || len(p.done)+len(p.unseen) == 0 {
			continue
		}
		if room <= 0 || bytes >= maxBatchBytes || metadata+p.limit > l.most {
			more = true
			continue
		}
		s := &share{p: p}
		s.unseen = p.unseen[:min(len(p.unseen), room)]
		room -= len(s.unseen)
		seen := p.tr.Committed().Seen
		if n := len(s.unseen); n > 0 {
			seen = s.unseen[n-1].offset + 1
		}
		ready := l.ready(p, b.began)
		single, big := false, false
		offsets := make([]int64, 0, min(ready, max(room, 0)))
		for _, e := range p.done[:ready] {
			if len(offsets) >= room || bytes >= maxBatchBytes || p.kind == deadletter.Source && !e.expired && e.offset >= seen {
				break
			}
			alone := l.alone(e)
			if alone && (len(b.parts) > 0 || len(offsets) > 0) {
				break // in a later transaction
			}
			offsets = append(offsets, e.offset)
			bytes += e.size
			if alone {
				single, big, more = true, c.tooBig(e), true
				break
			}
		}
		if len(offsets) < ready {
			more = true
		}
		plan, n, err := p.tr.Plan(offsets, nonceOf(b.nonce, p.topicID), seen, p.tr.Committed().Seq+int64(len(s.unseen)), p.limit)
		if err != nil {
			c.m.progressRefused.Inc()
			continue // nothing fits until other results come: wait, do not spin
		}
		c.m.progressDeferred.Add(float64(len(offsets) - n))
		if n+len(s.unseen) == 0 {
			continue
		}
		s.plan, s.done, s.unseen = plan, slices.Clone(p.done[:n]), slices.Clone(s.unseen)
		for _, e := range s.done {
			e.state = taken
		}
		room -= n
		metadata += len(plan.Metadata)
		p.done = slices.Delete(p.done, 0, n)
		p.unseen = slices.Delete(p.unseen, 0, len(s.unseen))
		p.open = true
		b.parts = append(b.parts, s)
		if single && n == len(offsets) {
			b.alone, b.big = true, big
			break
		}
	}
	if len(b.parts) == 0 {
		return nil, false
	}
	return b, more
}

// ready brings p's results into offset order, those last whose topic takes no
// copies at present, and returns the number of the others.
func (l *lane) ready(p *partition, now time.Time) int {
	slices.SortFunc(p.done, func(a, b *entry) int { return cmp.Compare(a.offset, b.offset) })
	if len(l.refusals) == 0 {
		return len(p.done)
	}
	var refused []*entry
	kept := p.done[:0]
	for _, e := range p.done {
		if l.refuses(e, now) {
			refused = append(refused, e)
		} else {
			kept = append(kept, e)
		}
	}
	p.done = append(kept, refused...)
	return len(kept)
}

// restore gives a batch back: nothing of it happened. Results that are failures
// of a target thought down by now are held instead, uncounted.
func (l *lane) restore(b *batch) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, s := range b.parts {
		s.p.open = false
		if s.p.dropped {
			continue
		}
		s.p.unseen = append(s.unseen, s.p.unseen...)
		for _, e := range s.done {
			e.state = done
		}
		s.p.done = append(s.done, s.p.done...)
	}
	for _, t := range c.order {
		if st := t.breaker.State(now); st == policy.BreakerOpen || st == policy.BreakerProbing {
			c.takeBack(t)
		}
	}
	c.dispatch(now)
	c.changed.Broadcast()
}

// commitDone takes note that a batch is committed: its records are over.
func (l *lane) commitDone(b *batch) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l.accepted(b)
	for _, s := range b.parts {
		p := s.p
		p.open = false
		for _, e := range s.done {
			c.m.settled(e)
		}
		c.m.enqueued.Add(float64(len(s.unseen)))
		if p.dropped {
			continue
		}
		p.tr.Commit(s.plan)
		for _, e := range s.done {
			p.remove(e)
			c.held -= e.size
		}
		c.expire(p, c.now())
	}
	c.adjustAll()
	c.changed.Broadcast()
}

// failed decides how to go on after the transaction of b did not commit; its
// results have been given back. A commit under a member id that this worker has
// no more is refused as if another one had its name. took is how long it lasted: a producer whose
// transaction times out is fenced by the broker, not by somebody else. It reports whether the lane goes on.
func (l *lane) failed(ctx context.Context, b *batch, err error, took time.Duration) bool {
	c := l.c
	if errors.Is(err, kerr.UnknownTopicID) {
		l.close() // a topic was made anew, and a client never takes to the new one of that name
	}
	var too *tooLargeError
	var refused *refusedError
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, kerr.FencedInstanceID) && c.isMember(b.member):
		c.fail(c.fenced(err))
		return false
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		c.fail(fmt.Errorf("no right to WRITE transactional id %q; grant it for the prefix %q and start again: %w", l.id, c.o.Group+".", err))
		return false
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		c.fail(fmt.Errorf("no right to READ group %q; grant it and start again: %w", c.o.Group, err))
		return false
	case errors.As(err, &refused):
		l.refuse(refused)
		return true
	case errors.As(err, &too):
		l.block(too)
		return true
	case fencedProducer(err) && (c.replaced(ctx) || c.o.Instance != "" && took < transactionTimeout && l.fencedAgain(c.now())):
		c.fail(c.fenced(err))
		return false
	}
	if errors.Is(err, kerr.UnknownServerError) {
		// Brokers say so, too, when a commit is too large as a whole.
		l.most = max(l.most/2, c.o.MetadataLimit)
	}
	if l.untold++; c.now().Sub(l.told) >= refusalLog {
		c.log.Warn("transactions failed and are done again", "lane", l.id, "times", l.untold, "error", err)
		l.told, l.untold = c.now(), 0
	}
	l.backoff = min(max(2*l.backoff, 100*time.Millisecond), time.Second)
	return l.rest(ctx, l.backoff) == nil
}

// fencedProducer reports whether err says that another producer has this lane's id.
func fencedProducer(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidProducerIDMapping)
}

// fencedAgain counts fencings and reports three in a minute: two workers that
// share a name would fence each other for ever.
func (l *lane) fencedAgain(now time.Time) bool {
	l.fences = append(l.fences, now)
	l.fences = slices.DeleteFunc(l.fences, func(t time.Time) bool { return now.Sub(t) > time.Minute })
	return len(l.fences) >= 3
}

// block sets a result aside whose copy the broker does not take. It stays an
// open hole, on a metric: a record is never cut to fit, nor given a key. Of several that were
// refused together, as the broker refuses whole batches, each is tried alone.
func (l *lane) block(err *tooLargeError) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(err.entries) > 1 {
		for _, e := range err.entries {
			e.suspect = true
		}
		return
	}
	e := err.entries[0]
	if e.p.dropped {
		return
	}
	c.changed.Broadcast() // a drain does not wait for it
	if i := slices.Index(e.p.done, e); i >= 0 {
		topic := c.copyTopic(e)
		e.p.done = slices.Delete(e.p.done, i, i+1)
		e.state = blocked
		c.m.oversized.Inc()
		log := c.log.With("record", e.rec.ID, "origin", e.rec.Origin, "topic", topic, "error", err)
		if errors.Is(err, kerr.InvalidRecord) {
			log.Error("a copy is invalid for its topic; the record stays open until the topic is mended (a compacted one takes nothing without a key) and the worker restarted")
		} else {
			log.Error("a copy does not fit its topic; the record stays open until max.message.bytes is raised and the worker restarted", "max_message_bytes", c.limitOf(topic))
		}
	}
}

// commitIdle commits progress that passed nothing but control and aborted
// records, so that offset lag reaches zero. It needs no transaction, because it
// has no effect beside it; it is made only while the lane has none open.
func (l *lane) commitIdle(ctx context.Context) {
	c := l.c
	c.mu.Lock()
	b := &batch{nonce: randomNonce()}
	if c.cl != nil {
		b.member, b.generation = c.cl.GroupMetadata()
	}
	for _, p := range c.parts {
		if b.member == "" || b.generation < 0 || p.lane != l || p.tr == nil || p.refused || p.dropped || p.member != b.member ||
			len(p.done)+len(p.unseen) > 0 || !p.tr.Stale() || len(b.parts) >= 100 {
			continue
		}
		have := p.tr.Committed()
		plan, _, err := p.tr.Plan(nil, nonceOf(b.nonce, p.topicID), max(have.Seen, p.tr.Next()), have.Seq, p.limit)
		if err != nil {
			continue
		}
		p.open = true
		b.parts = append(b.parts, &share{p: p, plan: plan})
	}
	c.mu.Unlock()
	if len(b.parts) == 0 {
		return
	}
	if err := l.plainCommit(ctx, b); err != nil {
		l.restore(b)
		if now := c.now(); ctx.Err() == nil && !errors.Is(err, kerr.RebalanceInProgress) && now.Sub(l.told) >= refusalLog {
			c.log.Warn("committing idle progress failed and is done again", "lane", l.id, "error", err)
			l.told = now
		}
		return
	}
	l.commitDone(b)
}

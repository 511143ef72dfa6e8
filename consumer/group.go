package consumer

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
)

// Reasons to drop everything and join the group anew.
var (
	// A cooperative member that gets another member id is not told what it lost meanwhile.
	errMemberChanged = errors.New("the group gave this worker another member id")
	// A client that is fenced does not join again by itself.
	errFencedJoining = errors.New("the group knows this worker's name under another member id than the one it has just given it")
	// What is held of a topic that was deleted, maybe created again, can never be committed.
	errTopicGone = errors.New("a topic was deleted or created again")
	// More expired at once than can be told before what follows it is read.
	errLogGone = errors.New("a partition's log start has moved beyond the window")
	// What follows would be taken for what was read before.
	errLogShrank = errors.New("a partition's log has become shorter than what was read of it")
)

// rejoinAfter keeps a reason that does not go away from being acted on in a tight loop.
const rejoinAfter = time.Second

// tierPattern matches the names of tiers, configured ones and those that once
// were: what is still in them is drained. Anchored, because kgo does not
// anchor: nobody else's topic is swallowed. The units are those of
// policy.ParseDelay: a name that it cannot read has no delay to wait for.
func tierPattern(prefix string) string {
	return "^" + regexp.QuoteMeta(prefix) + `([0-9]+(ms|s|m|h))+$`
}

// patterns match the topics that are worked on: sources, tiers and hold topics.
func (c *Consumer) patterns() []string {
	ps := []string{tierPattern(c.o.RetryPrefix)}
	for _, s := range c.o.Sources {
		ps = append(ps, "^"+regexp.QuoteMeta(s)+"$")
	}
	if c.o.HoldPrefix != "" {
		ps = append(ps, "^"+regexp.QuoteMeta(c.o.HoldPrefix)+`[A-Za-z0-9._-]+$`)
	}
	return ps
}

// runGroup joins the group and works until ctx ends.
func (c *Consumer) runGroup(ctx context.Context) error {
	first := true
	for {
		session, regroup := context.WithCancelCause(ctx)
		c.mu.Lock()
		c.regroup = regroup
		c.mu.Unlock()
		cl, err := c.join()
		if err != nil {
			return err
		}
		if first {
			if err := c.awaitFirstStart(ctx, cl); err != nil {
				c.leave(cl)
				return err
			}
			first = false
		}
		var watched sync.WaitGroup
		watching, endWatch := context.WithCancel(context.WithoutCancel(ctx)) // handlers can get stuck while all is drained, too
		watched.Go(func() { c.watch(watching, cl) })
		err = c.poll(session, cl)
		if ctx.Err() != nil {
			c.drainAll()
		}
		why := context.Cause(session)
		regroup(nil)
		endWatch()
		watched.Wait()
		c.leave(cl)
		if ctx.Err() != nil || err != nil {
			return err
		}
		c.m.regroups.Inc()
		c.log.Warn("everything is dropped and the group joined anew", "reason", why)
		if sleep(ctx, rejoinAfter) != nil {
			return nil
		}
	}
}

// join makes the group client. It may join, and ask for progress, before this
// has returned.
func (c *Consumer) join() (cl *kgo.Client, err error) {
	made := make(chan struct{})
	// A client that was given up may still be told of partitions.
	joined := new(int)
	c.mu.Lock()
	c.joined = joined
	c.mu.Unlock()
	fetchBytes := min(c.o.MaxInflightBytes/8, 16<<20)
	c.inflate = kafka.NewInflater(fetchBytes)
	opts := append(c.client("group"),
		kgo.ConsumerGroup(c.o.Group),
		kgo.ConsumeRegex(),
		kgo.ConsumeTopics(c.patterns()...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.FetchMaxPartitionBytes(fetchPartition),
		kgo.FetchMaxBytes(int32(fetchBytes)),
		kgo.WithDecompressor(c.inflate),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			select {
			case <-made:
				return c.load(ctx, joined, cl, offsets)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, added map[string][]int32) { c.assigned(joined, cl, added) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, cl *kgo.Client, gone map[string][]int32) { c.revoked(joined, cl, gone) }),
		kgo.OnPartitionsLost(func(_ context.Context, cl *kgo.Client, gone map[string][]int32) { c.lost(joined, cl, gone) }),
	)
	if c.o.Instance != "" {
		opts = append(opts, kgo.InstanceID(c.o.Instance))
	}
	if cl, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("group client: %w", err)
	}
	c.mu.Lock()
	c.cl = cl
	c.mu.Unlock()
	close(made)
	return cl, nil
}

// leaveBound is how long the leaving of a static member may take.
const leaveBound = 3 * time.Second

// leave leaves the group and drops what is left of the assignment.
func (c *Consumer) leave(cl *kgo.Client) {
	member, _ := cl.GroupMetadata()
	c.mu.Lock()
	c.joined = nil
	c.mu.Unlock()
	c.dropAll()
	kafka.Close(cl)
	if c.o.Instance == "" || member == "" {
		return
	}
	// Closing a static member does not leave: its partitions would wait for the
	// session timeout, unseen.
	if err := c.leaveStatic(member); err != nil {
		c.log.Warn("leaving the group failed; its partitions move after the session timeout", "error", err)
	}
}

func (c *Consumer) leaveStatic(member string) error {
	cl, err := kgo.NewClient(c.o.Client...)
	if err != nil {
		return err
	}
	defer kafka.Close(cl)
	ctx, cancel := context.WithTimeout(context.Background(), leaveBound)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = c.o.Group, member
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.InstanceID = member, &c.o.Instance
	req.Members = append(req.Members, m)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// assigned is called by the group client with partitions that come. What they
// have done already is read next, in load.
func (c *Consumer) assigned(joined *int, cl *kgo.Client, added map[string][]int32) {
	member, _ := cl.GroupMetadata()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined != joined {
		return
	}
	c.cl, c.present, c.fences = cl, true, 0
	for topic, partitions := range added {
		for _, n := range partitions {
			k := tp{topic, n}
			p := newPartition(k, member, c.lanes[int(n)%len(c.lanes)], c.o.MetadataLimit)
			p.kind, p.delay = c.kindOf(topic)
			c.parts[k] = p
		}
	}
	if !c.isAssigned() {
		close(c.assignedCh)
	}
	c.adjustAll()
	c.log.Info("partitions assigned", "partitions", countPartitions(added), "held", len(c.parts))
}

// kindOf says what a subscribed topic is.
func (c *Consumer) kindOf(topic string) (deadletter.Kind, time.Duration) {
	if slices.Contains(c.o.Sources, topic) {
		return deadletter.Source, 0
	}
	if c.o.HoldPrefix != "" && strings.HasPrefix(topic, c.o.HoldPrefix) {
		return deadletter.Hold, 0
	}
	d, err := policy.ParseDelay(strings.TrimPrefix(topic, c.o.RetryPrefix))
	if err != nil {
		d = 0 // a tier by its pattern: what is in it is due by its not-before alone
	}
	return deadletter.Tier, d
}

// load is called by the group client with the committed offsets of new
// partitions. It reads their progress, and sets where reading begins.
func (c *Consumer) load(ctx context.Context, joined *int, cl *kgo.Client, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	topics := map[string][]int32{}
	for topic, parts := range offsets {
		for n := range parts {
			topics[topic] = append(topics[topic], n)
		}
	}
	if len(topics) == 0 {
		return offsets, nil
	}
	ids, err := topicIDs(ctx, cl, topics)
	if err != nil {
		return nil, fmt.Errorf("read the ids of assigned topics: %w", err)
	}
	commits, err := c.fetchProgress(ctx, cl, topics, ids)
	if err != nil {
		return nil, fmt.Errorf("read the progress of assigned partitions: %w", err)
	}
	starts, err := listOffsets(ctx, cl, topics, earliest, committed)
	ends, _ := listOffsets(ctx, cl, topics, latest, uncommitted)
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined != joined {
		return nil, errTopicGone // the client was given up
	}
	for k, p := range c.parts {
		if _, asked := offsets[k.topic][k.partition]; !asked || p.dropped {
			continue
		}
		log, found := starts[k]
		if !found {
			// No leader: what was committed tells where to begin, and its log
			// start comes with what is fetched.
			if _, ok := commits[k]; !ok {
				return nil, fmt.Errorf("read the log starts of assigned partitions: %w", err)
			}
		}
		start := log.offset
		p.topicID = ids[k.topic]
		from := start
		if commit, ok := commits[k]; ok {
			pr, err := progress.Decode(commit.offset, commit.metadata)
			if err != nil {
				p.refused = true
				cl.PauseFetchPartitions(map[string][]int32{k.topic: {k.partition}})
				c.log.Error("the committed progress of a partition cannot be read: it is refused, so that nothing is done twice. "+
					"Stop all workers of this version, or, if it was set by hand, stop all and delete the group's offset of this partition: it is read again from its start then",
					"topic", k.topic, "partition", k.partition, "error", err)
				offsets[k.topic][k.partition] = kgo.NewOffset().At(commit.offset)
				continue
			}
			if pr.Nonce != nonceOf(pr.Nonce>>32, p.topicID) {
				c.m.rewound.Inc()
				c.log.Error("the committed progress of a partition is of another topic of this name: the topic was deleted and made anew. It is read from its start",
					"topic", k.topic, "partition", k.partition, "done_up_to", pr.Top)
				pr = progress.Fresh(start)
			} else if end, ok := ends[k]; ok && end.offset < pr.Top {
				c.m.rewound.Inc()
				c.log.Error("the log of a partition is shorter than what was done of it: records were lost by its brokers, or it was restored. "+
					"It is read from its start; what is still there of what was done is done again",
					"topic", k.topic, "partition", k.partition, "end", end.offset, "done_up_to", pr.Top)
				pr = progress.Progress{Low: start, Top: start, Seen: start, Seq: pr.Seq}
			}
			p.tr = progress.NewTracker(pr)
			from = max(pr.Low, start)
			p.logStart = start // above what was done: kgo would move on without an error
			c.expire(p, now)
			c.adjust(p)
		} else {
			p.tr = progress.NewTracker(progress.Fresh(start))
		}
		offsets[k.topic][k.partition] = kgo.NewOffset().At(from)
	}
	return offsets, nil
}

// revoked is called by the group client with partitions that go while this
// worker is a member: their handlers are waited for, bounded, their results
// are committed, and their state is dropped.
func (c *Consumer) revoked(joined *int, cl *kgo.Client, gone map[string][]int32) {
	c.mu.Lock()
	ps := c.held4(joined, gone)
	c.drain(ps)
	c.drop(ps)
	c.mu.Unlock()
	cl.ResumeFetchPartitions(gone) // a pause survives a rebalance
	c.log.Info("partitions revoked", "partitions", countPartitions(gone))
}

// lost is called by the group client with partitions that are somebody else's
// already: nothing of them may be committed.
func (c *Consumer) lost(joined *int, cl *kgo.Client, gone map[string][]int32) {
	c.mu.Lock()
	c.drop(c.held4(joined, gone))
	c.mu.Unlock()
	cl.ResumeFetchPartitions(gone)
	if n := countPartitions(gone); n > 0 {
		c.m.lost.Add(float64(n))
		c.log.Warn("partitions lost", "partitions", n)
	}
}

// held4 returns what is held of the partitions that the client of a join is told of.
func (c *Consumer) held4(joined *int, m map[string][]int32) (ps []*partition) {
	if c.joined != joined {
		return nil
	}
	for topic, partitions := range m {
		for _, n := range partitions {
			if p := c.parts[tp{topic, n}]; p != nil {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

// drainAll is drain of everything, when the worker stops.
func (c *Consumer) drainAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	ps := make([]*partition, 0, len(c.parts))
	for _, p := range c.parts {
		ps = append(ps, p)
	}
	c.drain(ps)
	c.cancelCall(errDrained)
}

// dropAll drops everything that is held.
func (c *Consumer) dropAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		c.drop([]*partition{p})
	}
}

// drain stops dispatch for ps, waits for their running handlers and then for
// their results to be committed; both waits are bounded. Stuck handlers are not
// waited for. An open transaction always is, up to the bound: its lane ends it.
// A worker that cannot go on waits for nothing: it can commit nothing.
func (c *Consumer) drain(ps []*partition) {
	for _, p := range ps {
		p.leaving = true
	}
	if !c.waitUntil(c.o.Drain, func() bool {
		return c.failed || !slices.ContainsFunc(ps, func(p *partition) bool { return p.calls > 0 })
	}) {
		c.log.Warn("handlers did not end within the drain bound; their records are done again", "bound", c.o.Drain)
	}
	for _, p := range ps {
		p.lane.flush()
	}
	if !c.waitUntil(flushBound, func() bool {
		return c.failed || !slices.ContainsFunc(ps, func(p *partition) bool { return p.open || p.tr != nil && p.lane.pending(p, c.now()) })
	}) {
		c.log.Warn("the last results could not be committed in time; their records are done again")
	}
}

// waitUntil waits for ok, asked under mu, for at most bound.
func (c *Consumer) waitUntil(bound time.Duration, ok func() bool) bool {
	late := false
	t := time.AfterFunc(bound, func() {
		c.mu.Lock()
		late = true
		c.changed.Broadcast()
		c.mu.Unlock()
	})
	defer t.Stop()
	for !ok() {
		if late {
			return false
		}
		c.changed.Wait()
	}
	return true
}

// drop forgets partitions. Calls that are still running come back to nothing.
func (c *Consumer) drop(ps []*partition) {
	for _, p := range ps {
		p.dropped = true
		for e := p.head; e != nil; e = e.next {
			if e.index >= 0 {
				heap.Remove(&c.due, e.index)
			}
		}
		c.held -= p.bytes
		delete(c.parts, p.tp)
	}
	for _, t := range c.order { // a held target's queue would keep them for long
		t.queue.forget()
	}
	c.adjustAll()
	c.changed.Broadcast()
}

func countPartitions(m map[string][]int32) (n int) {
	for _, ps := range m {
		n += len(ps)
	}
	return n
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// awaitFirstStart is checkFirstStart until the brokers let it tell: one that is
// killed is away for up to a minute. A missing right is not waited for. A trail
// without progress is looked at again for as long as a transaction may last: of
// workers that start together, one may have aborted its first transaction, which
// leaves offsets in the trail, or written events at least once, and commit soon.
func (c *Consumer) awaitFirstStart(ctx context.Context, cl *kgo.Client) error {
	backoff := 100 * time.Millisecond
	patience := c.now().Add(transactionTimeout)
	for {
		err := c.checkFirstStart(ctx, cl)
		if err == nil || errors.Is(err, ErrNoProgress) && c.now().After(patience) ||
			errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
			return err
		}
		c.log.Warn("the progress of the group cannot be read yet and is asked for again", "error", err)
		if err := sleep(ctx, backoff); err != nil {
			return err
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// checkFirstStart refuses to begin from the start when the group's progress has
// expired: everything would be handled again, with no word about it.
func (c *Consumer) checkFirstStart(ctx context.Context, cl *kgo.Client) error {
	if c.o.FirstStart {
		return nil
	}
	// Tiers and hold topics too: retention keeps what went through them.
	topics, err := partitionsLike(ctx, cl, c.patterns())
	if err != nil || len(topics) == 0 {
		return firstStart(err)
	}
	audit, err := partitionsLike(ctx, cl, []string{"^" + regexp.QuoteMeta(c.o.Audit) + "$"})
	if err != nil {
		return firstStart(err)
	}
	// The trail before the progress: a worker that is just making the group's
	// first commit shows in both, or in neither.
	events, err := c.between(ctx, cl, audit)
	if err != nil {
		return firstStart(err)
	}
	ids, err := topicIDs(ctx, cl, topics)
	if err != nil {
		return firstStart(err)
	}
	commits, err := c.fetchProgress(ctx, cl, topics, ids)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // nobody has joined it yet: no commits
		return firstStart(explainRead(err, c.o.Group))
	}
	if len(commits) > 0 || events == 0 {
		return nil
	}
	records, err := c.between(ctx, cl, topics)
	if err != nil || records == 0 {
		return firstStart(err)
	}
	return fmt.Errorf("%w: group %q has no committed progress, but topic %q shows that it has worked before (progress expires after offsets.retention.minutes with the group empty); "+
		"at most %d records would be handled again: to accept that, start once with --first-start", ErrNoProgress, c.o.Group, c.o.Audit, records)
}

// firstStart says what failed, if anything did.
func firstStart(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("look whether this is the first start: %w", err)
}

func explainRead(err error, group string) error {
	if errors.Is(err, kerr.GroupAuthorizationFailed) {
		return fmt.Errorf("no right to READ group %q: %w", group, err)
	}
	return err
}

// between counts the offsets between log start and end of topics.
func (c *Consumer) between(ctx context.Context, cl *kgo.Client, topics map[string][]int32) (n int64, err error) {
	starts, err := listOffsets(ctx, cl, topics, earliest, committed)
	if err != nil {
		return 0, err
	}
	ends, err := listOffsets(ctx, cl, topics, latest, committed)
	if err != nil {
		return 0, err
	}
	for k, end := range ends {
		n += end.offset - starts[k].offset
	}
	return n, nil
}

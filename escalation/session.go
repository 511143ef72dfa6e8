package escalation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
)

const (
	startBound    = 30 * time.Second // to reach the cluster at a session's start
	drainBound    = 15 * time.Second // to finish what is in hand when stopping: a request, then a transaction
	pollWait      = 5 * time.Second
	postponeWait  = 200 * time.Millisecond // before a transaction is tried again that the group refused for now
	postponeBound = time.Minute            // of postponing; then the session starts over

	maxUndone = 256  // records people are being told of
	maxHeld   = 8192 // the same and those that wait for one before them in their partition
)

// session is one life of the two clients: a group member that reads poison and a
// producer that writes events and offsets. It is thrown away at the first error
// that leaves its state in doubt: what is committed is the truth, and the next
// session reads it. So there is no repair of an ambiguous commit.
type session struct {
	e         *Escalator
	prod      *kgo.Client
	cons      *kgo.Client
	inflate   *kafka.Inflater // of cons
	adm       *kadm.Client
	implicit  bool  // the broker adds groups to transactions by itself (KIP-890)
	audits    int32 // partitions of the audit topic
	clusterID string

	notifying context.Context // cancelled: requests under way are given up
	stopping  context.Context // cancelled: no request is begun
	failed    context.CancelCauseFunc
	workers   sync.WaitGroup
	wake      chan struct{} // a record was finished; capacity 1

	// mu is held during transactions and rebalance callbacks, so that a
	// partition never leaves in the middle of a transaction.
	mu       lock
	dead     bool            // nothing is committed any more
	parts    map[int32]*part // nil value: refused
	member   string          // id at the last assignment
	undone   int
	held     int
	stopPoll context.CancelFunc // set while polling
	overdue  time.Time          // when postponed transactions become an error; zero: none is postponed
}

// lock is a mutex that is held across requests: waiting for it is waiting for
// the network, which a channel says and a mutex does not (to virtual time).
type lock chan struct{}

func newLock() lock    { return make(lock, 1) }
func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

// part is an assigned partition. All fields are guarded by session.mu.
type part struct {
	topicID [16]byte
	next    int64   // offset expected next; lower ones are in hand or done
	known   bool    // next is where somebody left off, not where the log may begin
	stable  int64   // last stable offset seen; -1: not known
	seq     int64   // of the last committed event
	queue   []*item // read, not committed, by offset
	cancel  context.CancelFunc
	ctx     context.Context // ends when the partition leaves
}

// item is a record in hand.
type item struct {
	place  place
	record deadletter.Record // without value, key, headers and error message
	epoch  int32
	end    int64 // offset to commit once this is done
	done   bool
}

// session runs one session until ctx ends (nil) or it fails.
func (e *Escalator) session(ctx context.Context) error {
	s := &session{e: e, mu: newLock(), parts: make(map[int32]*part), wake: make(chan struct{}, 1)}
	if err := s.open(ctx); err != nil {
		s.close()
		return err
	}

	// Stopping and failing are told apart: a stop lets requests under way finish.
	live, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	s.failed = fail
	notifying, giveUp := context.WithCancel(live)
	s.notifying = notifying
	stopping, stop := context.WithCancel(ctx)
	s.stopping = stopping

	err := s.join()
	if err == nil {
		err = s.loop(ctx, live)
	}
	if err == nil {
		s.drain(live)
	}
	stop()
	giveUp()
	s.workers.Wait()
	s.remember() // before the group is left, which drops the partitions
	s.close()
	fail(nil)
	return err
}

// open makes the producer, which ends whatever transaction a predecessor of the
// same name left open, and learns about the cluster.
func (s *session) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	if err := s.inspect(ctx); err != nil {
		return err
	}
	opts := append(slices.Clone(s.e.o.Conn),
		kgo.TransactionalID(s.e.txnID),
		kgo.TransactionTimeout(txnTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(20*time.Millisecond),
	)
	if !s.implicit {
		v := kversion.Stable()
		v.SetMaxKeyVersion(kmsg.TxnOffsetCommit.Int16(), 4)
		opts = append(opts, kgo.MaxVersions(v))
	}
	var err error
	if s.prod, err = kgo.NewClient(opts...); err != nil {
		return fmt.Errorf("make the producer: %w", err)
	}
	s.adm = kadm.NewClient(s.prod)
	if _, _, err := s.prod.ProducerID(ctx); err != nil {
		return fmt.Errorf("get a producer id for transactional id %q: %w", s.e.txnID, err)
	}
	return nil
}

// inspect asks for the topics, the cluster's id and its transaction protocol.
func (s *session) inspect(ctx context.Context) error {
	cl, err := kgo.NewClient(s.e.o.Conn...)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer cl.Close()
	meta, err := kadm.NewClient(cl).Metadata(ctx, s.e.o.Poison, s.e.o.Audit)
	if err != nil {
		return fmt.Errorf("ask the brokers for topics: %w", err)
	}
	for _, t := range []string{s.e.o.Poison, s.e.o.Audit} {
		if err := meta.Topics[t].Err; err != nil {
			return fmt.Errorf("topic %s: %w (create missing topics with: recon-dlq topics apply)", t, err)
		}
	}
	s.audits = int32(len(meta.Topics[s.e.o.Audit].Partitions))
	if s.audits == 0 {
		return fmt.Errorf("topic %s has no partitions (create missing topics with: recon-dlq topics apply)", s.e.o.Audit)
	}
	s.clusterID = s.e.o.ClusterID
	if s.clusterID == "" {
		s.clusterID = meta.Cluster
	}

	// With transaction.version 2 the broker adds partitions and groups to a
	// transaction by itself, and wants the request versions that say so.
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "recon-dlq", "1"
	resp, err := req.RequestWith(ctx, cl.Broker(int(meta.Brokers.NodeIDs()[0])))
	if err != nil {
		return fmt.Errorf("ask a broker for its versions: %w", err)
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" && f.MaxVersionLevel >= 2 {
			s.implicit = true
		}
	}
	return nil
}

// join makes the group member. Its callbacks run from then on.
func (s *session) join() error {
	o := &s.e.o
	s.inflate = kafka.NewInflater(8 << 20)
	// cons is used by the callbacks, which may run before NewClient returns.
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	s.cons, err = kgo.NewClient(append(slices.Clone(o.Conn),
		kgo.ConsumerGroup(o.Group+GroupSuffix),
		kgo.ConsumeTopics(o.Poison),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(2*time.Second),
		kgo.RebalanceTimeout(60*time.Second),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the position moves over them, so that lag reaches zero
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500*time.Millisecond),
		kgo.FetchMaxBytes(8<<20),
		kgo.WithDecompressor(s.inflate),
		kgo.FetchMaxPartitionBytes(1<<20),
		kgo.MetadataMaxAge(15*time.Second),
		kgo.OnPartitionsAssigned(func(ctx context.Context, _ *kgo.Client, m map[string][]int32) { s.assigned(ctx, m[o.Poison]) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { s.revoked(m[o.Poison]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { s.lost(m[o.Poison]) }),
	)...)
	if err != nil {
		return fmt.Errorf("make the consumer: %w", err)
	}
	return nil
}

func (s *session) close() {
	if s.cons != nil {
		kafka.Close(s.cons) // leaves the group
	}
	if s.prod != nil {
		kafka.Close(s.prod)
	}
}

// assigned reads what is committed for new partitions, before anything of them is read.
func (s *session) assigned(ctx context.Context, partitions []int32) {
	if len(partitions) == 0 {
		return
	}
	topic := s.e.o.Poison
	s.mu.Lock() // wait for join
	cons := s.cons
	s.mu.Unlock()

	committed, err := s.committed(ctx)
	if err != nil {
		s.failed(fmt.Errorf("read the committed progress of group %s: %w", s.e.o.Group+GroupSuffix, err))
		cons.PauseFetchTopics(topic)
		return
	}
	ends, err := s.adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		ends = nil // only lag wants it
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	member, _ := cons.GroupMetadata()
	if len(s.parts) > 0 && member != s.member {
		s.failed(errMember)
		return
	}
	s.member = member
	for _, p := range partitions {
		pt := &part{stable: -1}
		if c, ok := committed.Lookup(topic, p); ok && c.At >= 0 {
			seq, err := parseProgress(c.Metadata)
			if err != nil {
				// Starting at 1 again would give two events one seq.
				s.e.metrics.refused.Inc()
				s.e.o.Logger.Error("committed progress cannot be read, this partition is not escalated: commit its offset again with the metadata that the error names",
					"group", s.e.o.Group+GroupSuffix, "topic", topic, "partition", p, "offset", c.At, "error", err)
				cons.PauseFetchPartitions(map[string][]int32{topic: {p}})
				s.parts[p] = nil
				continue
			}
			pt.next, pt.seq, pt.known = c.At, seq, true
			maps.DeleteFunc(s.e.done, func(at place, _ bool) bool { return at.partition == p && at.offset < c.At })
		}
		if end, ok := ends.Lookup(topic, p); ok && end.Err == nil {
			pt.stable = end.Offset
		}
		if !pt.known && pt.stable > 0 {
			s.e.o.Logger.Warn("no progress is committed for this partition: people are told of all that is in it, also if they were told before",
				"group", s.e.o.Group+GroupSuffix, "topic", topic, "partition", p, "end", pt.stable)
		}
		pt.ctx, pt.cancel = context.WithCancel(s.notifying)
		s.parts[p] = pt
		s.lag(p)
	}
}

// committed reads the group's stable offsets, waiting for open transactions of
// a previous owner.
func (s *session) committed(ctx context.Context) (kadm.OffsetResponses, error) {
	ctx, cancel := context.WithTimeout(kadm.RequireStable(ctx), startBound)
	defer cancel()
	for {
		resps, err := s.adm.FetchOffsets(ctx, s.e.o.Group+GroupSuffix)
		if err == nil {
			err = resps.Error()
		}
		if err == nil {
			return resps, nil
		}
		if !kerr.IsRetriable(err) || ctx.Err() != nil {
			return nil, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// revoked commits what is finished and drops the partitions. Other partitions'
// finished records are committed with them; that is as good.
func (s *session) revoked(partitions []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(partitions) > 0 && !s.dead {
		if err := s.transact(); err != nil {
			s.dead = true
			s.failed(err)
		}
	}
	s.drop(partitions)
}

// lost drops the partitions: they are another member's already.
func (s *session) lost(partitions []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(partitions)
}

// drop takes partitions out of hand. What was told and is not recorded is kept in
// Escalator.done: after an outage the same partitions often come back.
func (s *session) drop(partitions []int32) {
	if len(s.e.done) > maxHeld {
		clear(s.e.done) // of partitions that others have read
	}
	for _, p := range partitions {
		pt, ok := s.parts[p]
		if !ok {
			continue
		}
		delete(s.parts, p)
		s.e.metrics.dropLag(s.e.o.Poison, p)
		if pt == nil { // refused
			s.e.metrics.refused.Dec()
			s.cons.ResumeFetchPartitions(map[string][]int32{s.e.o.Poison: {p}}) // a pause survives a rebalance
			continue
		}
		pt.cancel()
		s.held -= len(pt.queue)
		for _, it := range pt.queue {
			if it.done {
				s.e.done[it.place] = true
			} else {
				s.undone--
			}
		}
		pt.queue = nil
	}
}

// loop reads, tells and commits until ctx ends (nil) or live does (its cause).
func (s *session) loop(ctx, live context.Context) error {
	for ctx.Err() == nil && live.Err() == nil {
		s.mu.Lock()
		var err error
		if !s.dead {
			err = s.transact()
		}
		s.dead = s.dead || err != nil
		postponed := !s.overdue.IsZero()
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if postponed {
			sleep(ctx, postponeWait)
			continue
		}
		s.poll(ctx, live)
	}
	if live.Err() != nil {
		return context.Cause(live)
	}
	return nil
}

// poll reads what there is room for, or waits until there is something to do.
func (s *session) poll(ctx, live context.Context) {
	pollCtx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	defer context.AfterFunc(live, cancel)()
	s.mu.Lock()
	room := min(maxUndone-s.undone, maxHeld-s.held)
	ready := s.ready()
	s.stopPoll = cancel
	s.mu.Unlock()
	if ready {
		return
	}
	if room <= 0 {
		select {
		case <-s.wake:
		case <-pollCtx.Done():
		}
		return
	}
	fetches := s.cons.PollRecords(pollCtx, room)
	s.take(fetches)
	s.inflate.Polled(s.cons)
	s.cons.AllowRebalance()

	var faults []error
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, kgo.ErrClientClosed) && !errors.Is(err, kafka.ErrInflated) {
			faults = append(faults, err)
		}
	})
	if slices.ContainsFunc(faults, func(err error) bool { return errors.Is(err, kerr.UnknownTopicID) }) {
		s.failed(fmt.Errorf("topic %s was deleted or made anew, and a client never takes to the new one: %w", s.e.o.Poison, kerr.UnknownTopicID))
		return
	}
	if len(faults) > 0 {
		s.e.o.Logger.Warn("poison topic cannot be read, trying again", "topic", s.e.o.Poison, "error", faults[0], "errors", len(faults))
		sleep(ctx, restartMin)
	}
}

// take puts fetched records in hand and begins to tell people.
func (s *session) take(fetches kgo.Fetches) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.e.o.Now()
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachPartition(func(fp kgo.FetchPartition) {
			pt := s.parts[fp.Partition]
			if pt == nil {
				return
			}
			pt.topicID = t.TopicID
			pt.stable = max(pt.stable, fp.LastStableOffset)
			if gone := fp.LogStartOffset - pt.next; gone > 0 {
				if pt.known { // the client goes on without an error
					s.e.metrics.expired.Add(float64(gone))
					s.e.o.Logger.Error("poison records were deleted before people were told: the topic's retention must be unlimited",
						"topic", t.Topic, "partition", fp.Partition, "from", pt.next, "to", fp.LogStartOffset)
				}
				pt.next = fp.LogStartOffset
			}
			pt.known = true
			for _, rec := range fp.Records {
				if rec.Offset >= pt.next {
					s.takeRecord(pt, rec, now)
				}
			}
			s.lag(fp.Partition)
		})
	})
}

func (s *session) takeRecord(pt *part, rec *kgo.Record, now time.Time) {
	pt.next = rec.Offset + 1
	if rec.Attrs.IsControl() {
		if n := len(pt.queue); n > 0 {
			pt.queue[n-1].end = pt.next
		}
		return
	}
	it := &item{
		place: place{topicID: pt.topicID, partition: rec.Partition, offset: rec.Offset},
		epoch: rec.LeaderEpoch,
		end:   pt.next,
	}
	it.record = s.read(rec, pt.topicID, now)
	pt.queue = append(pt.queue, it)
	s.held++

	if s.e.done[it.place] { // told in a former session
		delete(s.e.done, it.place)
		it.done = true
		return
	}
	n := newNotice(&it.record, s.e.o.Source)
	s.e.o.Logger.Warn("a discrepancy needs people", "discrepancy", n)
	s.e.metrics.escalated(resultLogged)
	if s.e.webhook == nil {
		it.done = true
		return
	}
	s.undone++
	s.workers.Go(func() { s.tell(pt.ctx, it, n) })
}

// read decodes a poison copy and keeps only what may be told. A malformed
// record is as good as any: it has its position and its identity.
func (s *session) read(rec *kgo.Record, topicID [16]byte, now time.Time) deadletter.Record {
	m := deadletter.Message{
		Place:     deadletter.Place{Topic: rec.Topic, TopicID: topicID, Partition: rec.Partition, Offset: rec.Offset},
		Timestamp: rec.Timestamp.UnixMilli(),
		Key:       rec.Key,
		Value:     rec.Value,
		Headers:   make([]deadletter.Header, len(rec.Headers)),
	}
	for i, h := range rec.Headers {
		m.Headers[i] = deadletter.Header{Key: h.Key, Value: h.Value}
	}
	r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Poison, Now: now, ClusterID: s.clusterID})
	if err != nil && r.Reason == "" {
		r.Reason = deadletter.ReasonMalformed
	}
	r.Reason, r.ErrorClass = word(r.Reason), word(r.ErrorClass)
	r.Key, r.Value, r.Foreign, r.Error, r.Notes = nil, nil, nil, "", nil
	return r
}

// tell posts a notice. A record whose partition left, or that a stop cut short,
// stays undone: whoever reads it next tells people.
func (s *session) tell(ctx context.Context, it *item, n notice) {
	begin, cancel := context.WithCancel(ctx) // ends when no further request may begin
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	err := s.e.webhook.notify(ctx, begin, n, s.e.metrics.requested)
	var failed *failedError
	switch {
	case err == nil:
		s.e.metrics.escalated(resultNotified)
	case errors.As(err, &failed):
		s.e.metrics.escalated(resultFailed)
		s.e.o.Logger.Error("nobody could be told of a discrepancy by webhook", "discrepancy", n, "error", err)
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	it.done = true
	if ctx.Err() != nil { // dropped meanwhile, and counted there
		return
	}
	s.undone--
	if s.stopPoll != nil {
		s.stopPoll()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// drain lets requests under way finish and commits what is done. Records that
// wait for their next try are left to whoever reads them next.
func (s *session) drain(live context.Context) {
	finished := make(chan struct{})
	go func() { s.workers.Wait(); close(finished) }()
	t := time.NewTimer(drainBound)
	defer t.Stop()
	select {
	case <-finished:
	case <-t.C:
	case <-live.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.dead && s.ready() {
		if err := s.transact(); err != nil || !s.overdue.IsZero() {
			s.e.o.Logger.Warn("last escalations are not recorded, people will be told again", "error", err)
			return
		}
	}
}

// remember ends the session's state; drop keeps what was told for the next.
func (s *session) remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	s.drop(slices.Collect(maps.Keys(s.parts)))
}

// lag exports how many records of p are not escalated. s.mu is held.
func (s *session) lag(p int32) {
	if pt := s.parts[p]; pt != nil && pt.stable >= 0 {
		s.e.metrics.setLag(s.e.o.Poison, p, int64(len(pt.queue))+max(0, pt.stable-pt.next))
	}
}

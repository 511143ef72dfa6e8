package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// producer is a lane's Kafka client.
type producer struct {
	cl *kgo.Client
	// implicit: a transactional commit adds the offsets topic to the transaction
	// by itself (KIP-890, transaction.version 2). Else that is asked for first.
	implicit bool
	big      bool // raised batch cap, for one large record at a time
}

// tooLargeError says that the broker does not take copies: one that was sent
// alone, or some of which at least one is too large, or invalid for its topic.
type tooLargeError struct {
	entries []*entry // at least one
	err     error
}

func (e *tooLargeError) Error() string {
	return "a copy is too large or invalid for its topic: " + e.err.Error()
}
func (e *tooLargeError) Unwrap() error { return e.err }

// errNotCommitted says that the transaction was aborted: nothing of it is visible.
var errNotCommitted = errors.New("the transaction was aborted")

// How often and how long things are tried.
const (
	commitTimeout = 8 * time.Second // of one request inside a transaction: below the transaction timeout
	maxBackoff    = 5 * time.Second
)

// open makes the lane's client and gets its producer id, which ends what a
// predecessor of the same name has left open. It tries for ever: a killed
// broker is away for up to a minute. A missing right is not waited for.
func (l *lane) open(ctx context.Context) error { return l.reopen(ctx, false) }

func (l *lane) reopen(ctx context.Context, big bool) error {
	l.close()
	backoff := 100 * time.Millisecond
	for {
		pr, err := l.dial(ctx, big)
		if err == nil {
			l.pr = pr
			return nil
		}
		if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
			return fmt.Errorf("no right to WRITE transactional id %q; grant it for the prefix %q and start again: %w", l.id, l.c.o.Group+".", err)
		}
		if errors.Is(err, kerr.ClusterAuthorizationFailed) {
			return fmt.Errorf("no right to produce idempotently; grant WRITE on the worker's topics and start again: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.c.log.Warn("the lane has no producer id yet and tries again", "lane", l.id, "error", err)
		if err := sleep(ctx, backoff); err != nil {
			return err
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func (l *lane) dial(ctx context.Context, big bool) (*producer, error) {
	c := l.c
	compression := kgo.SnappyCompression() // zstd was a third of the CPU that the engine uses
	if big {
		compression = kgo.ZstdCompression()
	}
	opts := append(c.client("lane"),
		kgo.RecordPartitioner(partitioner{audit: c.o.Audit, keyed: kgo.StickyKeyPartitioner(nil)}),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
			if big && topic != c.o.Audit {
				return bigBatch
			}
			return min(c.limitOf(topic), 1<<30) - batchOverhead
		}),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.MaxProduceRequestsInflightPerBroker(1),
		kgo.MaxBufferedRecords(4*maxBatch),
		kgo.MetadataMinAge(20*time.Millisecond),
		// One record's failure fails its transaction; the lane decides how to go on.
		kgo.RecordRetries(10),
	)
	if big {
		opts = append(opts, kgo.BrokerMaxWriteBytes(2*bigBatch)) // kgo demands no less than a batch
	}
	if !c.o.AtLeastOnce {
		opts = append(opts, kgo.TransactionalID(l.id), kgo.TransactionTimeout(transactionTimeout))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("lane client: %w", err)
	}
	pr := &producer{cl: cl, big: big}
	ctx, cancel := context.WithTimeout(ctx, 2*transactionTimeout)
	defer cancel()
	if _, _, err := cl.ProducerID(ctx); err != nil {
		pr.close()
		return nil, fmt.Errorf("producer id for %q: %w", l.id, err)
	}
	if pr.implicit, err = transactionsImplicit(ctx, cl); err != nil {
		pr.close()
		return nil, fmt.Errorf("broker versions: %w", err)
	}
	return pr, nil
}

// transactionsImplicit reports whether the cluster speaks transaction.version 2.
func transactionsImplicit(ctx context.Context, cl *kgo.Client) (bool, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "recon-dlq", "1"
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return false, err
	}
	feature := slices.ContainsFunc(resp.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool {
		return f.Name == "transaction.version" && f.MaxVersionLevel >= 2
	})
	version := slices.ContainsFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return k.ApiKey == int16(kmsg.TxnOffsetCommit) && k.MaxVersion >= 5
	})
	return feature && version, nil
}

func (p *producer) close() {
	p.cl.UnsafeAbortBufferedRecords()
	p.cl.Close()
}

func (l *lane) close() {
	if l.pr != nil {
		l.pr.close()
		l.pr = nil
	}
}

// commit makes a batch visible, all of it or nothing. A nil error says that it
// is committed; otherwise its results have been given back.
func (l *lane) commit(ctx context.Context, b *batch) error {
	began := time.Now()
	err := l.transact(ctx, b)
	l.c.m.transaction(err, time.Since(began))
	if err != nil {
		l.room = outbox{} // the client may still be sending what failed
		l.restore(b)
		return err
	}
	l.room.empty()
	l.commitDone(b)
	return nil
}

func (l *lane) transact(ctx context.Context, b *batch) error {
	if l.pr == nil || l.pr.big != b.big {
		if err := l.reopen(ctx, b.big); err != nil {
			return err
		}
	}
	records := l.c.outputs(b, &l.room)
	if l.c.o.AtLeastOnce {
		// Copies first: what the trail tells has happened.
		copies, events := split(records)
		if err := l.produce(ctx, copies); err != nil {
			return err
		}
		if err := l.produce(ctx, events); err != nil {
			return err
		}
		l.noteAcked(events)
		return l.commitWritten(ctx, b)
	}
	if err := l.pr.cl.BeginTransaction(); err != nil {
		l.close()
		return fmt.Errorf("begin: %w", err)
	}
	// Produce, flush, commit offsets, end: never two of them at once, they
	// would defeat each other at the coordinator.
	err := l.produce(ctx, records)
	if err == nil {
		l.noteAcked(records)
		err = l.commitOffsets(ctx, b)
	}
	if err != nil {
		l.abort(ctx)
		return err
	}
	endCtx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := l.pr.cl.EndTransaction(endCtx, kgo.TryCommit); err != nil {
		return l.settle(ctx, b, err)
	}
	l.noteEnded()
	return nil
}

// produce sends records and waits until all are acknowledged. What is the fault
// of some copies only is a *tooLargeError or a *refusedError.
func (l *lane) produce(ctx context.Context, records []output) error {
	var mu sync.Mutex
	failures := map[*kgo.Record]error{} // guarded by mu: they come in order of completion
	acked := func(r *kgo.Record, err error) {
		if err != nil {
			mu.Lock()
			failures[r] = err
			mu.Unlock()
		}
	}
	for i := range records {
		l.pr.cl.Produce(ctx, &records[i].record, acked)
	}
	if err := l.pr.cl.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(failures) == 0 {
		return nil
	}
	var first error // that concerns all
	var refused refusedError
	var large tooLargeError
	for i := range records {
		topic, e := records[i].record.Topic, records[i].entry
		err, failed := failures[&records[i].record]
		if !failed {
			continue
		}
		err = fmt.Errorf("to topic %s: %w", topic, explainWrite(topic, err))
		l.c.m.produceFailures.WithLabelValues(topic).Inc()
		switch {
		case e != nil && ofRecord(err):
			large.entries, large.err = append(large.entries, e), err
		case e != nil && ofTopic(err):
			refused.add(topic, err)
		case first == nil || errors.Is(first, context.Canceled):
			first = err
		}
	}
	switch {
	case first != nil:
		return fmt.Errorf("produce: %w", first)
	case len(refused.topics) > 0:
		return &refused
	default:
		return &large
	}
}

// abort ends the transaction without effect. Where that fails, the client is
// given up: the next one's producer id aborts what is left.
func (l *lane) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := l.pr.cl.AbortBufferedRecords(ctx); err == nil {
		if err := l.pr.cl.EndTransaction(ctx, kgo.TryAbort); err == nil {
			return
		}
	}
	l.close()
}

// settle finds out whether a transaction committed whose end got no clear
// answer. A new producer id under the same name brings it to its end; then the
// nonce in the committed metadata tells which end that was.
func (l *lane) settle(ctx context.Context, b *batch, cause error) error {
	l.c.log.Warn("the end of a transaction got no answer; its outcome is read back", "lane", l.id, "error", cause)
	l.c.m.ambiguous.Inc()
	if fencedProducer(cause) && l.c.replaced(ctx) {
		return cause // to open the producer again would fence the other worker
	}
	for {
		if err := l.reopen(ctx, false); err != nil {
			return err
		}
		committed, err := l.readBack(ctx, b)
		switch {
		case err == nil && committed:
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", errNotCommitted, cause)
		}
		l.c.log.Warn("the outcome of a transaction could not be read back and is asked again", "lane", l.id, "error", err)
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// readBack reports whether the group's committed metadata carries b's nonce.
// Partitions that are lost meanwhile are somebody else's to read; with none
// left, the answer does not matter.
func (l *lane) readBack(ctx context.Context, b *batch) (bool, error) {
	c := l.c
	topics, ids := map[string][]int32{}, map[string][16]byte{}
	c.mu.Lock()
	for _, s := range b.parts {
		if !s.p.dropped {
			topics[s.p.topic] = append(topics[s.p.topic], s.p.partition)
			ids[s.p.topic] = s.p.topicID
		}
	}
	c.mu.Unlock()
	if len(topics) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	commits, err := c.fetchProgress(ctx, l.pr.cl, topics, ids)
	if err != nil {
		return false, err
	}
	for _, s := range b.parts {
		if commits[s.p.tp].metadata == s.plan.Metadata {
			return true, nil
		}
	}
	return false, nil
}

// commitOffsets puts the batch's progress into the open transaction.
func (l *lane) commitOffsets(ctx context.Context, b *batch) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	id, epoch, err := l.pr.cl.ProducerID(ctx)
	if err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	if !l.pr.implicit {
		if err := l.addOffsets(ctx, id, epoch); err != nil {
			return fmt.Errorf("add offsets to the transaction: %w", err)
		}
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group = l.id, l.c.o.Group
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.MemberID, req.Generation = b.member, b.generation
	if l.c.o.Instance != "" {
		req.InstanceID = &l.c.o.Instance
	}
	topics := map[string]int{}
	for _, s := range b.parts {
		i, ok := topics[s.p.topic]
		if !ok {
			i = len(req.Topics)
			topics[s.p.topic] = i
			t := kmsg.NewTxnOffsetCommitRequestTopic()
			t.Topic, t.TopicID = s.p.topic, s.p.topicID
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.Metadata = s.p.partition, s.plan.Progress.Low, &s.plan.Metadata
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	// The coordinator may still be writing the markers of the transaction before.
	return retryConcurrent(ctx, func() error {
		resp, err := req.RequestWith(ctx, l.pr.cl)
		if err != nil {
			return fmt.Errorf("commit offsets: %w", err)
		}
		// Every partition has its own code: one that fails is left out, and an
		// end would commit its outputs without its progress.
		var failed error
		answered := 0
		for _, t := range resp.Topics {
			answered += len(t.Partitions)
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					l.refused(b, t.Topic, t.TopicID, p.Partition, err)
					failed = fmt.Errorf("commit offsets of %s/%d: %w", b.topic(t.Topic, t.TopicID), p.Partition, err)
				}
			}
		}
		return b.unanswered(answered, failed)
	})
}

// topic is the name of a topic of b in an answer, which may have its id only.
func (b *batch) topic(name string, id [16]byte) string {
	for _, s := range b.parts {
		if name == "" && s.p.topicID == id {
			return s.p.topic
		}
	}
	return name
}

// refused takes note that the broker refused a partition's progress: metadata
// that is too long is made shorter; of a topic that is gone nothing is kept.
func (l *lane) refused(b *batch, topic string, id [16]byte, partition int32, err error) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) {
		l.c.regroup(errTopicGone)
	}
	if !errors.Is(err, kerr.OffsetMetadataTooLarge) {
		return
	}
	for _, s := range b.parts {
		if s.p.partition == partition && (s.p.topic == topic || topic == "" && s.p.topicID == id) {
			s.p.limit = max(64, len(s.plan.Metadata)*3/4)
		}
	}
}

func (l *lane) addOffsets(ctx context.Context, id int64, epoch int16) error {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.Group = l.id, l.c.o.Group
	req.ProducerID, req.ProducerEpoch = id, epoch
	return retryConcurrent(ctx, func() error {
		resp, err := req.RequestWith(ctx, l.pr.cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// retryConcurrent repeats f while the coordinator is busy with the transaction before.
func retryConcurrent(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if serr := sleep(ctx, 20*time.Millisecond); serr != nil {
			return err
		}
	}
}

// commitWritten commits the progress of outputs that are written, in at-least-once
// mode. A commit that is refused because the group is changing is made again as
// long as all of the batch's partitions stay here: to give the batch back would
// write its outputs again each time.
func (l *lane) commitWritten(ctx context.Context, b *batch) error {
	for {
		err := l.plainCommit(ctx, b)
		if !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) {
			return err
		}
		if serr := sleep(ctx, 100*time.Millisecond); serr != nil || !l.renew(b) {
			return err
		}
	}
}

// renew takes the group's present generation for b. It reports whether this is
// still the member that b's partitions were assigned to, and all are still its.
func (l *lane) renew(b *batch) bool {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cl == nil {
		return false
	}
	for _, s := range b.parts {
		if s.p.dropped {
			return false
		}
	}
	member, generation := c.cl.GroupMetadata()
	b.generation = generation
	return member == b.member && generation >= 0
}

// plainCommit commits the batch's progress outside a transaction: in
// at-least-once mode, and for progress that has no effect beside it.
func (l *lane) plainCommit(ctx context.Context, b *batch) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	c := l.c
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = c.o.Group, b.member, b.generation
	if c.o.Instance != "" {
		req.InstanceID = &c.o.Instance
	}
	topics := map[string]int{}
	for _, s := range b.parts {
		i, ok := topics[s.p.topic]
		if !ok {
			i = len(req.Topics)
			topics[s.p.topic] = i
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = s.p.topic, s.p.topicID
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.Metadata, p.LeaderEpoch = s.p.partition, s.plan.Progress.Low, &s.plan.Metadata, -1
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	if l.pr == nil {
		if err := l.reopen(ctx, false); err != nil {
			return err
		}
	}
	resp, err := req.RequestWith(ctx, l.pr.cl)
	if err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	var failed error
	answered := 0
	for _, t := range resp.Topics {
		answered += len(t.Partitions)
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				l.refused(b, t.Topic, t.TopicID, p.Partition, err)
				failed = fmt.Errorf("commit offsets of %s/%d: %w", b.topic(t.Topic, t.TopicID), p.Partition, err)
			}
		}
	}
	return b.unanswered(answered, failed)
}

// unanswered makes an error of partitions that a commit's answer leaves out:
// without a word on them they cannot be taken for committed.
func (b *batch) unanswered(answered int, err error) error {
	if err == nil && answered < len(b.parts) {
		return fmt.Errorf("commit offsets: the broker answered for %d of %d partitions", answered, len(b.parts))
	}
	return err
}

// partitioner sends audit events where the outputs say and copies where their key says.
type partitioner struct {
	audit string
	keyed kgo.Partitioner
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.audit {
		return kgo.ManualPartitioner().ForTopic(topic)
	}
	return p.keyed.ForTopic(topic)
}

// Sizes of batches.
const (
	batchOverhead = 128     // of a batch of one record, beside the record
	bigBatch      = 1 << 29 // for a record that only compression makes fit
)

// tooBig reports whether the copy of e passes its topic's limit before
// compression. It is sent alone then: only the broker knows whether it fits.
func (c *Consumer) tooBig(e *entry) bool {
	topic := c.copyTopic(e)
	return topic != "" && int64(e.rec.Size())+deadletter.MaxErrorBytes+headerRoom > int64(c.limitOf(topic))-batchOverhead
}

// headerRoom is about what the worker's own headers weigh, without the error text.
const headerRoom = 1 << 10

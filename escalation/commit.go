package escalation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/audit"
)

const (
	txnTimeout = 10 * time.Second // after which the broker ends a transaction that we do not
	txnBound   = 20 * time.Second // after which we give a transaction up
	txnEvents  = 1000             // in one transaction, at most
)

// progressPrefix is version 1 of the offset's metadata: the seq of the last
// escalated event of the input partition follows, in decimal.
const progressPrefix = "v1;seq="

func formatProgress(seq int64) string { return progressPrefix + strconv.FormatInt(seq, 10) }

// parseProgress is formatProgress's exact inverse. Empty metadata is an error:
// somebody else has committed this offset.
func parseProgress(metadata string) (seq int64, err error) {
	digits, ok := strings.CutPrefix(metadata, progressPrefix)
	if ok {
		seq, err = strconv.ParseInt(digits, 10, 64)
	}
	if !ok || err != nil || seq < 0 || formatProgress(seq) != metadata {
		return 0, fmt.Errorf("metadata of the committed offset, %d bytes, is not %q and the last seq in the audit topic of recon.dlq.escalated with this input partition", len(metadata), progressPrefix)
	}
	return seq, nil
}

// batch is what one transaction makes visible.
type batch struct {
	events []*kgo.Record
	parts  []batchPart
}

type batchPart struct {
	partition int32
	part      *part
	items     int
	end       int64
	epoch     int32
	seq       int64
}

// ready says whether a partition has something to commit. s.mu is held.
func (s *session) ready() bool {
	for _, pt := range s.parts {
		if pt != nil && len(pt.queue) > 0 && pt.queue[0].done {
			return true
		}
	}
	return false
}

// transact commits the finished prefix of each partition, if there is one, with
// its events. What the group refuses for now is postponed: s.overdue is set
// until a later call succeeds. An error ends the session. s.mu is held.
func (s *session) transact() error {
	b := s.batch()
	if len(b.events) == 0 {
		s.overdue = time.Time{}
		return nil
	}
	member, generation := s.cons.GroupMetadata()
	if member == "" || generation < 0 { // a commit without them would bypass fencing
		return s.postpone(errors.New("not a member of the group"))
	}
	if member != s.member { // the group forgot us and the client joined again: our partitions may be others' by now
		return errMember
	}
	started := s.e.o.Now()
	err := s.commit(b, member, generation)
	if err != nil {
		var soft *softError
		if errors.As(err, &soft) {
			return s.postpone(soft.err)
		}
		if s.e.o.Now().Sub(started) > txnTimeout/2 {
			err = &slowError{err}
		}
		return fmt.Errorf("commit %d escalations: %w", len(b.events), err)
	}
	s.overdue = time.Time{}
	for _, bp := range b.parts {
		bp.part.seq = bp.seq
		bp.part.queue = slices.Delete(bp.part.queue, 0, bp.items)
		s.held -= bp.items
		s.lag(bp.partition)
	}
	return nil
}

var errMember = errors.New("the group forgot this member and it joined again")

// softError is a refusal that leaves everything as it was.
type softError struct{ err error }

func (e *softError) Error() string { return e.err.Error() }

func (s *session) postpone(err error) error {
	now := s.e.o.Now()
	if s.overdue.IsZero() {
		s.overdue = now.Add(postponeBound)
	}
	if now.After(s.overdue) {
		return fmt.Errorf("the group has refused commits for %v: %w", postponeBound, err)
	}
	return nil
}

// batch collects finished prefixes, in partition order.
func (s *session) batch() batch {
	var b batch
	for _, p := range slices.Sorted(maps.Keys(s.parts)) {
		pt := s.parts[p]
		if pt == nil {
			continue
		}
		bp := batchPart{partition: p, part: pt, seq: pt.seq}
		for _, it := range pt.queue {
			if !it.done || len(b.events) == txnEvents {
				break
			}
			bp.items++
			bp.seq++
			bp.end, bp.epoch = it.end, it.epoch
			b.events = append(b.events, s.event(it, bp.seq))
		}
		if bp.items > 0 {
			b.parts = append(b.parts, bp)
		}
	}
	return b
}

func (s *session) event(it *item, seq int64) *kgo.Record {
	e := audit.New(audit.Escalated, s.e.o.Source, s.e.o.Now(), &it.record)
	e.Reason = it.record.Reason
	e.Seq = seq
	topic, partition, ok := audit.OriginTopic(it.record.Origin)
	if !ok { // the origin was lost: by the copy's own place
		topic, partition = it.record.Input.Topic, it.record.Input.Partition
	}
	return &kgo.Record{
		Topic:     s.e.o.Audit,
		Partition: audit.Partition(topic, partition, s.audits),
		Key:       e.Key(),
		Value:     e.AppendJSON(nil),
	}
}

// commit runs one transaction: events, flushed, then offsets, then the end,
// never two at once. A softError means that it was cleanly aborted.
func (s *session) commit(b batch, member string, generation int32) error {
	// Not the session's context: a transaction once begun is ended, also when stopping.
	ctx, cancel := context.WithTimeout(context.Background(), txnBound)
	defer cancel()
	if err := s.prod.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := s.produce(ctx, b.events); err != nil {
		return fmt.Errorf("write events to %s: %w", s.e.o.Audit, errors.Join(err, s.abort(ctx)))
	}
	if err := s.commitOffsets(ctx, b, member, generation); err != nil {
		if abortErr := s.abort(ctx); abortErr == nil && isPassing(err) {
			return &softError{err}
		}
		return fmt.Errorf("commit offsets of group %s: %w", s.e.o.Group+GroupSuffix, err)
	}
	if err := s.prod.EndTransaction(ctx, kgo.TryCommit); err != nil {
		// Whether it committed is not known here. The next session's producer
		// settles it, and its member reads which it was.
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

func (s *session) abort(ctx context.Context) error {
	if err := s.prod.AbortBufferedRecords(ctx); err != nil {
		return err
	}
	return s.prod.EndTransaction(ctx, kgo.TryAbort)
}

// produce writes and waits for all, no longer than ctx: the client itself waits
// for ever for a record that is in flight.
func (s *session) produce(ctx context.Context, records []*kgo.Record) error {
	results := make(chan error, len(records))
	for _, r := range records {
		s.prod.Produce(ctx, r, func(_ *kgo.Record, err error) { results <- err })
	}
	var errs error
	for range records {
		select {
		case err := <-results:
			if err != nil && errs == nil {
				errs = err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errs
}

// commitOffsets adds the batch's offsets and seqs to the open transaction.
func (s *session) commitOffsets(ctx context.Context, b batch, member string, generation int32) error {
	id, epoch, err := s.prod.ProducerID(ctx)
	if err != nil {
		return err
	}
	group := s.e.o.Group + GroupSuffix
	if !s.implicit {
		add := kmsg.NewPtrAddOffsetsToTxnRequest()
		add.TransactionalID, add.Group = s.e.txnID, group
		add.ProducerID, add.ProducerEpoch = id, epoch
		resp, err := add.RequestWith(ctx, s.prod)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return fmt.Errorf("add the group to the transaction: %w", err)
		}
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group = s.e.txnID, group
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.MemberID, req.Generation = member, generation
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic = s.e.o.Poison
	for _, bp := range b.parts {
		t.TopicID = bp.part.topicID
		p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch = bp.partition, bp.end, bp.epoch
		p.Metadata = kmsg.StringPtr(formatProgress(bp.seq))
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, s.prod)
	if err != nil {
		return err
	}
	// One refused partition among accepted ones would be events without progress.
	n := 0
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			n++
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("partition %d: %w", p.Partition, err)
			}
		}
	}
	if n != len(b.parts) {
		return fmt.Errorf("%d of %d partitions were answered", n, len(b.parts))
	}
	return nil
}

// isPassing says whether a refused commit may be tried again by the same session.
func isPassing(err error) bool {
	for _, e := range []error{
		kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.ConcurrentTransactions,
		kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

package consumer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A topic that does not take copies – deleted, no right to write it, too few
// replicas in sync – holds up its own copies only. They stay results that are
// not committed, and are tried again, alone, so that they do not take the others'
// transaction with them. One line in refusalLog tells of each topic.

// refusal is a topic that takes no copies at present. Guarded by Consumer.mu.
type refusal struct {
	until time.Time     // when to try again
	wait  time.Duration // the last one
	told  time.Time
}

const (
	refusalMin = 500 * time.Millisecond
	refusalMax = 5 * time.Second
	refusalLog = 10 * time.Second
)

// refusedError says which topics did not take copies, and why.
type refusedError struct{ topics map[string]error }

func (e *refusedError) add(topic string, err error) {
	if e.topics == nil {
		e.topics = map[string]error{}
	}
	e.topics[topic] = err
}

func (e *refusedError) Error() string {
	var all []string
	for _, topic := range slices.Sorted(maps.Keys(e.topics)) {
		all = append(all, e.topics[topic].Error())
	}
	return "produce: " + strings.Join(all, "; ")
}

func (e *refusedError) Unwrap() []error { return slices.Collect(maps.Values(e.topics)) }

// ofTopic reports whether err is about the topic that was written to, not about
// the producer or its transaction.
func ofTopic(err error) bool {
	return slices.ContainsFunc([]error{
		kerr.TopicAuthorizationFailed, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException,
		kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.LeaderNotAvailable, kerr.NotLeaderForPartition,
		kerr.KafkaStorageError, kerr.PolicyViolation, kerr.InvalidTimestamp, kgo.ErrRecordRetries,
	}, func(of error) bool { return errors.Is(err, of) })
}

// ofRecord reports whether err is about a copy itself, or one in its batch: too
// large, or invalid for its topic, as one without a key is where the topic is compacted.
func ofRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

// explainWrite names the right to write a topic if that is what is missing.
func explainWrite(topic string, err error) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return fmt.Errorf("no right to WRITE topic %q; grant it: %w", topic, err)
	}
	return err
}

// refuse takes note of topics that did not take copies.
func (l *lane) refuse(err *refusedError) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for topic, err := range err.topics {
		r := l.refusals[topic]
		if r == nil {
			r = &refusal{}
			l.refusals[topic] = r
		}
		r.wait = min(max(2*r.wait, refusalMin), refusalMax)
		r.until = now.Add(r.wait)
		if now.Sub(r.told) >= refusalLog {
			r.told = now
			c.log.Error("a topic does not take copies; their records stay open, and it is tried again", "topic", topic, "error", err)
		}
	}
	c.changed.Broadcast() // a drain does not wait for them
}

// accepted takes note that the copies of b were written. Called under Consumer.mu.
func (l *lane) accepted(b *batch) {
	if len(l.refusals) == 0 {
		return
	}
	for _, s := range b.parts {
		for _, e := range s.done {
			if topic := l.c.copyTopic(e); l.refusals[topic] != nil {
				delete(l.refusals, topic)
				l.c.log.Info("the topic takes copies again", "topic", topic)
			}
		}
	}
}

// refuses reports whether the copy of e is not to be tried now. Called under Consumer.mu.
func (l *lane) refuses(e *entry, now time.Time) bool {
	r := l.refusals[l.c.copyTopic(e)]
	return r != nil && r.until.After(now)
}

// alone reports whether e must be the only result of its transaction: because it
// may well fail it. Called under Consumer.mu.
func (l *lane) alone(e *entry) bool {
	return e.suspect || l.refusals[l.c.copyTopic(e)] != nil || l.c.tooBig(e)
}

// pending reports whether p has something that could be committed now. Called under Consumer.mu.
func (l *lane) pending(p *partition, now time.Time) bool {
	return len(p.unseen) > 0 || slices.ContainsFunc(p.done, func(e *entry) bool { return !l.refuses(e, now) })
}

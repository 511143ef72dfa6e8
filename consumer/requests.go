package consumer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commit is a partition's committed offset with its metadata.
type commit struct {
	offset   int64
	metadata string
}

// errNoWord says that an answer leaves out what was asked for. No word on a
// partition is not the same as no commit: read as that, work would be done twice.
var errNoWord = errors.New("the answer leaves out partitions that were asked for")

// fetchProgress reads the group's stable commits of topics. Partitions without
// one are missing from what it returns, but not from the broker's answer.
func (c *Consumer) fetchProgress(ctx context.Context, cl *kgo.Client, topics map[string][]int32, ids map[string][16]byte) (map[tp]commit, error) {
	for {
		commits, err := c.fetchProgressOnce(ctx, cl, topics, ids)
		again := kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, errNoWord)
		if !again {
			return commits, err
		}
		// The coordinator moves or loads, or a transaction over these offsets is
		// still open: that ends, or times out.
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (c *Consumer) fetchProgressOnce(ctx context.Context, cl *kgo.Client, topics map[string][]int32, ids map[string][16]byte) (map[tp]commit, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = c.o.Group
	names := map[[16]byte]string{}
	for topic, partitions := range topics {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		// Newer versions of the request carry the id only: fill both in.
		t.Topic, t.TopicID, t.Partitions = topic, ids[topic], partitions
		names[ids[topic]] = topic
		g.Topics = append(g.Topics, t)
	}
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	commits := map[tp]commit{}
	answered := map[tp]bool{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			topic := t.Topic
			if topic == "" {
				topic = names[t.TopicID]
			}
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("%s/%d: %w", topic, p.Partition, err)
				}
				answered[tp{topic, p.Partition}] = true
				if p.Offset < 0 {
					continue
				}
				m := ""
				if p.Metadata != nil {
					m = *p.Metadata
				}
				commits[tp{topic, p.Partition}] = commit{p.Offset, m}
			}
		}
	}
	for topic, partitions := range topics {
		for _, p := range partitions {
			if !answered[tp{topic, p}] {
				return nil, fmt.Errorf("%s/%d: %w", topic, p, errNoWord)
			}
		}
	}
	return commits, nil
}

// replaced reports whether another worker has joined the group under this
// worker's name: the group knows before this worker is told. While this worker
// is joining anew the group says the same of its own last member id, so that
// counts only with the id it has before and after.
func (c *Consumer) replaced(ctx context.Context) bool {
	c.mu.Lock()
	cl := c.cl
	c.mu.Unlock()
	if c.o.Instance == "" || cl == nil {
		return false
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.InstanceID = c.o.Group, &c.o.Instance
	req.MemberID, req.Generation = cl.GroupMetadata()
	if req.MemberID == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeatInterval)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	if err != nil || resp.ErrorCode != kerr.FencedInstanceID.Code {
		return false
	}
	return c.isMember(req.MemberID)
}

// isMember reports whether a member id is the one this worker has now. It has
// none while it joins anew.
func (c *Consumer) isMember(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cl == nil {
		return false
	}
	member, _ := c.cl.GroupMetadata()
	return id != "" && id == member
}

// topicIDs reads the ids of topics; zero where the brokers have none.
func topicIDs(ctx context.Context, cl *kgo.Client, topics map[string][]int32) (map[string][16]byte, error) {
	req := kmsg.NewPtrMetadataRequest()
	for topic := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	ids := map[string][16]byte{}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, err
		}
		if t.Topic != nil {
			ids[*t.Topic] = t.TopicID
		}
	}
	return ids, nil
}

// partitionsLike reads the partitions of the topics whose names match a pattern.
func partitionsLike(ctx context.Context, cl *kgo.Client, patterns []string) (map[string][]int32, error) {
	match, err := regexp.Compile(strings.Join(patterns, "|"))
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrMetadataRequest() // without names: all topics
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	parts := map[string][]int32{}
	for _, t := range resp.Topics {
		if t.Topic == nil || !match.MatchString(*t.Topic) {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, fmt.Errorf("topic %s: %w", *t.Topic, err)
		}
		for _, p := range t.Partitions {
			parts[*t.Topic] = append(parts[*t.Topic], p.Partition)
		}
	}
	return parts, nil
}

// Timestamps of ListOffsets that name a place in the log.
const (
	earliest        = int64(-2)
	latest          = int64(-1)
	latestTimestamp = int64(-3) // the record with the greatest timestamp (KIP-734)
)

// Isolation levels of ListOffsets: with the committed one, latest is the last stable offset.
const (
	uncommitted = int8(0)
	committed   = int8(1)
)

// listOffsets reads one place of every partition. With an error it returns what
// could be read: a partition without a leader says nothing about the others.
func listOffsets(ctx context.Context, cl *kgo.Client, topics map[string][]int32, at int64, level int8) (map[tp]listed, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.IsolationLevel = level
	for topic, partitions := range topics {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for _, n := range partitions {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp, p.CurrentLeaderEpoch = n, at, -1
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	var failed error
	offsets := map[tp]listed{}
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			failed = shard.Err
			continue
		}
		resp, ok := shard.Resp.(*kmsg.ListOffsetsResponse)
		if !ok {
			continue
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failed = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
					continue
				}
				offsets[tp{t.Topic, p.Partition}] = listed{p.Offset, time.UnixMilli(p.Timestamp)}
			}
		}
	}
	return offsets, failed
}

// listed is an answer of listOffsets.
type listed struct {
	offset int64
	at     time.Time // of the record, where a record was asked for
}

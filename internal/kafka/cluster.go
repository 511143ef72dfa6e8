package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is what one look at the cluster found. The requests are made by hand
// because kadm gives up at the first topic that is not authorized, and the
// user is owed all of them at once.
type cluster struct {
	id      string
	brokers []int32
	topics  map[string]topicState // those asked for, and the tiers found
}

type topicState struct {
	id         [16]byte
	err        error // UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, …
	partitions []kmsg.MetadataResponseTopicPartition
	ops        int32 // bit field of allowed operations, see allowed
	config     map[string]string
	configErr  error // the settings cannot be read
}

func (t topicState) exists() bool { return t.err == nil && len(t.partitions) > 0 }

// led says whether every partition can be written.
func (t topicState) led() bool {
	return t.exists() && !slices.ContainsFunc(t.partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Leader < 0 })
}

// replication is the smallest number of copies of any partition.
func (t topicState) replication() int {
	n := math.MaxInt
	for _, p := range t.partitions {
		n = min(n, len(p.Replicas))
	}
	return n
}

// number returns a topic's setting as a number, where it is known.
func (c cluster) number(topic, key string) (int, bool) {
	v, ok := c.topics[topic].config[key]
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	return n, err == nil
}

// look reads the layout's topics, their settings, and the tiers that exist.
func look(ctx context.Context, cl *kgo.Client, l Layout) (cluster, error) {
	c := cluster{topics: make(map[string]topicState)}
	names := make([]string, 0, 16)
	for _, t := range l.Topics() {
		names = append(names, t.Name)
	}

	// Topics named one by one answer "not authorized" where a list of all leaves them out …
	if err := c.metadata(ctx, cl, named(names), func(string) bool { return true }); err != nil {
		return c, err
	}
	// … and the list of all finds tiers that are no longer configured.
	all := kmsg.NewPtrMetadataRequest()
	all.IncludeTopicAuthorizedOperations = true
	err := c.metadata(ctx, cl, all, func(name string) bool {
		_, tier := l.tierDelay(name)
		return tier && !slices.Contains(names, name)
	})
	if err != nil {
		return c, err
	}
	return c, c.configs(ctx, cl)
}

func named(topics []string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, n := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func (c *cluster) metadata(ctx context.Context, cl *kgo.Client, req *kmsg.MetadataRequest, keep func(string) bool) error {
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("read topics: %w", err)
	}
	if resp.ClusterID != nil {
		c.id = *resp.ClusterID
	}
	c.brokers = c.brokers[:0]
	for _, b := range resp.Brokers {
		c.brokers = append(c.brokers, b.NodeID)
	}
	for _, t := range resp.Topics {
		if t.Topic == nil || !keep(*t.Topic) {
			continue
		}
		slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return int(a.Partition - b.Partition) })
		c.topics[*t.Topic] = topicState{
			id: t.TopicID, err: kerr.ErrorForCode(t.ErrorCode),
			partitions: t.Partitions, ops: t.AuthorizedOperations,
		}
	}
	return nil
}

// configs reads the effective settings of all topics found.
func (c *cluster) configs(ctx context.Context, cl *kgo.Client) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for name, t := range c.topics {
		if !t.exists() {
			continue
		}
		rr := kmsg.NewDescribeConfigsRequestResource()
		rr.ResourceType = kmsg.ConfigResourceTypeTopic
		rr.ResourceName = name
		rr.ConfigNames = []string{keyCleanup, keyRetention, keyBytes, keyMaxMessage, keyTimestamp, keyMinISR}
		req.Resources = append(req.Resources, rr)
	}
	if len(req.Resources) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("read topic settings: %w", err)
	}
	for _, r := range resp.Resources {
		t := c.topics[r.ResourceName]
		t.configErr = kerr.ErrorForCode(r.ErrorCode)
		t.config = make(map[string]string, len(r.Configs))
		for _, s := range r.Configs {
			if s.Value != nil {
				t.config[s.Name] = *s.Value
			}
		}
		c.topics[r.ResourceName] = t
	}
	return nil
}

// offsetMetadataBytes is the smallest offset.metadata.max.bytes of all
// brokers. ok is false where the right to read it is missing.
func (c cluster) offsetMetadataBytes(ctx context.Context, cl *kgo.Client) (n int, ok bool, err error) {
	n = math.MaxInt
	for _, id := range c.brokers {
		req := kmsg.NewPtrDescribeConfigsRequest()
		rr := kmsg.NewDescribeConfigsRequestResource()
		rr.ResourceType = kmsg.ConfigResourceTypeBroker
		rr.ResourceName = strconv.Itoa(int(id))
		rr.ConfigNames = []string{"offset.metadata.max.bytes"}
		req.Resources = append(req.Resources, rr)
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			if ctx.Err() != nil {
				return 0, false, context.Cause(ctx)
			}
			return DefaultOffsetMetadataBytes, false, nil // a broker that is down must not keep the worker from starting
		}
		for _, r := range resp.Resources {
			if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
				if errors.Is(err, kerr.ClusterAuthorizationFailed) {
					return DefaultOffsetMetadataBytes, false, nil
				}
				return 0, false, fmt.Errorf("read the settings of broker %d: %w", id, err)
			}
			for _, s := range r.Configs {
				if s.Value == nil {
					continue
				}
				if v, err := strconv.Atoi(*s.Value); err == nil {
					n = min(n, v)
				}
			}
		}
	}
	if n == math.MaxInt { // a broker that does not know the setting
		n = DefaultOffsetMetadataBytes
	}
	return n, true, nil
}

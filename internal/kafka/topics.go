package kafka

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

const (
	// DefaultMaxMessageBytes is Kafka's default of max.message.bytes.
	DefaultMaxMessageBytes = 1048588
	// DefaultOffsetMetadataBytes is Kafka's default of offset.metadata.max.bytes.
	DefaultOffsetMetadataBytes = 4096
	// AuditRetention is how long the audit trail is kept at least.
	AuditRetention = 400 * 24 * time.Hour
	// RetentionSlack is what a source keeps beyond SLA and longest wait: time
	// to notice that no worker runs.
	RetentionSlack = 7 * 24 * time.Hour

	defaultPartitions = 3
)

// Names of the topic settings that matter to the product.
const (
	keyCleanup    = "cleanup.policy"
	keyRetention  = "retention.ms"
	keyBytes      = "retention.bytes"
	keyMaxMessage = "max.message.bytes"
	keyTimestamp  = "message.timestamp.type"
	keyMinISR     = "min.insync.replicas"
)

// Role is what a topic is for.
type Role string

// The roles of topics.
const (
	RoleSource Role = "source"
	RoleTier   Role = "tier"
	RoleHold   Role = "hold"
	RolePoison Role = "poison"
	RoleAudit  Role = "audit"
	RoleState  Role = "state"
)

// Layout is the plain description of every topic the product uses.
type Layout struct {
	Sources     []string
	RetryPrefix string // of the tiers: prefix, then policy.FormatDelay
	HoldPrefix  string // of the hold topics: prefix, then the target's name
	Poison      string
	Audit       string
	State       string
	Tiers       []time.Duration // delays
	Holds       []string        // target names

	Replication int // copies of topics that are created
	// Partitions of topics that are created; 0: as many as the largest source, 3 without one.
	Partitions int
	// Retention is what a source keeps at least: SLA + longest wait + RetentionSlack.
	Retention time.Duration

	// Groups are the consumer groups the worker joins; Verify checks its right to.
	Groups []string

	// SourceMaxBytes is the largest max.message.bytes of the sources, and
	// SourcePartitions the largest partition count; 0: not known. Plan and
	// Verify fill them in from the cluster.
	SourceMaxBytes   int
	SourcePartitions int

	found []Topic // tiers on the cluster that are no longer configured
}

// Topic is one wanted topic.
type Topic struct {
	Name        string
	Role        Role
	Partitions  int
	Replication int
	Delay       time.Duration // tiers only
	Config      []Setting     // in a fixed order

	leftover bool // found on the cluster, not configured: never created
}

// Setting is one wanted topic setting. A topic meets it with that value, or,
// where AtLeast is set, with a larger number or -1 (unlimited).
type Setting struct {
	Key     string
	Value   string
	AtLeast bool
}

// met says whether a topic whose effective value is have meets the setting.
func (s Setting) met(have string) bool {
	if have == s.Value {
		return true
	}
	if !s.AtLeast {
		return sameList(s.Key, have, s.Value)
	}
	h, err := strconv.ParseInt(have, 10, 64)
	if err != nil {
		return false
	}
	want, err := strconv.ParseInt(s.Value, 10, 64)
	return err == nil && want >= 0 && (h >= want || h == -1 && s.Key == keyRetention)
}

// sameList compares the one setting that is a list without regard to spaces.
func sameList(key, a, b string) bool {
	return key == keyCleanup && strings.ReplaceAll(a, " ", "") == b
}

// Topics lists every wanted topic: sources, tiers by delay, poison, audit,
// state, hold topics. Retention is by time only, everywhere: a limit by size
// would drop unresolved records silently.
func (l Layout) Topics() []Topic {
	partitions := l.Partitions
	if partitions == 0 {
		partitions = l.SourcePartitions
	}
	if partitions == 0 {
		partitions = defaultPartitions
	}
	replication := max(l.Replication, 1)
	copyBytes := l.SourceMaxBytes
	if copyBytes == 0 {
		copyBytes = DefaultMaxMessageBytes
	}
	copyBytes += deadletter.MaxOverhead

	topic := func(name string, role Role, partitions int, config ...Setting) Topic {
		config = append(config, Setting{Key: keyBytes, Value: "-1"})
		if replication >= 3 {
			// A write is acknowledged by two brokers, so losing one loses nothing.
			config = append(config, Setting{Key: keyMinISR, Value: "2", AtLeast: true})
		}
		return Topic{Name: name, Role: role, Partitions: partitions, Replication: replication, Config: config}
	}
	deleted := Setting{Key: keyCleanup, Value: "delete"}
	retention := func(d time.Duration) Setting {
		return Setting{Key: keyRetention, Value: strconv.FormatInt(d.Milliseconds(), 10), AtLeast: true}
	}
	size := Setting{Key: keyMaxMessage, Value: strconv.Itoa(copyBytes), AtLeast: true}
	tier := func(name string, delay time.Duration) Topic {
		t := topic(name, RoleTier, partitions, deleted, retention(l.Retention+delay), size)
		t.Delay = delay
		return t
	}

	var topics []Topic
	for _, name := range l.Sources {
		topics = append(topics, topic(name, RoleSource, partitions, deleted, retention(l.Retention)))
	}
	for _, d := range l.Tiers {
		topics = append(topics, tier(l.RetryPrefix+policy.FormatDelay(d), d))
	}
	for _, f := range l.found {
		t := tier(f.Name, f.Delay)
		t.leftover = true
		topics = append(topics, t)
	}
	topics = append(topics,
		topic(l.Poison, RolePoison, partitions, deleted, Setting{Key: keyRetention, Value: "-1"}, size),
		topic(l.Audit, RoleAudit, partitions, deleted, retention(AuditRetention),
			// The broker's clock, not the worker's, dates the trail.
			Setting{Key: keyTimestamp, Value: "LogAppendTime"}),
	)
	if l.State != "" {
		topics = append(topics, topic(l.State, RoleState, 1, Setting{Key: keyCleanup, Value: "compact"}))
	}
	for _, target := range l.Holds {
		topics = append(topics, topic(l.HoldPrefix+target, RoleHold, partitions, deleted, retention(l.Retention), size))
	}
	return topics
}

// ForRules returns the layout with the tiers and the retention that the rules
// ask for: a source keeps a record for the longest SLA, the longest wait policy
// can set, and RetentionSlack.
func (l Layout) ForRules(p *policy.Policy, rules []policy.Rule) Layout {
	l.Tiers = p.Tiers()
	l.Retention = RetentionSlack + p.MaxWait()
	sla := time.Duration(0)
	for _, r := range rules {
		sla = max(sla, r.MaxAge)
	}
	l.Retention += sla
	return l
}

// withCluster fills in what the layout takes from the cluster: the sources'
// sizes and partitions, and tiers that are there but no longer configured
// (they are still drained, so they must keep their records too).
func (l Layout) withCluster(c cluster) Layout {
	if l.SourceMaxBytes == 0 {
		for _, s := range l.Sources {
			if n, ok := c.number(s, keyMaxMessage); ok {
				l.SourceMaxBytes = max(l.SourceMaxBytes, n)
			}
		}
	}
	if l.SourcePartitions == 0 {
		for _, s := range l.Sources {
			l.SourcePartitions = max(l.SourcePartitions, len(c.topics[s].partitions))
		}
	}
	configured := make(map[string]bool)
	for _, d := range l.Tiers {
		configured[l.RetryPrefix+policy.FormatDelay(d)] = true
	}
	for name := range c.topics {
		if d, ok := l.tierDelay(name); ok && !configured[name] && c.topics[name].exists() {
			l.found = append(l.found, Topic{Name: name, Delay: d})
		}
	}
	slices.SortFunc(l.found, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	return l
}

// tierDelay says whether name is a tier of this layout, and its delay.
func (l Layout) tierDelay(name string) (time.Duration, bool) {
	suffix, ok := strings.CutPrefix(name, l.RetryPrefix)
	if !ok || l.RetryPrefix == "" || suffix == "" {
		return 0, false
	}
	d, err := policy.ParseDelay(suffix)
	return d, err == nil
}

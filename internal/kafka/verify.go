package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	verifyTimeout = 30 * time.Second
	applyFix      = "run `recon-dlq topics apply`"
)

// Facts is what the worker needs to know of the cluster.
type Facts struct {
	ClusterID string
	Topics    map[string]TopicFacts // sources, tiers (also those no longer configured), poison, audit; and hold and state where they exist
	// OffsetMetadataMaxBytes is the brokers' limit on the metadata of a committed
	// offset (the smallest, if they differ).
	OffsetMetadataMaxBytes int
	Warnings               []string // what is not as it should be, but does not stop the worker; each names the fix
}

// TopicFacts are the facts of one topic.
type TopicFacts struct {
	ID              [16]byte
	Partitions      int32
	MaxMessageBytes int32
	Assumed         bool // the settings cannot be read: MaxMessageBytes is Kafka's default
}

// MissingError lists all topics that do not exist.
type MissingError struct{ Topics []string }

// Error names the topics and the fix.
func (e *MissingError) Error() string {
	noun := "missing topic"
	if len(e.Topics) > 1 {
		noun = "missing topics"
	}
	return fmt.Sprintf("%s: %s: %s", noun, strings.Join(e.Topics, ", "), applyFix)
}

// SettingError is a topic setting with which records would be lost or stuck.
type SettingError struct {
	Topic, Key, Have, Want string
	Why                    string
}

// Error names the setting, why it matters, and the fix.
func (e *SettingError) Error() string {
	return fmt.Sprintf("topic %q: %s is %s, must be %s: %s: %s (or kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=%s)",
		e.Topic, e.Key, e.Have, e.Want, e.Why, applyFix, e.Topic, e.Key, strings.TrimPrefix(e.Want, "at least "))
}

// needed are the rights the worker needs on topics: tiers it reads and writes,
// poison it writes and escalation reads.
var needed = map[Role][]Operation{
	RoleSource: {Read},
	RoleTier:   {Read, Write},
	RolePoison: {Read, Write},
	RoleAudit:  {Write},
}

// Verify checks what a worker relies on, before it takes the first record:
// topics exist, keep every record long enough, take every copy, and may be
// used. It returns all faults at once, joined: *MissingError, *SettingError,
// *RightError. Hold and state topics are not required. What may not be read is
// assumed to be Kafka's default, with a warning. It takes at most 30 s.
func Verify(ctx context.Context, cl *kgo.Client, l Layout) (Facts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, verifyTimeout, errors.New("the cluster did not answer the start checks in time: look at the brokers' health"))
	defer cancel()
	c, err := look(ctx, cl, l)
	if err != nil {
		return Facts{}, err
	}
	l = l.withCluster(c)

	facts := Facts{ClusterID: c.id, Topics: make(map[string]TopicFacts)}
	warn := func(format string, args ...any) {
		facts.Warnings = append(facts.Warnings, fmt.Sprintf(format, args...))
	}
	var faults []error
	missing := &MissingError{}
	for _, want := range l.Topics() {
		have := c.topics[want.Name]
		ops, required := needed[want.Role]
		switch {
		case have.exists():
			facts.Topics[want.Name] = have.facts()
		case !required:
			continue
		case errors.Is(have.err, kerr.UnknownTopicOrPartition):
			missing.Topics = append(missing.Topics, want.Name)
			continue
		case !errors.Is(have.err, kerr.TopicAuthorizationFailed):
			err := have.err
			if err == nil {
				err = kerr.LeaderNotAvailable
			}
			faults = append(faults, fmt.Errorf("topic %q: %w", want.Name, err))
			continue
		}
		for _, op := range ops {
			// A topic that may not even be described has no bit set.
			if have.err != nil || !allowed(have.ops, op) {
				faults = append(faults, Need(ResourceTopic, want.Name, op))
			}
		}
		if have.err != nil || !required {
			continue
		}
		if have.configErr != nil {
			warn("topic %q: its settings cannot be read (%s), Kafka's defaults are assumed and retention is not checked: grant DESCRIBE_CONFIGS on it", want.Name, have.configErr)
			continue
		}
		f, w := settingFaults(want, have)
		faults = append(faults, f...)
		facts.Warnings = append(facts.Warnings, w...)
		if n := have.replication(); want.Role != RoleSource && !want.leftover && n < want.Replication {
			warn("topic %q: it has %d copies, topics.replication asks for %d: add them with kafka-reassign-partitions.sh", want.Name, n, want.Replication)
		}
	}
	if len(missing.Topics) > 0 {
		faults = slices.Insert(faults, 0, error(missing))
	}
	for _, g := range l.Groups {
		if err := groupRight(ctx, cl, g); err != nil {
			faults = append(faults, err)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return facts, err
	}
	n, known, err := c.offsetMetadataBytes(ctx, cl)
	if err != nil {
		return facts, err
	}
	if !known {
		warn("offset.metadata.max.bytes cannot be read, Kafka's default of %d is assumed: grant DESCRIBE_CONFIGS on the cluster", DefaultOffsetMetadataBytes)
	}
	facts.OffsetMetadataMaxBytes = n
	return facts, nil
}

func (t topicState) facts() TopicFacts {
	f := TopicFacts{ID: t.id, Partitions: int32(len(t.partitions)), MaxMessageBytes: DefaultMaxMessageBytes, Assumed: true}
	if n, err := strconv.ParseInt(t.config[keyMaxMessage], 10, 32); err == nil {
		f.MaxMessageBytes, f.Assumed = int32(n), false
	}
	return f
}

// settingFaults tells the settings that lose records from those that merely
// should be mended.
func settingFaults(want Topic, have topicState) (faults []error, warnings []string) {
	for _, s := range want.unmet(have) {
		e := &SettingError{Topic: want.Name, Key: s.Key, Have: have.config[s.Key], Want: s.Value, Why: why(want.Role, s.Key)}
		if s.AtLeast {
			e.Want = "at least " + s.Value
		}
		switch {
		case s.Key == keyMinISR, want.Role == RoleAudit && (s.Key == keyRetention || s.Key == keyBytes):
			warnings = append(warnings, e.Error())
		default:
			faults = append(faults, e)
		}
	}
	return faults, warnings
}

func why(role Role, key string) string {
	switch key {
	case keyCleanup:
		return "compaction drops all but the last record of a key"
	case keyRetention:
		switch role {
		case RolePoison:
			return "an open record is never deleted by age"
		case RoleAudit:
			return "the trail is kept for 400 days"
		case RoleTier:
			return "a record must outlive the SLA, the longest wait, a week without a worker and its delay"
		}
		return "a record must outlive the SLA, the longest wait and a week without a worker"
	case keyBytes:
		return "a limit by size drops unresolved records when there are many"
	case keyMaxMessage:
		return "a copy is the source's largest record plus 64 KiB"
	case keyTimestamp:
		return "the trail is dated by the broker's clock"
	case keyMinISR:
		return "losing one broker must lose nothing"
	}
	return "wanted by the product"
}

// Inspect is for programs that use one topic only, such as a classifier: its
// facts, if it exists and op is allowed on it. Errors: *MissingError,
// *RightError, and the network's. Without the right to read its settings,
// MaxMessageBytes is Kafka's default.
func Inspect(ctx context.Context, cl *kgo.Client, topic string, op Operation) (TopicFacts, error) {
	c := cluster{topics: make(map[string]topicState)}
	if err := c.metadata(ctx, cl, named([]string{topic}), func(string) bool { return true }); err != nil {
		return TopicFacts{}, err
	}
	t := c.topics[topic]
	if t.err != nil {
		return TopicFacts{}, Explain(t.err, Need(ResourceTopic, topic, op))
	}
	if !allowed(t.ops, op) {
		return TopicFacts{}, Need(ResourceTopic, topic, op)
	}
	if err := c.configs(ctx, cl); err != nil {
		return TopicFacts{}, err
	}
	return c.topics[topic].facts(), nil
}

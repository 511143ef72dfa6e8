package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Action is what a Change does to a topic.
type Action string

// The actions. Refuse changes nothing: it tells what cannot be mended.
const (
	CreateTopic   Action = "create"
	AlterConfig   Action = "alter"
	AddPartitions Action = "add-partitions"
	Refuse        Action = "refuse"
)

// Change is one step from the cluster as it is to the layout.
type Change struct {
	Action      Action          `json:"action"`
	Topic       string          `json:"topic"`
	Role        Role            `json:"role"`
	Partitions  int             `json:"partitions,omitempty"`  // create, add-partitions: the count afterwards
	Replication int             `json:"replication,omitempty"` // create
	Config      []SettingChange `json:"config,omitempty"`      // create, alter
	Reason      string          `json:"reason,omitempty"`      // refuse: what is wrong and who can mend it
}

// SettingChange is one setting of a Change.
type SettingChange struct {
	Key  string `json:"key"`
	From string `json:"from,omitempty"` // empty on create
	To   string `json:"to"`
}

// Plan compares the cluster with the layout and returns what Apply would do,
// in the layout's order; nothing if all is as wanted. Changes of settings that
// are stricter than wanted (longer retention, larger records) are not made.
// What cannot be mended is in the plan as Refuse. Errors: *RightError where a
// topic or its settings may not be read, a replication the cluster is too
// small for, and the network's.
func Plan(ctx context.Context, cl *kgo.Client, l Layout) ([]Change, error) {
	c, err := look(ctx, cl, l)
	if err != nil {
		return nil, err
	}
	l = l.withCluster(c)

	var changes []Change
	var faults []error
	for _, want := range l.Topics() {
		have := c.topics[want.Name]
		switch {
		case errors.Is(have.err, kerr.UnknownTopicOrPartition):
			if want.Replication > len(c.brokers) {
				return nil, fmt.Errorf("topics.replication: %d copies need %d brokers, the cluster has %d: add brokers, or set topics.replication to %d where losing one broker may lose records",
					want.Replication, want.Replication, len(c.brokers), len(c.brokers))
			}
			changes = append(changes, create(want))
		case have.err != nil:
			faults = append(faults, Explain(have.err, Need(ResourceTopic, want.Name, Describe)))
		case have.configErr != nil:
			faults = append(faults, Explain(have.configErr, Need(ResourceTopic, want.Name, DescribeConfigs)))
		default:
			changes = append(changes, compare(l, want, have)...)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return changes, nil
}

func create(want Topic) Change {
	ch := Change{Action: CreateTopic, Topic: want.Name, Role: want.Role, Partitions: want.Partitions, Replication: want.Replication}
	for _, s := range want.Config {
		ch.Config = append(ch.Config, SettingChange{Key: s.Key, To: s.Value})
	}
	return ch
}

// compare says what an existing topic lacks.
func compare(l Layout, want Topic, have topicState) []Change {
	var changes []Change
	alter := Change{Action: AlterConfig, Topic: want.Name, Role: want.Role}
	for _, s := range want.unmet(have) {
		alter.Config = append(alter.Config, SettingChange{Key: s.Key, From: have.config[s.Key], To: s.Value})
	}
	if len(alter.Config) > 0 {
		changes = append(changes, alter)
	}
	refuse := func(format string, args ...any) {
		changes = append(changes, Change{Action: Refuse, Topic: want.Name, Role: want.Role, Reason: fmt.Sprintf(format, args...)})
	}
	switch n := len(have.partitions); {
	case want.Role == RoleState && n != 1:
		refuse("it has %d partitions and must have exactly 1: delete it while no worker runs, then run `recon-dlq topics apply`", n)
	case want.Role == RoleAudit && l.Partitions > n:
		refuse("it has %d partitions, topics.partitions asks for %d: the partition count of the audit topic never changes, because each record's life is in order on one partition", n, l.Partitions)
	case (want.Role == RoleTier || want.Role == RoleHold || want.Role == RolePoison) && !want.leftover && l.Partitions > n:
		changes = append(changes, Change{Action: AddPartitions, Topic: want.Name, Role: want.Role, Partitions: l.Partitions})
	}
	// A source is the classifiers' own: how many copies it has is their choice.
	if n := have.replication(); want.Role != RoleSource && !want.leftover && n < want.Replication {
		refuse("it has %d copies, topics.replication asks for %d: add them with kafka-reassign-partitions.sh", n, want.Replication)
	}
	return changes
}

// unmet lists the wanted settings that an existing topic does not meet.
func (t Topic) unmet(have topicState) []Setting {
	var unmet []Setting
	for _, s := range t.Config {
		// Two acknowledgements of one or two copies would stop all writes when
		// a broker is away; and how a source is written is its writers' choice.
		if s.Key == keyMinISR && (t.Role == RoleSource || have.replication() < 3) {
			continue
		}
		if v, known := have.config[s.Key]; known && !s.met(v) {
			unmet = append(unmet, s)
		}
	}
	return unmet
}

// Apply makes the changes and waits until the cluster shows what was created.
// Refused changes are skipped; a topic that somebody else has created
// meanwhile is fine. All changes are tried; the error joins what failed, each
// naming its topic and, where a right is missing, the right.
func Apply(ctx context.Context, cl *kgo.Client, changes []Change) error {
	adm := kadm.NewClient(cl)
	var faults []error
	var created []string
	for _, ch := range changes {
		var err error
		switch ch.Action {
		case CreateTopic:
			if err = applyCreate(ctx, adm, ch); err == nil {
				created = append(created, ch.Topic)
			}
		case AlterConfig:
			err = applyAlter(ctx, adm, ch)
		case AddPartitions:
			err = applyPartitions(ctx, adm, ch)
		}
		if err != nil {
			faults = append(faults, err)
		}
		if ctx.Err() != nil {
			return errors.Join(append(faults, context.Cause(ctx))...)
		}
	}
	if err := awaitTopics(ctx, cl, created); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func applyCreate(ctx context.Context, adm *kadm.Client, ch Change) error {
	config := make(map[string]*string, len(ch.Config))
	for _, s := range ch.Config {
		config[s.Key] = kadm.StringPtr(s.To)
	}
	resp, err := adm.CreateTopics(ctx, int32(ch.Partitions), int16(ch.Replication), config, ch.Topic)
	if err != nil {
		return fmt.Errorf("create topic %q: %w", ch.Topic, err)
	}
	r := resp[ch.Topic]
	if errors.Is(r.Err, kerr.TopicAlreadyExists) {
		return nil
	}
	return answer("create", ch.Topic, r.Err, r.ErrMessage, Create)
}

func applyAlter(ctx context.Context, adm *kadm.Client, ch Change) error {
	alter := make([]kadm.AlterConfig, 0, len(ch.Config))
	for _, s := range ch.Config {
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: s.Key, Value: kadm.StringPtr(s.To)})
	}
	resp, err := adm.AlterTopicConfigs(ctx, alter, ch.Topic)
	if err != nil {
		return answer("alter", ch.Topic, err, "", AlterConfigs)
	}
	r, err := resp.On(ch.Topic, nil)
	if err != nil {
		return fmt.Errorf("alter topic %q: %w", ch.Topic, err)
	}
	return answer("alter", ch.Topic, r.Err, r.ErrMessage, AlterConfigs)
}

func applyPartitions(ctx context.Context, adm *kadm.Client, ch Change) error {
	resp, err := adm.UpdatePartitions(ctx, ch.Partitions, ch.Topic)
	if err != nil {
		return answer("add partitions to", ch.Topic, err, "", Alter)
	}
	r := resp[ch.Topic]
	return answer("add partitions to", ch.Topic, r.Err, r.ErrMessage, Alter)
}

// answer makes the error of one topic's answer. The broker's own message is
// kept: it is the only one that knows a create-topic policy's reason.
func answer(verb, topic string, err error, msg string, op Operation) error {
	if err == nil {
		return nil
	}
	if msg != "" {
		return fmt.Errorf("%s topic %q: %w (%s)", verb, topic, Explain(err, Need(ResourceTopic, topic, op)), msg)
	}
	return fmt.Errorf("%s topic %q: %w", verb, topic, Explain(err, Need(ResourceTopic, topic, op)))
}

// awaitTopics waits until every partition of the topics has a leader, so that
// a worker started next finds them. A broker learns of a new topic a moment
// after the controller has answered.
func awaitTopics(ctx context.Context, cl *kgo.Client, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := ""
		c := cluster{topics: make(map[string]topicState)}
		if err := c.metadata(ctx, cl, named(topics), func(string) bool { return true }); err == nil {
			for _, t := range topics {
				if !c.topics[t].led() {
					waiting = t
				}
			}
			if waiting == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topic %q was created, but has no leader yet: look at the brokers' health, then run `recon-dlq topics plan`: %w", waiting, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

const day = 24 * time.Hour

// layout is a layout with names of its own.
func layout() kafka.Layout { return layoutFor(brokers.NewNames(nil)) }

func layoutFor(n brokers.Names) kafka.Layout {
	return kafka.Layout{
		Sources: []string{n.Source}, RetryPrefix: n.Retry, HoldPrefix: n.Hold,
		Poison: n.Poison, Audit: n.Audit, State: n.State,
		Tiers: []time.Duration{10 * time.Second, time.Hour}, Holds: []string{"ledger"},
		Replication: 1, Retention: 15 * day, Groups: []string{n.Group},
	}
}

// tier is the name of a tier of l.
func tier(l kafka.Layout, d time.Duration) string { return l.RetryPrefix + policy.FormatDelay(d) }

// applied is a client on a cluster where l has been applied.
func applied(t *testing.T, b brokers.Broker, l kafka.Layout) *kgo.Client {
	t.Helper()
	cl := brokers.Client(t, b.Opts()...)
	apply(t, cl, l)
	return cl
}

func apply(t *testing.T, cl *kgo.Client, l kafka.Layout) {
	t.Helper()
	if err := kafka.Apply(t.Context(), cl, plan(t, cl, l)); err != nil {
		t.Fatalf("Apply: %v", err)
	}
}

func plan(t *testing.T, cl *kgo.Client, l kafka.Layout) []kafka.Change {
	t.Helper()
	changes, err := kafka.Plan(t.Context(), cl, l)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return changes
}

// set sets one topic setting.
func set(t *testing.T, cl *kgo.Client, topic, key, value string) {
	t.Helper()
	resp, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err == nil {
		_, err = resp.On(topic, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		t.Fatalf("set %s of %s: %v", key, topic, err)
	}
	// A setting takes effect a moment after the controller has answered.
	for range 200 {
		have, err := kadm.NewClient(cl).DescribeTopicConfigs(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range have[0].Configs {
			if c.Key == key && c.MaybeValue() == value {
				return
			}
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatalf("%s of %s does not become %s", key, topic, value)
}

func create(t *testing.T, cl *kgo.Client, partitions int32, config map[string]string, topic string) {
	t.Helper()
	pointers := make(map[string]*string)
	for k, v := range config {
		pointers[k] = &v
	}
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), partitions, 1, pointers, topic); err != nil {
		t.Fatalf("create %s: %v", topic, err)
	}
}

func TestTheLayoutFollowsTheDesignsTable(t *testing.T) {
	l := layout()
	l.Replication = 3
	l.SourceMaxBytes = 2 << 20
	l.SourcePartitions = 6
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	bigger := strconv.Itoa(2<<20 + 64<<10)

	type want struct {
		role       kafka.Role
		partitions int
		config     map[string]string
	}
	wants := map[string]want{
		l.Sources[0]:            {kafka.RoleSource, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": ms(15 * day)}},
		tier(l, 10*time.Second): {kafka.RoleTier, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": ms(15*day + 10*time.Second), "max.message.bytes": bigger}},
		tier(l, time.Hour):      {kafka.RoleTier, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": ms(15*day + time.Hour), "max.message.bytes": bigger}},
		l.HoldPrefix + "ledger": {kafka.RoleHold, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": ms(15 * day), "max.message.bytes": bigger}},
		l.Poison:                {kafka.RolePoison, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": bigger}},
		l.Audit:                 {kafka.RoleAudit, 6, map[string]string{"cleanup.policy": "delete", "retention.ms": ms(400 * day), "message.timestamp.type": "LogAppendTime"}},
		l.State:                 {kafka.RoleState, 1, map[string]string{"cleanup.policy": "compact"}},
	}
	topics := l.Topics()
	if len(topics) != len(wants) {
		t.Errorf("%d topics, want %d", len(topics), len(wants))
	}
	for _, got := range topics {
		w, ok := wants[got.Name]
		if !ok {
			t.Errorf("unexpected topic %s", got.Name)
			continue
		}
		w.config["retention.bytes"] = "-1"
		w.config["min.insync.replicas"] = "2"
		config := make(map[string]string)
		for _, s := range got.Config {
			config[s.Key] = s.Value
		}
		if got.Role != w.role || got.Partitions != w.partitions || got.Replication != 3 || fmt.Sprint(config) != fmt.Sprint(w.config) {
			t.Errorf("%s is %s with %d partitions, %d copies and %v\nwant %s with %d, 3 and %v",
				got.Name, got.Role, got.Partitions, got.Replication, config, w.role, w.partitions, w.config)
		}
	}
}

func TestASourceIsKeptForTheLongestSLAAndWaitAndAWeek(t *testing.T) {
	rules := []policy.Rule{
		{Name: "slow", Category: "slow", Target: "ledger", Attempts: 2, Delays: []time.Duration{20 * day}, MaxAge: 30 * day},
		{Name: "default", Target: "ledger", Attempts: 2, Delays: []time.Duration{time.Minute}, MaxAge: day},
	}
	p, err := policy.New(policy.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	l := kafka.Layout{}.ForRules(p, rules)
	if want := 30*day + 20*day + 7*day; l.Retention != want {
		t.Errorf("retention is %s, want %s", l.Retention, want)
	}
	if want := []time.Duration{time.Minute, 20 * day}; !slices.Equal(l.Tiers, want) {
		t.Errorf("tiers are %v, want %v", l.Tiers, want)
	}
}

func TestApplyMakesWhatVerifyWantsAndThenHasNothingToDo(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		l := layout()
		cl := brokers.Client(t, b.Opts()...)
		changes := plan(t, cl, l)
		if len(changes) != 7 {
			t.Errorf("%d changes, want 7 topics to create: %v", len(changes), changes)
		}
		if err := kafka.Apply(t.Context(), cl, changes); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		facts, err := kafka.Verify(t.Context(), cl, l)
		if err != nil {
			t.Fatalf("Verify: %v", err)
		}
		if len(facts.Warnings) > 0 {
			t.Errorf("warnings: %q", facts.Warnings)
		}
		if facts.ClusterID == "" || facts.OffsetMetadataMaxBytes != 4096 {
			t.Errorf("facts are %+v", facts)
		}
		poison := facts.Topics[l.Poison]
		if poison.Partitions != 3 || poison.MaxMessageBytes != kafka.DefaultMaxMessageBytes+64<<10 || poison.ID == [16]byte{} {
			t.Errorf("facts of poison are %+v", poison)
		}
		if again := plan(t, cl, l); len(again) != 0 {
			t.Errorf("after apply there is still to do: %+v", again)
		}
		// A plan that is older than somebody else's apply is no failure.
		if err := kafka.Apply(t.Context(), cl, changes); err != nil {
			t.Errorf("Apply again: %v", err)
		}
	})
}

func TestCreatedTopicsHaveAsManyPartitionsAsTheLargestSource(t *testing.T) {
	b := brokers.NewKfake(t)
	cl := brokers.Client(t, b.Opts()...)
	l := layout()
	l.Sources = append(l.Sources, l.Sources[0]+".second")
	create(t, cl, 2, nil, l.Sources[0])
	create(t, cl, 5, map[string]string{"max.message.bytes": "3000000"}, l.Sources[1])
	for _, ch := range plan(t, cl, l) {
		switch {
		case ch.Action == kafka.AlterConfig:
			if ch.Role != kafka.RoleSource {
				t.Errorf("unexpected change %+v", ch)
			}
		case ch.Role == kafka.RoleState:
			if ch.Partitions != 1 {
				t.Errorf("state gets %d partitions", ch.Partitions)
			}
		case ch.Partitions != 5:
			t.Errorf("%s gets %d partitions, want 5", ch.Topic, ch.Partitions)
		}
		if ch.Role == kafka.RolePoison && !slices.Contains(ch.Config, kafka.SettingChange{Key: "max.message.bytes", To: "3065536"}) {
			t.Errorf("poison does not take the larger source's records: %+v", ch.Config)
		}
	}
}

// refusals are the ways a topic can be wrong so that the worker must not start.
// Each is mended by apply.
var refusals = []struct {
	name       string
	topic      func(kafka.Layout) string
	key, value string
	why        string
}{
	{"a compacted tier", func(l kafka.Layout) string { return tier(l, time.Hour) }, "cleanup.policy", "compact", "last record of a key"},
	{"a tier that is compacted too", func(l kafka.Layout) string { return tier(l, time.Hour) }, "cleanup.policy", "compact,delete", "last record of a key"},
	{"a compacted source", func(l kafka.Layout) string { return l.Sources[0] }, "cleanup.policy", "compact", "last record of a key"},
	{"a compacted poison topic", func(l kafka.Layout) string { return l.Poison }, "cleanup.policy", "compact", "last record of a key"},
	{"a source kept too short", func(l kafka.Layout) string { return l.Sources[0] }, "retention.ms", "604800000", "SLA"},
	{"a tier kept as long as the source only", func(l kafka.Layout) string { return tier(l, time.Hour) }, "retention.ms", "1296000000", "its delay"},
	{"a poison topic that forgets", func(l kafka.Layout) string { return l.Poison }, "retention.ms", "1296000000000", "never deleted by age"},
	{"a source limited by size", func(l kafka.Layout) string { return l.Sources[0] }, "retention.bytes", "1073741824", "by size"},
	{"a tier limited by size", func(l kafka.Layout) string { return tier(l, 10*time.Second) }, "retention.bytes", "1073741824", "by size"},
	{"a tier for smaller records than the source", func(l kafka.Layout) string { return tier(l, time.Hour) }, "max.message.bytes", "1048588", "64 KiB"},
	{"a poison topic for smaller records than the source", func(l kafka.Layout) string { return l.Poison }, "max.message.bytes", "1048588", "64 KiB"},
	{"an audit topic dated by the worker", func(l kafka.Layout) string { return l.Audit }, "message.timestamp.type", "CreateTime", "broker's clock"},
}

func TestVerifyRefusesWhatWouldLoseRecordsAndApplyMendsIt(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		l := layout()
		cl := applied(t, b, l)
		for _, tt := range refusals {
			t.Run(tt.name, func(t *testing.T) {
				topic := tt.topic(l)
				set(t, cl, topic, tt.key, tt.value)
				_, err := kafka.Verify(t.Context(), cl, l)
				fault, ok := errors.AsType[*kafka.SettingError](err)
				if !ok {
					t.Fatalf("Verify says %v", err)
				}
				if fault.Topic != topic || fault.Key != tt.key || fault.Have != tt.value {
					t.Errorf("fault is %+v", fault)
				}
				for _, want := range []string{topic, tt.key, tt.value, tt.why, "recon-dlq topics apply"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not say %q", err, want)
					}
				}
				changes := plan(t, cl, l)
				if len(changes) != 1 || changes[0].Action != kafka.AlterConfig || changes[0].Topic != topic || len(changes[0].Config) != 1 ||
					changes[0].Config[0].Key != tt.key || changes[0].Config[0].From != tt.value {
					t.Errorf("plan is %+v", changes)
				}
				if err := kafka.Apply(t.Context(), cl, changes); err != nil {
					t.Fatalf("Apply: %v", err)
				}
				await(t, func() error {
					_, err := kafka.Verify(t.Context(), cl, l)
					return err
				})
			})
		}
	})
}

// await tries until fn has no error: a broker learns of a change a moment after the controller.
func await(t *testing.T, fn func() error) {
	t.Helper()
	var err error
	for range 200 {
		if err = fn(); err == nil {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatalf("still: %v", err)
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	for _, tt := range refusals {
		if tt.value != "compact" { // else the second of the two would hide the first
			set(t, cl, tt.topic(l), tt.key, tt.value)
		}
	}
	l.Tiers = append(l.Tiers, time.Minute)
	_, err := kafka.Verify(t.Context(), cl, l)
	if err == nil {
		t.Fatal("Verify is content")
	}
	for _, tt := range refusals {
		if tt.value != "compact" && !strings.Contains(err.Error(), fmt.Sprintf("topic %q: %s is %s", tt.topic(l), tt.key, tt.value)) {
			t.Errorf("the error does not name %s:\n%v", tt.name, err)
		}
	}
	if !strings.Contains(err.Error(), "missing topic: "+tier(l, time.Minute)) {
		t.Errorf("the error does not name the missing tier:\n%v", err)
	}
}

func TestAllMissingTopicsAreNamedAtOnceWithTheFix(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		l := layout()
		cl := brokers.Client(t, b.Opts()...)
		_, err := kafka.Verify(t.Context(), cl, l)
		missing, ok := errors.AsType[*kafka.MissingError](err)
		if !ok {
			t.Fatalf("Verify says %v", err)
		}
		want := []string{l.Sources[0], tier(l, 10*time.Second), tier(l, time.Hour), l.Poison, l.Audit}
		if !slices.Equal(missing.Topics, want) {
			t.Errorf("missing are %q\nwant %q: hold and state topics are not needed to start", missing.Topics, want)
		}
		if !strings.Contains(err.Error(), "run `recon-dlq topics apply`") {
			t.Errorf("error %q does not name the fix", err)
		}
	})
}

func TestStricterSettingsThanWantedAreLeftAlone(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	set(t, cl, l.Sources[0], "retention.ms", "-1")
	set(t, cl, tier(l, time.Hour), "retention.ms", "9996000000")
	set(t, cl, l.Audit, "retention.ms", "-1")
	set(t, cl, l.Poison, "max.message.bytes", "9000000")
	if changes := plan(t, cl, l); len(changes) > 0 {
		t.Errorf("plan is %+v", changes)
	}
	if facts, err := kafka.Verify(t.Context(), cl, l); err != nil || len(facts.Warnings) > 0 {
		t.Errorf("Verify says %v, warns %q", err, facts.Warnings)
	}
}

func TestAnAuditTopicKeptTooShortIsAWarning(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	set(t, cl, l.Audit, "retention.ms", "604800000")
	facts, err := kafka.Verify(t.Context(), cl, l)
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if len(facts.Warnings) != 1 || !strings.Contains(facts.Warnings[0], "kept for 400 days") {
		t.Errorf("warnings are %q", facts.Warnings)
	}
}

func TestATierThatIsNoLongerConfiguredIsStillChecked(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	// 90s is not how policy writes it, but a tier all the same; nobody else's topic is one.
	left := l.RetryPrefix + "1m30s"
	create(t, cl, 3, map[string]string{"retention.ms": "604800000"}, left)
	create(t, cl, 3, map[string]string{"cleanup.policy": "compact"}, l.RetryPrefix+"notes")

	_, err := kafka.Verify(t.Context(), cl, l)
	if err == nil || !strings.Contains(err.Error(), left) || strings.Contains(err.Error(), "notes") {
		t.Fatalf("Verify says %v", err)
	}
	apply(t, cl, l)
	facts, err := kafka.Verify(t.Context(), cl, l)
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if _, ok := facts.Topics[left]; !ok {
		t.Errorf("%s is not in the facts", left)
	}
}

func TestWhatCannotBeMendedIsRefusedAndTheRestIsDone(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		l := layout()
		cl := applied(t, b, l)
		l.Partitions = 6
		changes := plan(t, cl, l)
		actions := make(map[string]kafka.Change)
		for _, ch := range changes {
			actions[ch.Topic] = ch
		}
		if ch := actions[l.Audit]; ch.Action != kafka.Refuse || !strings.Contains(ch.Reason, "the partition count of the audit topic never changes") {
			t.Errorf("audit: %+v", ch)
		}
		for _, topic := range []string{tier(l, time.Hour), l.Poison, l.HoldPrefix + "ledger"} {
			if ch := actions[topic]; ch.Action != kafka.AddPartitions || ch.Partitions != 6 {
				t.Errorf("%s: %+v", topic, ch)
			}
		}
		for _, topic := range []string{l.Sources[0], l.State} {
			if ch, ok := actions[topic]; ok {
				t.Errorf("%s: %+v", topic, ch)
			}
		}
		if err := kafka.Apply(t.Context(), cl, changes); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		await(t, func() error {
			for _, ch := range plan(t, cl, l) {
				if ch.Action != kafka.Refuse {
					return fmt.Errorf("still to do: %+v", ch)
				}
			}
			return nil
		})
	})
}

func TestAReplicationTheClusterIsTooSmallForIsAClearError(t *testing.T) {
	l := layout()
	l.Replication = 3
	cl := brokers.Client(t, brokers.NewKfake(t).Opts()...)
	_, err := kafka.Plan(t.Context(), cl, l)
	if err == nil || !strings.Contains(err.Error(), "topics.replication: 3 copies need 3 brokers, the cluster has 1") {
		t.Errorf("error is %v", err)
	}
}

func TestFewerCopiesThanConfiguredAreToldAndDoNotStopTheWorker(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	l.Replication = 3
	changes := plan(t, cl, l)
	for _, ch := range changes {
		if ch.Action != kafka.Refuse || !strings.Contains(ch.Reason, "kafka-reassign-partitions.sh") {
			t.Errorf("change is %+v", ch)
		}
	}
	if len(changes) != 6 { // all but the source, which is its writers' own
		t.Errorf("%d changes: %+v", len(changes), changes)
	}
	facts, err := kafka.Verify(t.Context(), cl, l)
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if !strings.Contains(strings.Join(facts.Warnings, "\n"), fmt.Sprintf("topic %q: it has 1 copies", l.Poison)) {
		t.Errorf("warnings are %q", facts.Warnings)
	}
}

func TestOnThreeBrokersEachWriteIsOnTwoOfThem(t *testing.T) {
	l := layout()
	l.Replication = 3
	cl := applied(t, brokers.NewKfake(t, kfake.NumBrokers(3)), l)
	facts, err := kafka.Verify(t.Context(), cl, l)
	if err != nil || len(facts.Warnings) > 0 {
		t.Fatalf("Verify says %v, warns %q", err, facts.Warnings)
	}
	set(t, cl, l.Poison, "min.insync.replicas", "1")
	facts, err = kafka.Verify(t.Context(), cl, l)
	if err != nil || len(facts.Warnings) != 1 || !strings.Contains(facts.Warnings[0], "losing one broker must lose nothing") {
		t.Errorf("Verify says %v, warns %q", err, facts.Warnings)
	}
	// One acknowledgement is a source's writers' own choice.
	set(t, cl, l.Sources[0], "min.insync.replicas", "1")
	changes := plan(t, cl, l)
	if len(changes) != 1 || changes[0].Topic != l.Poison {
		t.Errorf("plan is %+v", changes)
	}
}

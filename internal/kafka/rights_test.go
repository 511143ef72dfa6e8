package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// grant gives the worker what it needs on l, less what skip names.
func grant(t *testing.T, admin *kadm.Client, l kafka.Layout, skip func(kafka.RightError) bool) {
	t.Helper()
	for _, r := range workerRights(l) {
		if skip(r) {
			continue
		}
		acl := kadm.NewACLs().Allow("User:ANONYMOUS").AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral)
		if r.Resource == kafka.ResourceGroup {
			acl.Groups(r.Name)
		} else {
			acl.Topics(r.Name)
		}
		acl.Operations(map[kafka.Operation]kadm.ACLOperation{kafka.Read: kadm.OpRead, kafka.Write: kadm.OpWrite}[r.Operation])
		made, err := admin.CreateACLs(t.Context(), acl)
		if err == nil && len(made) > 0 {
			err = made[0].Err
		}
		if err != nil {
			t.Fatalf("grant %v: %v", r, err)
		}
	}
}

// workerRights are what docs/topics.md says a worker needs.
func workerRights(l kafka.Layout) []kafka.RightError {
	rights := []kafka.RightError{
		{Resource: kafka.ResourceTopic, Name: l.Sources[0], Operation: kafka.Read},
		{Resource: kafka.ResourceTopic, Name: l.Poison, Operation: kafka.Read},
		{Resource: kafka.ResourceTopic, Name: l.Poison, Operation: kafka.Write},
		{Resource: kafka.ResourceTopic, Name: l.Audit, Operation: kafka.Write},
		{Resource: kafka.ResourceGroup, Name: l.Groups[0], Operation: kafka.Read},
	}
	for _, d := range l.Tiers {
		rights = append(rights,
			kafka.RightError{Resource: kafka.ResourceTopic, Name: tier(l, d), Operation: kafka.Read},
			kafka.RightError{Resource: kafka.ResourceTopic, Name: tier(l, d), Operation: kafka.Write})
	}
	return rights
}

func TestEachMissingRightIsNamedWithItsGrant(t *testing.T) {
	b := brokers.NewKafka(t, brokers.Options{Authorizer: true})
	super := brokers.Client(t, b.AdminOpts()...)
	admin := kadm.NewClient(super)
	worker := brokers.Client(t, b.Opts()...)

	check := func(t *testing.T, l kafka.Layout, missing []kafka.RightError) kafka.Facts {
		t.Helper()
		var facts kafka.Facts
		await(t, func() error { // grants reach the broker a moment after the controller
			start := time.Now()
			var err error
			facts, err = kafka.Verify(t.Context(), worker, l)
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("Verify took %s", took)
			}
			got := rightErrors(err)
			if !sameRights(got, missing) {
				return fmt.Errorf("missing are %v\nwant %v", got, missing)
			}
			return nil
		})
		return facts
	}

	t.Run("all of them", func(t *testing.T) {
		l := layout()
		apply(t, super, l)
		check(t, l, workerRights(l))
	})
	for i, r := range workerRights(layout()) {
		t.Run(fmt.Sprintf("%s %s %d", r.Operation, r.Resource, i), func(t *testing.T) {
			l := layout()
			apply(t, super, l)
			r := workerRights(l)[i]
			grant(t, admin, l, func(have kafka.RightError) bool { return have == r })
			check(t, l, []kafka.RightError{r})
		})
	}
	t.Run("none", func(t *testing.T) {
		l := layout()
		apply(t, super, l)
		grant(t, admin, l, func(kafka.RightError) bool { return false })
		facts := check(t, l, nil)
		warnings := strings.Join(facts.Warnings, "\n")
		if !strings.Contains(warnings, fmt.Sprintf("topic %q: its settings cannot be read", l.Poison)) || !strings.Contains(warnings, "grant DESCRIBE_CONFIGS") {
			t.Errorf("settings that may not be read are not told: %q", facts.Warnings)
		}
		if facts.OffsetMetadataMaxBytes != kafka.DefaultOffsetMetadataBytes || facts.Topics[l.Poison].MaxMessageBytes != kafka.DefaultMaxMessageBytes {
			t.Errorf("facts are %+v, want Kafka's defaults", facts)
		}
	})
	t.Run("a missing topic is not taken for a missing right", func(t *testing.T) {
		l := layout()
		grant(t, admin, l, func(kafka.RightError) bool { return false })
		await(t, func() error {
			_, err := kafka.Verify(t.Context(), worker, l)
			missing, ok := errors.AsType[*kafka.MissingError](err)
			if !ok || len(missing.Topics) != 5 || len(rightErrors(err)) > 0 {
				return fmt.Errorf("verify says %w", err)
			}
			return nil
		})
	})
	t.Run("topics plan and apply", func(t *testing.T) {
		l := layout()
		_, err := kafka.Plan(t.Context(), worker, l)
		if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("missing right: DESCRIBE on topic %q", l.Audit)) {
			t.Errorf("Plan says %v", err)
		}
		changes := plan(t, super, l)
		err = kafka.Apply(t.Context(), worker, changes)
		if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("missing right: CREATE on topic %q", l.Audit)) {
			t.Errorf("Apply says %v", err)
		}
	})
	t.Run("a transactional id", func(t *testing.T) {
		cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID("recon-dlq.0.0"))...)
		_, _, err := cl.ProducerID(t.Context())
		err = kafka.Explain(err, kafka.Need(kafka.ResourceTransactional, "recon-dlq.0.0", kafka.Write))
		right, ok := errors.AsType[*kafka.RightError](err)
		if !ok || right.Resource != kafka.ResourceTransactional || !strings.Contains(err.Error(), `--operation WRITE --transactional-id "recon-dlq.0.0"`) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("the documented grants are enough", func(t *testing.T) {
		n := brokers.NewNames(nil)
		l := layoutFor(n)
		l.Groups = append(l.Groups, n.Group+".escalation")
		apply(t, super, l)
		for _, acl := range documentedGrants(t, n, "worker") {
			made, err := admin.CreateACLs(t.Context(), acl)
			if err != nil || len(made) == 0 || made[0].Err != nil {
				t.Fatalf("grant: %v, %+v", err, made)
			}
		}
		await(t, func() error {
			facts, err := kafka.Verify(t.Context(), worker, l)
			if err == nil && len(facts.Warnings) > 0 {
				return fmt.Errorf("warnings: %q", facts.Warnings)
			}
			return err
		})
		cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID(n.Group+".one.0"))...)
		if _, _, err := cl.ProducerID(t.Context()); err != nil {
			t.Errorf("the transactional id is refused: %v", err)
		}
	})
	t.Run("the documented grant of a classifier is enough", func(t *testing.T) {
		n := brokers.NewNames(nil)
		apply(t, super, layoutFor(n))
		for _, acl := range documentedGrants(t, n, "classifier") {
			if _, err := admin.CreateACLs(t.Context(), acl); err != nil {
				t.Fatal(err)
			}
		}
		await(t, func() error {
			_, err := kafka.Inspect(t.Context(), worker, n.Source, kafka.Write)
			return err
		})
		if err := worker.ProduceSync(t.Context(), &kgo.Record{Topic: n.Source, Value: []byte("{}")}).FirstErr(); err != nil {
			t.Errorf("produce: %v", err)
		}
	})
	t.Run("one topic only", func(t *testing.T) {
		l := layout()
		apply(t, super, l)
		_, err := kafka.Inspect(t.Context(), worker, l.Sources[0], kafka.Write)
		if want := []kafka.RightError{{Resource: kafka.ResourceTopic, Name: l.Sources[0], Operation: kafka.Write}}; !sameRights(rightErrors(err), want) {
			t.Errorf("error is %v", err)
		}
	})
}

// rightErrors finds all rights in an error that Verify joined.
func rightErrors(err error) []kafka.RightError {
	var rights []kafka.RightError
	switch e := err.(type) { //nolint:errorlint // walks the tree itself, to find more than the first
	case *kafka.RightError:
		return []kafka.RightError{*e}
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			rights = append(rights, rightErrors(err)...)
		}
	case interface{ Unwrap() error }:
		return rightErrors(e.Unwrap())
	}
	return rights
}

func sameRights(a, b []kafka.RightError) bool {
	text := func(rights []kafka.RightError) []string {
		var s []string
		for _, r := range rights {
			s = append(s, fmt.Sprintf("%s %s %s", r.Resource, r.Name, r.Operation))
		}
		slices.Sort(s)
		return s
	}
	return slices.Equal(text(a), text(b))
}

func TestExplainNamesThePlaceAndTheFixAndKeepsTheError(t *testing.T) {
	need := kafka.Need(kafka.ResourceTopic, "recon.dlq", kafka.Read)
	tests := []struct {
		err  error
		need *kafka.RightError
		want string
	}{
		{kerr.TopicAuthorizationFailed, need, `missing right: READ on topic "recon.dlq": grant it with kafka-acls.sh --add --allow-principal User:NAME --operation READ --topic "recon.dlq"`},
		{kerr.GroupAuthorizationFailed, kafka.Need(kafka.ResourceGroup, "recon-dlq", kafka.Read), `--operation READ --group "recon-dlq"`},
		{kerr.TransactionalIDAuthorizationFailed, kafka.Need(kafka.ResourceTransactional, "recon-dlq.a.0", kafka.Write), `--operation WRITE --transactional-id "recon-dlq.a.0"`},
		{kerr.ClusterAuthorizationFailed, kafka.Need(kafka.ResourceCluster, "", kafka.Create), "missing right: CREATE on the cluster: grant it with kafka-acls.sh --add --allow-principal User:NAME --operation CREATE --cluster"},
		{kerr.UnknownTopicOrPartition, need, "missing topic: recon.dlq: run `recon-dlq topics apply`"},
		{kerr.FencedInstanceID, kafka.Need(kafka.ResourceGroup, "recon-dlq", kafka.Read), "in use by somebody else: give each worker a kafka.instance of its own"},
		{kerr.SaslAuthenticationFailed, need, "does not accept this identity"},
		{kerr.NotLeaderForPartition, need, `topic "recon.dlq": while working: NOT_LEADER`},
	}
	for _, tt := range tests {
		got := kafka.Explain(fmt.Errorf("while working: %w", tt.err), tt.need)
		if !strings.Contains(got.Error(), tt.want) {
			t.Errorf("%v is explained as %q, which does not say %q", tt.err, got, tt.want)
		}
		if !errors.Is(got, tt.err) {
			t.Errorf("%q is no longer %v", got, tt.err)
		}
	}
	if kafka.Explain(nil, need) != nil {
		t.Error("no error is explained as one")
	}
}

package cli

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestTopicsPlanChangesNothingAndApplyIsNeededOnce(t *testing.T) {
	b := brokers.NewKfake(t)
	c := newCluster(t, b.Addrs()...)

	for range 2 { // planning is not doing
		code, out, stderr := c.run(t.Context(), nil, "topics", "plan")
		if code != ExitOK || stderr != "" {
			t.Fatalf("plan: exit %d, %s", code, stderr)
		}
		if n := strings.Count(out, "create  "); n != 8 {
			t.Errorf("plan creates %d topics, want 8:\n%s", n, out)
		}
		if want := "retention.ms=1296001000"; !strings.Contains(out, c.names.Tier(1e9)) || !strings.Contains(out, want) {
			t.Errorf("plan does not say %s:\n%s", want, out)
		}
	}
	code, out, stderr := c.run(t.Context(), nil, "topics", "apply")
	if code != ExitOK || stderr != "" {
		t.Fatalf("apply: exit %d, %s", code, stderr)
	}
	if n := strings.Count(out, "create  "); n != 8 {
		t.Errorf("apply creates %d topics, want 8:\n%s", n, out)
	}
	for _, verb := range []string{"plan", "apply"} {
		code, out, stderr := c.run(t.Context(), nil, "topics", verb)
		if code != ExitOK || out != "" || !strings.Contains(stderr, "nothing to do") {
			t.Errorf("%s afterwards: exit %d, %q, %q", verb, code, out, stderr)
		}
		code, out, _ = c.run(t.Context(), nil, "topics", verb, "-o", "json")
		if p := decode[planned](t, out); code != ExitOK || p.Changes == nil || len(p.Changes) != 0 {
			t.Errorf("%s -o json afterwards: exit %d, %q", verb, code, out)
		}
	}
}

func TestTopicsApplyIsPartialWhereSomethingCannotBeMended(t *testing.T) {
	b := brokers.NewKfake(t)
	c := newCluster(t, b.Addrs()...)
	adm := kadm.NewClient(brokers.Client(t, b.Opts()...))
	if _, err := adm.CreateTopic(t.Context(), 2, 1, nil, c.names.State); err != nil {
		t.Fatal(err)
	}
	code, out, _ := c.run(t.Context(), nil, "topics", "plan", "-o", "json")
	if p := decode[planned](t, out); code != ExitOK || p.Refused != 1 {
		t.Errorf("plan: exit %d, %+v", code, p)
	}
	code, out, stderr := c.run(t.Context(), nil, "topics", "apply")
	if code != ExitPartial || !strings.Contains(stderr, "1 of 9 changes cannot be made") {
		t.Errorf("apply: exit %d, %s", code, stderr)
	}
	if !strings.Contains(out, "refuse  "+c.names.State) || !strings.Contains(out, "must have exactly 1") {
		t.Errorf("apply does not say what it refuses:\n%s", out)
	}
	if _, err := adm.DescribeTopicConfigs(t.Context(), c.names.Poison); err != nil {
		t.Errorf("the rest was not done: %v", err)
	}
}

func TestTopicsSaysWhenNoBrokerCanBeReached(t *testing.T) {
	c := newCluster(t, "127.0.0.1:1")
	code, _, stderr := c.run(t.Context(), nil, "topics", "plan")
	if code != ExitFailed || !strings.Contains(stderr, "kafka.brokers: cannot reach 127.0.0.1:1: connection refused") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

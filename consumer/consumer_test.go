package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

func TestAnEngineThatCouldNotCallATargetIsNotMade(t *testing.T) {
	p, err := policy.New(policy.Options{Rules: []policy.Rule{
		{Name: "ledger", Category: "a", Target: "ledger", Attempts: 2, Delays: []time.Duration{time.Second}, MaxAge: time.Hour},
		{Name: "default", Target: "other", Attempts: 2, Delays: []time.Duration{time.Second}, MaxAge: time.Hour},
	}})
	if err != nil {
		t.Fatal(err)
	}
	mux := remedy.NewMux()
	mux.HandleFunc("ledger", func(context.Context, *deadletter.Record) deadletter.Outcome { return deadletter.Outcome{} })
	whole := func() Options {
		return Options{
			Group: "g", ClusterID: "c", Sources: []string{"s"}, RetryPrefix: "s.retry.", Poison: "s.poison", Audit: "s.audit", AuditPartitions: 1,
			Policy: p, Mux: mux, Targets: []Target{{Name: "ledger", Timeout: time.Second}},
		}
	}
	for name, want := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"a rule's target is missing": {func(*Options) {}, `"other"`},
		"a target without a handler": {func(o *Options) { o.Targets = append(o.Targets, Target{Name: "none", Timeout: time.Second}) }, `"none" has no handler`},
		"a timeout past the drain":   {func(o *Options) { o.Targets[0].Timeout = time.Minute }, "drain bound"},
		"no poison topic":            {func(o *Options) { o.Poison = "" }, "poison"},
		"no cluster id":              {func(o *Options) { o.ClusterID = "" }, "cluster id"},
	} {
		o := whole()
		want.change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

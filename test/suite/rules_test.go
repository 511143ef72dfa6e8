package suite

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// What decides is named wherever its decision is seen.
func TestRulesMatchValuesHeadersAndFailuresAndNameThemselves(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			switch r.DiscrepancyID {
			case "gone":
				return deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_404", Status: 404, Code: "E42", Message: "no such entry"}
			case "late":
				if r.Attempt == 0 {
					return failing
				}
			}
			return resolved
		})
		var gold tally
		x.play("gold", func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			gold.next(r.DiscrepancyID)
			return resolved
		})
		last := x.rules[0]
		x.rules = append([]policy.Rule{
			{Name: "people", Match: policy.Match{Value: []policy.ValueMatch{{Path: "$.context.kind", Is: "manual"}}}},
			{Name: "gold", Match: policy.Match{Header: []policy.HeaderMatch{{Name: "x-tier", Is: "gold*"}}}, Target: "gold", Attempts: 1, MaxAge: time.Hour},
			{Name: "missing", Match: policy.Match{Status: []string{"404"}, Code: []string{"E4?"}}},
		}, x.rules...)
		record := func(id, context string, headers ...kgo.RecordHeader) *kgo.Record {
			return &kgo.Record{Topic: x.names.Source, Headers: headers,
				Value: []byte(`{"discrepancy_id":"` + id + `","category":"c","context":` + context + `,"enqueued_ms":0}`)}
		}
		brokers.Produce(t, b,
			record("manual", `{"kind":"manual"}`),
			record("gold", `{"kind":"other"}`, kgo.RecordHeader{Key: "x-tier", Value: []byte("golden")}),
			record("gone", `{}`),
			record("late", `{}`))
		w := x.start()
		x.settled(4, w)
		rep := x.check(true)
		if rep.Poisoned != 2 || rep.Resolved != 2 || rep.Retried != 1 || gold.of("gold") != 1 {
			t.Errorf("poisoned %d, resolved %d, retried %d, gold was called %d times", rep.Poisoned, rep.Resolved, rep.Retried, gold.of("gold"))
		}
		want := map[string][4]string{ // rule, reason, status, code
			"manual": {"people", deadletter.ReasonManual, "", ""},
			"gone":   {"missing", deadletter.ReasonPermanent, "404", "E42"},
		}
		for _, r := range x.read(x.names.Poison) {
			got := [4]string{header(r, deadletter.HeaderRule), header(r, deadletter.HeaderReason), header(r, deadletter.HeaderErrorStatus), header(r, deadletter.HeaderErrorCode)}
			if got != want[discrepancy(r)] {
				t.Errorf("%s is in poison with %v, want %v", discrepancy(r), got, want[discrepancy(r)])
			}
		}
		rules := map[string]string{}
		for _, r := range x.read(x.names.Audit) {
			e, err := audit.Parse(r.Value)
			if err != nil {
				t.Fatal(err)
			}
			if e.Type != audit.Enqueued {
				rules[e.Subject+" "+string(e.Type)] = e.Rule
			}
		}
		for event, rule := range map[string]string{
			"manual " + string(audit.Poisoned): "people", "gold " + string(audit.Resolved): "gold", "gone " + string(audit.Poisoned): "missing",
			"late " + string(audit.RetryScheduled): last.Name, "late " + string(audit.Resolved): last.Name,
		} {
			if rules[event] != rule {
				t.Errorf("%s by rule %q, want %q", event, rules[event], rule)
			}
		}
	})
}

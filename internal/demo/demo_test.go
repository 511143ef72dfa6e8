package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/demo/data"
	"github.com/recon-dlq/recon-dlq/internal/demo/ledger"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// short is a script of some seconds, with everything in it that the whole one has.
func short() Script {
	s := DefaultScript()
	var few []data.Discrepancy
	for i, d := range s.Records {
		if i < 240 || d.Malformed || d.Hopeless {
			few = append(few, d)
		}
	}
	s.Records, s.First, s.Rate, s.DownAt, s.Outage, s.Patience = few, 120, 100, 60, 2*time.Second, time.Minute
	s.Faults = faults(few)
	return s
}

func TestADemoAccountsForEveryRecordThroughRetriesPoisonAndAnOutage(t *testing.T) {
	script := short()
	var shown bytes.Buffer
	var reported *Summary
	s, err := Run(t.Context(), Options{
		Script: script, Exit: true, In: strings.NewReader(""), Err: &shown, Version: "test",
		Report: func(s Summary) error { reported = &s; return nil },
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &shown)
	}
	if err := s.Err(); err != nil {
		t.Errorf("%v\n%s", err, &shown)
	}
	if s.Discrepancies != len(script.Records) || s.Resolved+s.Poison != len(script.Records) || s.Unaccounted != 0 || s.Duplicates != 0 {
		t.Errorf("%d records: %+v", len(script.Records), s)
	}
	if s.PoisonByReason[deadletter.ReasonMalformed] != 2 || s.PoisonByReason[deadletter.ReasonPermanent] != 12 || s.PoisonByReason[deadletter.ReasonAttemptsExhausted] != 1 {
		t.Errorf("poison by reason is %v", s.PoisonByReason)
	}
	if s.LedgerDiffering != 0 || s.LedgerInPoison != s.Poison || s.Escalated != s.Poison {
		t.Errorf("%d entries differ for no reason, %d for their record in poison, %d were told of, poison is %d", s.LedgerDiffering, s.LedgerInPoison, s.Escalated, s.Poison)
	}
	if s.Outages != 1 || s.OutageSeconds < 2 || s.HeldPeak == 0 || s.NotCounted == 0 {
		t.Errorf("outage: %+v", s)
	}
	if s.Retried < len(script.Faults) || s.CalledEarly != 0 || s.Calls < s.Resolved+s.Retried {
		t.Errorf("%d of %d calls were retried, %d of them early; %d records were to fail", s.Retried, s.Calls, s.CalledEarly, len(script.Faults))
	}
	if reported == nil || reported.Resolved != s.Resolved {
		t.Errorf("reported is %+v", reported)
	}
	for _, want := range []string{"target down  The target is down for", "a discrepancy needs people: ", "target answers again"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not in the progress:\n%s", want, &shown)
		}
	}
	if strings.Contains(shown.String(), "\x1b") {
		t.Errorf("escape sequences are in plain progress:\n%q", &shown)
	}
}

func TestADemoThatStaysSaysWhatToTryAndEndsWhenItIsTold(t *testing.T) {
	script := short()
	script.Records, script.First, script.Faults, script.DownAt, script.Outage = script.Records[:20], 20, nil, 0, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &watched{seen: make(chan struct{}), want: "Stop with ctrl-c."}
	go func() {
		<-shown.seen
		cancel()
	}()
	s, err := Run(ctx, Options{Script: script, In: strings.NewReader(""), Err: shown, Program: "bin/recon-dlq"})
	if err != nil || s.Err() != nil || s.Resolved != 20 {
		t.Fatalf("ended with %v, %v, %+v", err, s.Err(), s)
	}
	for _, want := range []string{"curl -s 127.0.0.1:", "bin/recon-dlq enqueue -c ", "demo.yaml"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not in:\n%s", want, shown)
		}
	}
}

func TestADemoThatIsStoppedSaysSoAndLeavesNothingBehind(t *testing.T) {
	script := short()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &watched{seen: make(chan struct{}), want: " s  sent "}
	go func() {
		<-shown.seen
		cancel()
	}()
	_, err := Run(ctx, Options{Script: script, Exit: true, In: strings.NewReader(""), Err: shown})
	if !errors.Is(err, ErrStopped) {
		t.Errorf("ended with %v", err)
	}
}

// watched is a buffer that tells when a text is in it.
type watched struct {
	bytes.Buffer
	want string
	seen chan struct{}
	done bool
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if !w.done && strings.Contains(w.String(), w.want) {
		w.done = true
		close(w.seen)
	}
	return n, err
}

// trail is of three records: resolved, in poison and told, resolved.
func trail() ([]sent, []audit.Event) {
	var records []sent
	var events []audit.Event
	for i, d := range data.Discrepancies()[:3] {
		o := origin("recon.dlq", 0, int64(i))
		records = append(records, sent{d, o})
		events = append(events, audit.Event{Type: audit.Enqueued, Origin: o})
		if i == 1 {
			events = append(events, audit.Event{Type: audit.RetryScheduled, Origin: o},
				audit.Event{Type: audit.Poisoned, Origin: o, Reason: "permanent"}, audit.Event{Type: audit.Escalated, Origin: o})
			continue
		}
		events = append(events, audit.Event{Type: audit.Resolved, Origin: o})
	}
	return records, events
}

func TestEveryRecordWithItsOneEndIsAccountedFor(t *testing.T) {
	records, events := trail()
	s := account(records, events)
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	if s.Discrepancies != 3 || s.Resolved != 2 || s.Poison != 1 || s.Escalated != 1 || s.PoisonByReason["permanent"] != 1 ||
		!slices.Equal(s.PoisonIDs["permanent"], []string{records[1].discrepancy.ID}) {
		t.Errorf("%+v", s)
	}
}

func TestARecordWithoutAnEndIsUnaccountedForAndNamed(t *testing.T) {
	records, events := trail()
	s := account(records, events[:len(events)-1])
	if s.Unaccounted != 1 || s.Resolved != 1 || !slices.Equal(s.UnaccountedIDs, []string{records[2].discrepancy.ID}) {
		t.Errorf("%+v", s)
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), records[2].discrepancy.ID) {
		t.Errorf("the error is %v", err)
	}
	var text strings.Builder
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "3 arrived ≠ 1 resolved + 1 poison; unaccounted for: 1") {
		t.Errorf("the summary is\n%s", &text)
	}
}

func TestWhatIsNotAsPromisedIsAnError(t *testing.T) {
	records, events := trail()
	for name, c := range map[string]struct {
		events []audit.Event
		then   func(*Summary)
		want   string
	}{
		"two ends":             {events: append(slices.Clone(events), audit.Event{Type: audit.Resolved, Origin: records[0].origin}), want: "made twice"},
		"nobody told":          {events: slices.DeleteFunc(slices.Clone(events), func(e audit.Event) bool { return e.Type == audit.Escalated }), want: "told of 0"},
		"expired":              {events: append(slices.Clone(events[:len(events)-1]), audit.Event{Type: audit.Expired, Origin: records[2].origin}), want: "unaccounted"},
		"a copy too many":      {events: events, then: func(s *Summary) { s.check(invariants.Report{Doubled: 1}) }, want: "made twice"},
		"an invariant broken":  {events: events, then: func(s *Summary) { s.check(invariants.Report{Faults: []string{"invariant 3 bytes: x"}}) }, want: "invariant 3"},
		"a ledger that is off": {events: events, then: func(s *Summary) { s.reconcile(records, nil) }, want: "entries of the ledger differ"},
	} {
		s := account(records, c.events)
		if c.then != nil {
			c.then(&s)
		}
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q in it", name, err, c.want)
		}
	}
}

func TestTheLedgerMayDifferWhereTheRecordIsInPoisonOrNeverCame(t *testing.T) {
	records, events := trail()
	s := account(records, events)
	fixed := data.Ledger()
	for _, want := range data.Source() { // what the two resolved records have put right
		if id := ledgerID(want.ID); id == records[0].discrepancy.ID || id == records[2].discrepancy.ID {
			fixed = append(slices.DeleteFunc(fixed, func(e data.Entry) bool { return e.ID == want.ID }), want)
		}
	}
	fixed = slices.DeleteFunc(fixed, func(e data.Entry) bool { // and orphans that were reversed
		id := ledgerID(e.ID)
		return (id == records[0].discrepancy.ID || id == records[2].discrepancy.ID) && !slices.ContainsFunc(data.Source(), func(w data.Entry) bool { return w.ID == e.ID })
	})
	s.reconcile(records, fixed)
	if s.LedgerDiffering != 0 || s.LedgerInPoison != 1 {
		t.Errorf("%d differ for no reason, %d for poison", s.LedgerDiffering, s.LedgerInPoison)
	}
}

func ledgerID(entry string) string { return data.DiscrepancyOf(entry) }

func TestTheSummaryInJSONHasTheFieldsThatScriptsRelyOn(t *testing.T) {
	records, events := trail()
	raw, err := json.Marshal(account(records, events))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"discrepancies", "resolved", "retried", "poison", "poison_by_reason", "held_peak", "outages", "duplicates", "unaccounted", "ledger_differences", "seconds"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s is not in %s", name, raw)
		}
	}
	if fields["broken_promises"] == nil {
		t.Error("broken_promises is null, not an empty list")
	}
}

func TestFaultsComeOftenEnoughToBeSeenAndStayApart(t *testing.T) {
	s := DefaultScript()
	count := map[int]int{}
	streak := 0
	for _, d := range s.Records {
		n := s.Faults[d.ID]
		count[n]++
		if streak++; n == 0 {
			streak = 0
		}
		if streak > 2 {
			t.Errorf("%s is number %d in a row to fail", d.ID, streak)
		}
	}
	if count[-1] < 2 || count[1] < 100 || count[2] < 5 || count[3] < 3 {
		t.Errorf("records by number of faults: %v", count)
	}
	if s.DownAt >= len(s.Records) || s.First >= len(s.Records) {
		t.Errorf("%d records: the target goes down at %d, %d are there from the start", len(s.Records), s.DownAt, s.First)
	}
}

func TestALedgerThatIsDownComesBack(t *testing.T) {
	l, err := ledger.New(ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := l.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	d := &demo{script: Script{Outage: time.Millisecond}, ledger: l}
	if err := d.breakDown(t.Context()); err != nil || l.Outage() != "" || d.outages != 1 || d.down < time.Millisecond {
		t.Errorf("%v, outage %q, %d outages of %s", err, l.Outage(), d.outages, d.down)
	}
}

// The invariants are a library of the tests, and the demo is in the product.
func TestTheProgramHasNothingOfTestsInItButTheInvariants(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/recon-dlq").Output()
	if err != nil {
		t.Skipf("go list: %v: without the go command there is nothing to ask", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		if dep == "testing" || strings.HasPrefix(dep, "testing/") || strings.Contains(dep, "testcontainers") || strings.HasSuffix(dep, "/test/brokers") {
			t.Errorf("recon-dlq is built with %s", dep)
		}
	}
}

func ExampleSummary_WriteText() {
	s := Summary{
		Discrepancies: 1200, Resolved: 1183, Poison: 17, Escalated: 17, Seconds: 22, Calls: 1385, Retried: 181, NotCounted: 6, Outages: 1, OutageSeconds: 6, HeldPeak: 630,
		PoisonByReason: map[string]int{"permanent": 12, "malformed": 5}, PoisonIDs: map[string][]string{"permanent": {"d-1", "d-2", "d-3", "d-4", "d-5", "d-6", "d-7"}, "malformed": {"d-8"}},
		LedgerEntries: 1587, LedgerInPoison: 17,
	}
	var b strings.Builder
	_ = s.WriteText(&b)
	for line := range strings.Lines(b.String()) {
		fmt.Print(strings.TrimRight(line, " \n"), "\n")
	}
	// Output:
	// arrived       1200 discrepancies, in 22 s
	// resolved      1183
	// poison          17 in front of people, 17 of them told
	//                  5 malformed: d-8
	//                 12 permanent: d-1 d-2 d-3 d-4 d-5 … and 2 more
	// accounted     1200 arrived = 1183 resolved + 17 poison; unaccounted for: 0
	// duplicates       0
	// calls         1385 of the target; 181 failed and were retried, 0 of them before they were due
	// outage           1 for 6.0 s; up to 630 records held; 6 calls found the target down and cost no attempt
	// ledger        1587 entries; 17 differ from the source of truth: 17 whose record is in poison, 0 without reason
}

var _ io.Writer = (*watched)(nil)

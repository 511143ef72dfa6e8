package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Test the rules of a configuration",
	}
	cmd.AddCommand(newPolicyTest(a))
	return cmd
}

func newPolicyTest(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Run table tests that say what shall become of records",
		Long: `Each test of a file (YAML) has a record, what its target answers, and what is
expected to become of it under the rules of the configuration. Nothing is called
and nothing is contacted. The policy guide has the form of the file.

Exit codes: 0 all tests pass, 1 one fails or a file is faulty, 4 there is no test.`,
		Example: `  recon-dlq policy test -c recon-dlq.yaml policy_test.yaml`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.loadRules(cmd)
			if err != nil {
				return err
			}
			p, err := policy.New(policy.Options{Rules: cfg.Rules})
			if err != nil {
				return err
			}
			tested := policyTested{Failed: []policyFailure{}}
			for _, file := range args {
				if err := testPolicy(p, cfg, file, &tested); err != nil {
					return err
				}
			}
			return a.tellTested(tested)
		},
	}
}

// policyTested is the answer of policy test.
type policyTested struct {
	Passed int             `json:"passed"`
	Failed []policyFailure `json:"failed"`
}

// policyFailure is one test that fails.
type policyFailure struct {
	File        string             `json:"file"`
	Test        string             `json:"test"`
	Differences []policyDifference `json:"differences"`
}

type policyDifference struct {
	Field string `json:"field"`
	Got   string `json:"got"`
	Want  string `json:"want"`
}

func (a *app) tellTested(t policyTested) error {
	var b bytes.Buffer
	for _, f := range t.Failed {
		fmt.Fprintf(&b, "%s: %s\n", f.File, f.Test)
		for _, d := range f.Differences {
			fmt.Fprintf(&b, "  %s: got %s, want %s\n", d.Field, orDash(d.Got), orDash(d.Want))
		}
	}
	fmt.Fprintf(&b, "%d passed, %d failed\n", t.Passed, len(t.Failed))
	if a.json() {
		if err := a.writeJSON(t); err != nil {
			return err
		}
	} else if _, err := a.out.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	switch {
	case len(t.Failed) > 0:
		return &ExitError{Code: ExitFailed}
	case t.Passed == 0:
		return &ExitError{Code: ExitNoMatch, Err: errors.New("no test in the files")}
	}
	return nil
}

// policyTests is a file of tests.
type policyTests struct {
	At    time.Time    `yaml:"at"` // of the first decision of each; the zero time: one that does not matter
	Tests []policyTest `yaml:"tests"`
}

type policyTest struct {
	Name    string       `yaml:"name"`
	Record  testRecord   `yaml:"record"`
	Answers []string     `yaml:"answers"` // as --answer of explain; none: every call fails with 500
	Expect  expectations `yaml:"expect"`
}

// testRecord is a record that has just been read, or taken up in a tier if something has been counted or has failed.
type testRecord struct {
	Category string       `yaml:"category"` // short for a value with nothing but this
	Value    yaml.Node    `yaml:"value"`    // keys, which complete the least there must be; or JSON as text, taken as it is
	Topic    string       `yaml:"topic"`    // where it arrived first
	Headers  []testHeader `yaml:"headers"`
	Age      string       `yaml:"age"`      // since it entered the queue
	Attempts int          `yaml:"attempts"` // counted so far
	Failed   string       `yaml:"failed"`   // last failure, as an answer
}

type testHeader struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

// expectations are compared where they are written.
type expectations struct {
	Rule      *string   `yaml:"rule"`   // that decides when the record is read
	Target    *string   `yaml:"target"` // empty: straight to people
	Calls     *int      `yaml:"calls"`
	Waits     *[]string `yaml:"waits"` // the tiers it goes through
	Fate      *string   `yaml:"fate"`  // resolved, poison, held, unfinished
	Reason    *string   `yaml:"reason"`
	DecidedBy *string   `yaml:"decided_by"` // rule that decides its fate
}

const maxTests = 16 << 20 // bytes of a file

// typeName is in the library's messages about unknown keys.
var typeName = regexp.MustCompile(` in type cli\.\w+`)

func readTests(file string) (policyTests, error) {
	var t policyTests
	f, err := os.Open(file)
	if err != nil {
		return t, fmt.Errorf("open tests: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTests+1))
	if err != nil {
		return t, fmt.Errorf("read tests: %w", err)
	}
	if len(data) > maxTests {
		return t, fmt.Errorf("%s: more than 16 MiB: split the file", file)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&t); err != nil && !errors.Is(err, io.EOF) {
		return t, fmt.Errorf("%s: %s", file, typeName.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), ""))
	}
	if t.At.IsZero() {
		t.At = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return t, nil
}

// testPolicy runs the tests of a file. The error names the place of what is wrong with the file.
func testPolicy(p *policy.Policy, cfg config.Config, file string, tested *policyTested) error {
	tests, err := readTests(file)
	if err != nil {
		return err
	}
	for i, t := range tests.Tests {
		differences, err := t.run(p, cfg, tests.At)
		switch {
		case err != nil:
			return fmt.Errorf("%s: tests[%d]%w", file, i, err)
		case len(differences) > 0:
			tested.Failed = append(tested.Failed, policyFailure{File: file, Test: t.Name, Differences: differences})
		default:
			tested.Passed++
		}
	}
	return nil
}

// run explains the record, and compares that with what is expected. The error begins with the field that is wrong.
func (t *policyTest) run(p *policy.Policy, cfg config.Config, now time.Time) ([]policyDifference, error) {
	if t.Name == "" {
		return nil, errors.New(".name: missing: failures are told by it")
	}
	if t.Expect == (expectations{}) {
		return nil, errors.New(".expect: nothing is expected: name at least one of rule, target, calls, waits, fate, reason, decided_by")
	}
	q := question{cfg: cfg, policy: p, now: now, takeUp: now}
	if err := t.Record.read(&q, t.Name); err != nil {
		return nil, fmt.Errorf(".record%w", err)
	}
	words := t.Answers
	if len(words) == 0 {
		words = []string{"500"}
	}
	var err error
	if q.answers, err = parseAnswers(words); err != nil {
		return nil, fmt.Errorf(".answers: %w", err)
	}
	return t.Expect.compare(q.explain()), nil
}

// read makes the record of q.
func (t *testRecord) read(q *question, name string) error {
	age := time.Duration(0)
	if t.Age != "" {
		var err error
		if age, err = config.ParseDuration(t.Age); err != nil {
			return fmt.Errorf(".age: %w", err)
		}
	}
	entered := q.now.Add(-age)
	value, err := t.value(name, entered)
	if err != nil {
		return err
	}
	m := deadletter.Message{Place: deadletter.Place{Topic: t.Topic}, Timestamp: q.now.UnixMilli(), Value: value}
	if m.Place.Topic == "" {
		m.Place.Topic = q.cfg.Source.Topics[0]
	}
	for _, h := range t.Headers {
		m.Headers = append(m.Headers, deadletter.Header{Key: h.Name, Value: []byte(h.Value)})
	}
	r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Source, Now: q.now})
	q.record, q.bad = r, err
	if t.Age != "" {
		q.record.Enqueued = entered.UnixMilli()
	}
	if t.Attempts < 0 {
		return errors.New(".attempts: must be 0 or more")
	}
	if t.Attempts == 0 && t.Failed == "" {
		return nil
	}
	q.record.Kind, q.record.Attempt, q.record.NotBefore = deadletter.Tier, t.Attempts, q.now.UnixMilli()
	if t.Failed != "" {
		o, err := remedy.ParseAnswer(t.Failed)
		if err != nil {
			return fmt.Errorf(".failed: %w", err)
		}
		q.record.ErrorClass, q.record.ErrorStatus, q.record.ErrorCode = o.Cause, o.Status, o.Code
	}
	return nil
}

// value is the record's value: as it is written, or what is written over the least there must be.
func (t *testRecord) value(name string, entered time.Time) ([]byte, error) {
	if t.Value.Kind == yaml.ScalarNode {
		if t.Category != "" {
			return nil, errors.New(".category: is in the value, which is text: write it there")
		}
		return []byte(t.Value.Value), nil
	}
	fields := map[string]any{"discrepancy_id": name, "category": "uncategorized", "context": map[string]any{}, "enqueued_ms": entered.UnixMilli()}
	if t.Category != "" {
		fields["category"] = t.Category
	}
	if t.Value.Kind != 0 {
		if err := t.Value.Decode(&fields); err != nil {
			return nil, errors.New(".value: want keys, or JSON as text")
		}
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, errors.New(".value: has what JSON has not, such as keys that are no texts")
	}
	return data, nil
}

// compare lists what is not as expected.
func (e *expectations) compare(x explained) (differences []policyDifference) {
	differ := func(field, got, want string) {
		if got != want {
			differences = append(differences, policyDifference{field, got, want})
		}
	}
	text := func(field, got string, want *string) {
		if want != nil {
			differ(field, got, *want)
		}
	}
	text("rule", x.Rule, e.Rule)
	target := ""
	if x.Target != nil {
		target = x.Target.Name
	}
	text("target", target, e.Target)
	calls, waits := 0, []string{}
	for _, s := range x.Steps {
		if s.Call {
			calls++
		}
		if s.Tier != "" {
			waits = append(waits, s.Tier)
		}
	}
	if e.Calls != nil {
		differ("calls", fmt.Sprint(calls), fmt.Sprint(*e.Calls))
	}
	if e.Waits != nil && !slices.Equal(waits, *e.Waits) {
		differ("waits", strings.Join(waits, " "), strings.Join(*e.Waits, " "))
	}
	text("fate", x.Fate.Fate, e.Fate)
	text("reason", x.Fate.Reason, e.Reason)
	text("decided_by", x.Fate.Rule, e.DecidedBy)
	return differences
}

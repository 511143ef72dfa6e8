package cli

import (
	"fmt"
	"strings"
	"testing"
)

// cases writes a file of tests.
func cases(t *testing.T, text string) string {
	t.Helper()
	return tempFile(t, "policy_test.yaml", text)
}

func TestPolicyTestRunsEachTestAgainstTheRules(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	file := cases(t, `
at: 2026-03-01T12:00:00Z
tests:
  - name: five calls, then people
    record: {category: amount}
    expect: {rule: default, target: ledger, calls: 5, waits: [10s, 1m, 10m, 1h], fate: poison, reason: attempts_exhausted, decided_by: default}
  - name: the third call fixes it
    record: {category: amount}
    answers: [503, timeout, 200]
    expect: {calls: 3, fate: resolved, waits: [10s, 1m]}
  - name: a field and a header send it elsewhere
    record:
      value: {category: amount, context: {currency: EUR}}
      headers: [{name: exception, value: java.net.SocketTimeoutException}]
    expect: {rule: broken, target: archive}
  - name: a value as text is taken as it is
    record: {value: '{"discrepancy_id":"d","category":"schema_x","context":{},"enqueued_ms":0}'}
    expect: {rule: people, target: "", calls: 0, waits: [], fate: poison, reason: manual}
  - name: a value that is none
    record: {value: '{"discrepancy_id":'}
    expect: {fate: poison, reason: malformed}
  - name: its last failure decides
    record: {category: amount, attempts: 2, failed: 423/LOCKED}
    answers: [423]
    expect: {rule: locked, calls: 1, fate: poison}
  - name: a target that is down holds it
    record: {category: amount}
    answers: [refused]
    expect: {fate: held, reason: unavailable, calls: 1}
  - name: an old one is only alerted on
    record: {category: amount, age: 1d12h}
    answers: [503, 200]
    expect: {fate: resolved}
`)
	code, out, stderr := run(t, "policy", "test", "-c", rules, file)
	if code != ExitOK || out != "8 passed, 0 failed\n" || stderr != "" {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

func TestPolicyTestTellsWhatItGotAndWhatWasWanted(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	file := cases(t, `
tests:
  - name: wrong in every way
    record: {category: amount}
    expect: {rule: people, target: archive, calls: 1, waits: [5s], fate: resolved, reason: permanent, decided_by: people}
  - name: right
    record: {category: amount}
    expect: {rule: default}
  - name: wrong in one
    record: {category: schema_x}
    expect: {rule: people, target: ledger}
`)
	code, out, stderr := run(t, "policy", "test", "-c", rules, file)
	want := fmt.Sprintf(`%[1]s: wrong in every way
  rule: got default, want people
  target: got ledger, want archive
  calls: got 5, want 1
  waits: got 10s 1m 10m 1h, want 5s
  fate: got poison, want resolved
  reason: got attempts_exhausted, want permanent
  decided_by: got default, want people
%[1]s: wrong in one
  target: got -, want ledger
1 passed, 2 failed
`, file)
	if code != ExitFailed || out != want || stderr != "" {
		t.Errorf("exit code %d, %s%s\nwant\n%s", code, out, stderr, want)
	}
	code, out, _ = run(t, "policy", "test", "-o", "json", "-c", rules, file, file)
	if got := decode[policyTested](t, out); code != ExitFailed || got.Passed != 2 || len(got.Failed) != 4 || got.Failed[1].Differences[0] != (policyDifference{"target", "", "ledger"}) {
		t.Errorf("exit code %d, %s", code, out)
	}
}

func TestPolicyTestNamesThePlaceOfAFaultInAFile(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	const begin = "tests: [{name: a, record: {category: x}, expect: {rule: default}}, "
	for text, want := range map[string]string{
		"tests: [":                        "did not find expected node content",
		"test: []":                        "line 1: field test not found",
		begin + "{name: b, records: {}}]": "line 1: field records not found",
		begin + "{record: {category: x}, expect: {rule: a}}]":                                    ": tests[1].name: missing",
		begin + "{name: b, record: {category: x}}]":                                              ": tests[1].expect: nothing is expected",
		begin + "{name: b, record: {age: 3}, expect: {rule: a}}]":                                ": tests[1].record.age: 3 has no unit: write 3s, or with ms, m, h or d",
		begin + "{name: b, record: {failed: a b}, expect: {rule: a}}]":                           `: tests[1].record.failed: answer "a b": want an HTTP status`,
		begin + "{name: b, record: {attempts: -1}, expect: {rule: a}}]":                          ": tests[1].record.attempts: must be 0 or more",
		begin + "{name: b, record: {category: a, value: x}, expect: {rule: a}}]":                 ": tests[1].record.category: is in the value",
		begin + "{name: b, record: {value: [a]}, expect: {rule: a}}]":                            ": tests[1].record.value: want keys, or JSON as text",
		begin + "{name: b, record: {value: {context: {1: a, b: {[x]: c}}}}, expect: {rule: a}}]": ": tests[1].record.value: ",
		begin + "{name: b, record: {category: x}, answers: [99], expect: {rule: a}}]":            `: tests[1].answers: answer "99": want an HTTP status`,
		begin + "{name: b, record: {category: x}, expect: {calls: many}}]":                       "line 1: cannot unmarshal",
	} {
		t.Run(text[min(len(text), len(begin)-1):], func(t *testing.T) {
			file := cases(t, text)
			code, out, stderr := run(t, "policy", "test", "-c", rules, file)
			if code != ExitFailed || out != "" || !strings.Contains(stderr, file) || !strings.Contains(stderr, want) {
				t.Errorf("exit code %d, %s%s; want %q", code, out, stderr, want)
			}
		})
	}
	for text, want := range map[string]int{"": ExitNoMatch, "tests: []": ExitNoMatch} {
		if code, _, stderr := run(t, "policy", "test", "-c", rules, cases(t, text)); code != want || !strings.Contains(stderr, "no test in the files") {
			t.Errorf("%q: exit code %d, %s", text, code, stderr)
		}
	}
	if code, _, stderr := run(t, "policy", "test", "-c", rules, "/nowhere.yaml"); code != ExitFailed || !strings.Contains(stderr, "no such file") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code, _, _ := run(t, "policy", "test", "-c", rules); code != ExitUsage {
		t.Errorf("without a file: exit code %d", code)
	}
}

package config

import (
	"testing"
)

// C058 – a pattern that matches the worker's own topics makes records multiply
// without end. There are no patterns: a source is a topic's name, and none of
// the worker's own. What the worker subscribes to beside it is anchored.
func TestC058_ASourceIsNoPatternAndNoneOfTheWorkersOwnTopics(t *testing.T) {
	const overlap = ": the worker would read what it writes there as new"
	for text, want := range map[string]string{
		`source: {regex: '^recon\.dlq.*'}`:                     "source.regex: unknown key: known here are topics",
		`source: {topics: ['^recon\.dlq.*']}`:                  "source.topics[0]: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"source: {topics: ['recon.dlq*']}":                     "source.topics[0]: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"source: {topics: [recon.dlq, recon.dlq.retry.10s]}":   "source.topics[1]: overlaps topics.retry" + overlap,
		"source: {topics: [recon.dlq, recon.dlq.hold.ledger]}": "source.topics[1]: overlaps topics.hold" + overlap,
		"source: {topics: [recon.dlq, recon.dlq.poison]}":      "source.topics[1]: overlaps topics.poison" + overlap,
		"source: {topics: [recon.dlq, recon.dlq.audit]}":       "source.topics[1]: overlaps topics.audit" + overlap,
		"source: {topics: [recon.dlq, recon.dlq.state]}":       "source.topics[1]: overlaps topics.state" + overlap,
		// The dots of a name are dots: a name that a pattern would take for a tier is not ours.
		"source: {topics: [recon.dlq, reconxdlqxretryx10s]}": "",
	} {
		t.Run(text, func(t *testing.T) {
			got := faults(t, whole+text+"\n")
			if want == "" {
				expect(t, got)
				return
			}
			expect(t, got, "c.yaml:3: "+want)
		})
	}
}

// C109 – a timeout of 600, which meant seconds, became 600 ns. The keys are the
// product's own names for a handler's timeout and for tiers.
func TestC109_ADurationWithoutAUnitIsRefusedWithTheFormThatIsRight(t *testing.T) {
	const form = "is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d"
	expect(t, faults(t, `kafka: {brokers: [localhost:9092]}
targets:
  - name: ledger
    http:
      url: http://127.0.0.1/
      timeout: 600
rules:
  - name: default
    target: ledger
    attempts: 4
    delays:
      - 30
      - "5m "
      - -1h
    sla:
      max_age: 86400
`, "RECON_DLQ_ESCALATION_WEBHOOK_TIMEOUT=600"),
		"RECON_DLQ_ESCALATION_WEBHOOK_TIMEOUT: escalation.webhook.timeout: 600 has no unit: write 600s, or with ms, m, h or d",
		"c.yaml:6: targets[0].http.timeout: 600 has no unit: write 600s, or with ms, m, h or d",
		"c.yaml:12: rules[0].delays[0]: 30 has no unit: write 30s, or with ms, m, h or d",
		"c.yaml:13: rules[0].delays[1]: "+form,
		"c.yaml:14: rules[0].delays[2]: "+form,
		"c.yaml:16: rules[0].sla.max_age: 86400 has no unit: write 86400s, or with ms, m, h or d",
	)
	// With a unit, but absurd.
	for value, want := range map[string]string{
		"0s":     "rules[0].delays[0]: 0s: must be a multiple of 100ms, at most 720h",
		"600ns":  "rules[0].delays[0]: 600ns: must be a multiple of 100ms, at most 720h",
		"31d":    "rules[0].delays[0]: 744h0m0s: must be a multiple of 100ms, at most 720h",
		"99999d": "rules[0].delays[0]: 2399976h0m0s: must be a multiple of 100ms, at most 720h",
	} {
		expect(t, faults(t, whole+"rules: [{name: default, target: ledger, attempts: 2, delays: ["+value+"]}]\n"), "c.yaml:3: "+want)
	}
	expect(t, faults(t, `kafka: {brokers: [localhost:9092]}
targets: [{name: ledger, http: {url: "http://127.0.0.1/", timeout: 600s}}]
`), "c.yaml:2: targets[0].http.timeout: must be shorter than 25s: a worker that stops waits no longer for calls in flight")
}

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A typo in a key silently disables a setting. The keys are the product's own:
// attempts, url and poison, each misspelled in its place. The exit code is 1,
// "failed": 2 is for a command line that is wrong.
func TestC110_ATypoInAKeyIsReportedWithTheKeyThatWasMeantWithoutKafka(t *testing.T) {
	const typos = `kafka: {brokers: ["127.0.0.1:1"]}
targets:
  - name: ledger
    http: {urll: "http://h/"}
topics:
  poizon: recon.dlq.poison
rules:
  - name: default
    target: ledger
    atempts: 3
`
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"misspelled": {typos, []string{
			`:4: targets[0].http.urll: unknown key: did you mean "url"?`,
			`:6: topics.poizon: unknown key: did you mean "poison"?`,
			`:10: rules[0].atempts: unknown key: did you mean "attempts"?`,
		}},
		"in the wrong place": {"group: mine\nhandler:\n  urll: http://h/\n", []string{
			`:1: group: unknown key here: did you mean "kafka.group"?`,
			`:2: handler: unknown key: known here are `,
		}},
		"twice":      {"delivery: exactly-once\ndelivery: at-least-once\n", []string{`:2: delivery: is written twice, first on line 1`}},
		"a tab":      {"topics:\n\tpoison: recon.dlq.poison\n", []string{":2: a tab is used to indent: YAML wants spaces"}},
		"empty file": {"", []string{"kafka.brokers: is missing", "targets: is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, line := range [][]string{{"config", "check", "-c", file}, {"run", "-c", file}} {
				code, stdout, stderr := run(t, line...)
				if code != ExitFailed || stdout != "" {
					t.Errorf("%s: exit code %d, stdout %q", line[0], code, stdout)
				}
				for _, want := range c.want {
					if !strings.Contains(stderr, want) {
						t.Errorf("%s: stderr has no %q:\n%s", line[0], want, stderr)
					}
				}
				if strings.Contains(stderr, "127.0.0.1:1") {
					t.Errorf("%s: Kafka was asked:\n%s", line[0], stderr)
				}
			}
		})
	}
}

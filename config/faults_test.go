package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/recon-dlq/recon-dlq/policy"
)

// whole is a configuration without a fault, the least there is.
const whole = `kafka: {brokers: [localhost:9092]}
targets: [{name: ledger, http: {url: "http://127.0.0.1:8080/remediate"}}]
`

// write puts a configuration file in a directory of the test's own.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// faults loads text and gives what is wrong with it, one string each, the file called c.yaml.
func faults(t *testing.T, text string, env ...string) []string {
	t.Helper()
	file := write(t, text)
	_, err := Load(file, env, nil)
	return lines(t, err, filepath.Dir(file)+"/")
}

func lines(t *testing.T, err error, dir string) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	list, ok := errors.AsType[*Faults](err)
	if !ok {
		t.Fatalf("Load gave %T, want *Faults: %v", err, err)
	}
	var out []string
	for _, f := range list.List {
		out = append(out, strings.ReplaceAll(f.String(), dir, ""))
	}
	return out
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("faults:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestTheLeastConfigurationHasNoFault(t *testing.T) {
	expect(t, faults(t, whole))
}

func TestAFileThatIsNoConfigurationSaysWhereAndWhy(t *testing.T) {
	missing := []string{
		"kafka.brokers: is missing: name at least one broker as host:port in the file, in RECON_DLQ_KAFKA_BROKERS or with --brokers",
		`targets: is missing: name at least one in the file, such as [{name: ledger, http: {url: "http://127.0.0.1:8080/remediate"}}]`,
	}
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"an empty file is all defaults":     {"", missing},
		"a comment alone is all defaults":   {"# nothing yet\n", missing},
		"a null document is all defaults":   {"---\n~\n", missing},
		"a mark at the start is passed":     {"\uFEFF" + whole, nil},
		"a list":                            {"- a\n- b\n", []string{`c.yaml:1: the file is not a configuration: want keys such as "kafka:"`}},
		"a word":                            {"\nhello\n", []string{`c.yaml:2: the file is not a configuration: want keys such as "kafka:"`}},
		"JSON works, being YAML":            {`{"kafka": {"brokers": ["localhost:9092"]}, "targets": [{"name": "a", "http": {"url": "http://h/"}}]}`, nil},
		"a tab":                             {"kafka:\n\tbrokers: [localhost:9092]\n", []string{"c.yaml:2: a tab is used to indent: YAML wants spaces"}},
		"not YAML":                          {"kafka: {brokers: [\n", []string{"c.yaml:1: not YAML: did not find expected node content"}},
		"UTF-16":                            {"\xFF\xFEk\x00", []string{"c.yaml:1: the file is UTF-16: save it as UTF-8"}},
		"not text":                          {"kafka:\n  group: \xC3\x28\n", []string{"c.yaml:2: the file is not text in UTF-8"}},
		"a zero byte":                       {"kafka:\x00\n", []string{"c.yaml:1: the file is not text in UTF-8"}},
		"two documents":                     {whole + "---\nkafka: {}\n", []string{"c.yaml:3: a second document begins here: a configuration is one document"}},
		"an alias":                          {whole + "metrics: &m {listen: ':1'}\nlimits: *m\n", []string{"c.yaml:4: limits: aliases are not supported: write the value out"}},
		"an alias to nothing, not repeated": {"kafka: *hunter2\n", []string{"c.yaml: not YAML: a character or name that has no meaning here"}},
		"a merge key":                       {whole + "limits:\n  <<: {concurrency: 1}\n", []string{"c.yaml:4: limits: a key here is not a name: known are max_inflight_bytes, concurrency"}},
		"a tag":                             {whole + "metrics: {listen: !!binary aGVsbG8=}\n", []string{"c.yaml:3: metrics.listen: tags are not supported"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, faults(t, test.text), test.want...)
		})
	}
}

func TestAFileThatCannotBeReadSaysWhy(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(filepath.Join(dir, "absent.yaml"), nil, nil)
	expect(t, lines(t, err, dir+"/"), "absent.yaml: no such file")
	_, err = Load(dir, nil, nil)
	expect(t, lines(t, err, filepath.Dir(dir)+"/"), filepath.Base(dir)+": is a directory, not a file")

	file := write(t, whole+strings.Repeat("#", maxFile))
	_, err = Load(file, nil, nil)
	expect(t, lines(t, err, filepath.Dir(file)+"/"), "c.yaml: file is too large")

	if os.Geteuid() != 0 { // root may read everything
		file := write(t, whole)
		if err := os.Chmod(file, 0); err != nil {
			t.Fatal(err)
		}
		_, err = Load(file, nil, nil)
		expect(t, lines(t, err, filepath.Dir(file)+"/"), "c.yaml: no permission to read the file")
	}
}

func TestAKeyThatDoesNotExistNamesTheNearestOneThatDoes(t *testing.T) {
	for text, want := range map[string]string{
		"limits: {concurency: 5}\n":         `c.yaml:3: limits.concurency: unknown key: did you mean "concurrency"?`,
		"limits: {max_inflight_byte: 5}\n":  `c.yaml:3: limits.max_inflight_byte: unknown key: did you mean "max_inflight_bytes"?`,
		"limits: {max-inflight-bytes: 5}\n": `c.yaml:3: limits.max-inflight-bytes: unknown key: did you mean "max_inflight_bytes"?`,
		"delivrey: at-least-once\n":         `c.yaml:3: delivrey: unknown key: did you mean "delivery"?`,
		"metrics: {Listen: ':1'}\n":         `c.yaml:3: metrics.Listen: unknown key: keys are lower case, write "listen"`,
		"METRICS: {listen: ':1'}\n":         `c.yaml:3: METRICS: unknown key: keys are lower case, write "metrics"`,
		"group: mine\n":                     `c.yaml:3: group: unknown key here: did you mean "kafka.group"?`,
		"limits:\n  colour: blue\n":         `c.yaml:4: limits.colour: unknown key: known here are max_inflight_bytes, concurrency`,
		"\"a secret with spaces\": 1\n":     `c.yaml:3: a key here is not a name: known are kafka, source, topics, delivery, limits, targets, rules, escalation, metrics`,
		"delivery: exactly-once\nmetrics: {listen: ':1'}\ndelivery: at-least-once\n": `c.yaml:5: delivery: is written twice, first on line 3`,
		"metrics: {listen: ':1'}\nMetrics: {listen: ':2'}\n":                         `c.yaml:4: Metrics: unknown key: keys are lower case, write "metrics"|c.yaml:4: metrics: is written twice, first on line 3`,
		"escalation:\n  webhook:\n    token: hunter2\n":                              `c.yaml:5: escalation.webhook.token: a secret does not belong in the file: put it in a file of its own and name that in escalation.webhook.token_file, or set RECON_DLQ_ESCALATION_WEBHOOK_TOKEN`,
		"escalation:\n  webhook:\n    tokn_file: x\n":                                `c.yaml:5: escalation.webhook.tokn_file: unknown key: did you mean "token_file"?`,
	} {
		t.Run(text, func(t *testing.T) {
			expect(t, faults(t, whole+text), strings.Split(want, "|")...)
		})
	}
}

func TestAKeyOfAnEntryNamesItsPlace(t *testing.T) {
	expect(t, faults(t, `kafka:
  brokers: [localhost:9092]
targets:
  - name: ledger
    http:
      url: http://127.0.0.1/
      timout: 3s
  - name: archive
    htpp: {url: http://127.0.0.1/}
rules:
  - name: all
    target: ledger
    sla:
      maxage: 3h
`),
		`c.yaml:7: targets[0].http.timout: unknown key: did you mean "timeout"?`,
		`c.yaml:9: targets[1].htpp: unknown key: did you mean "http"?`,
		`c.yaml:14: rules[0].sla.maxage: unknown key: did you mean "max_age"?`,
	)
}

func TestAFeatureThatComesLaterIsRefusedUnlessItIsEmpty(t *testing.T) {
	expect(t, faults(t, whole+"masking: []\npoison: {}\nescalation: {routes: [], notifiers: ~}\n"))
	expect(t, faults(t, `kafka:
  brokers: [localhost:9092]
targets:
  - name: ledger
    http: {url: http://127.0.0.1/}
    rate: 100/s
    kafka: {topic: x}
rules:
  - name: all
    target: ledger
    window: {cron: "0 2 * * *"}
masking: [pan]
poison: {max_age: 3d}
escalation:
  routes: [{to: x}]
  notifiers: [{name: x}]
`),
		"c.yaml:6: targets[0].rate: is not supported yet: remove it",
		"c.yaml:7: targets[0].kafka: is not supported yet: remove it",
		"c.yaml:11: rules[0].window: is not supported yet: remove it",
		"c.yaml:12: masking: is not supported yet: remove it",
		"c.yaml:13: poison: is not supported yet: remove it",
		"c.yaml:15: escalation.routes: is not supported yet: remove it",
		"c.yaml:16: escalation.notifiers: is not supported yet: remove it",
	)
}

func TestAValueOfTheWrongFormSaysWhichIsRight(t *testing.T) {
	const nameRule = "only letters, digits, dot, underscore and hyphen are allowed in a name"
	for text, want := range map[string]string{
		"limits: 5\n":                                                    "limits: want keys under it: max_inflight_bytes, concurrency",
		"limits: {concurrency: many}\n":                                  "limits.concurrency: is not a whole number",
		"limits: {concurrency: 010}\n":                                   "limits.concurrency: is not a whole number",
		"limits: {concurrency: 6.5}\n":                                   "limits.concurrency: is not a whole number",
		"limits: {concurrency: [6]}\n":                                   "limits.concurrency: want one value",
		"limits: {concurrency: 0}\n":                                     "limits.concurrency: 0 is out of range: want 1 to 10000",
		"limits: {concurrency: 10001}\n":                                 "limits.concurrency: 10001 is out of range: want 1 to 10000",
		"limits: {concurrency: -1}\n":                                    "limits.concurrency: -1 is out of range: want 1 to 10000",
		"limits: {max_inflight_bytes: 64mib}\n":                          "limits.max_inflight_bytes: is not a size: want a whole number with a unit, such as 64MiB or 64MB, or bytes without one",
		"limits: {max_inflight_bytes: -1}\n":                             "limits.max_inflight_bytes: is not a size: want a whole number with a unit, such as 64MiB or 64MB, or bytes without one",
		"limits: {max_inflight_bytes: 1023KiB}\n":                        "limits.max_inflight_bytes: want at least 1MiB",
		"limits: {max_inflight_bytes: 9999999TiB}\n":                     "limits.max_inflight_bytes: is too large",
		"delivery: at-most-once\n":                                       "delivery: want exactly-once or at-least-once",
		"topics: {replication: 0}\n":                                     "topics.replication: 0 is out of range: want 1 to 32767",
		"topics: {partitions: -1}\n":                                     "topics.partitions: -1 is out of range: want 0 to 10000",
		"topics: {poison: 'a b'}\n":                                      "topics.poison: " + nameRule,
		"topics: {poison: ..}\n":                                         `topics.poison: ".." is no name that Kafka allows`,
		"topics: {poison: ''}\n":                                         "topics.poison: must not be empty",
		"topics: {audit: recon.dlq.poison}\n":                            "topics.audit: overlaps topics.poison: each of the worker's topics needs a name of its own, and the prefixes must not begin another name",
		"topics: {audit: recon_dlq.poison}\n":                            "topics.audit: overlaps topics.poison: each of the worker's topics needs a name of its own, and the prefixes must not begin another name",
		"topics: {state: recon.dlq.retry.state}\n":                       "topics.state: overlaps topics.retry: each of the worker's topics needs a name of its own, and the prefixes must not begin another name",
		"source: {topics: []}\n":                                         "source.topics: name at least one topic",
		"source: {topics: recon.dlq}\n":                                  "source.topics: want a list, such as [a, b]",
		"source: {topics: [a, [b]]}\n":                                   "source.topics[1]: want one value",
		"source: {topics: [a, ~]}\n":                                     "source.topics[1]: want one value",
		"source: {topics: [a, b/c]}\n":                                   "source.topics[1]: " + nameRule,
		"source: {topics: [a, a]}\n":                                     "source.topics[1]: is the same topic as source.topics[0]",
		"source: {topics: [__consumer_offsets]}\n":                       "source.topics[0]: names beginning with two underscores are Kafka's own",
		"source: {topics: [recon.dlq.retry.10s]}\n":                      "source.topics[0]: overlaps topics.retry: the worker would read what it writes there as new",
		"source: {topics: [recon.dlq.poison]}\n":                         "source.topics[0]: overlaps topics.poison: the worker would read what it writes there as new",
		"source: {topics: [recon.dlq.audit]}\n":                          "source.topics[0]: overlaps topics.audit: the worker would read what it writes there as new",
		"source: {topics: [" + long(250) + "]}\n":                        "source.topics[0]: too long: at most 249 characters",
		"topics: {retry: " + long(186) + "}\n":                           "topics.retry: too long: at most 185 characters",
		"metrics: {listen: 9644}\n":                                      "metrics.listen: want host:port or :port, such as :9644; empty for none",
		"metrics: {listen: ':99999'}\n":                                  "metrics.listen: want host:port or :port, such as :9644; empty for none",
		"metrics: {listen: ':http'}\n":                                   "metrics.listen: want host:port or :port, such as :9644; empty for none",
		"escalation: {webhook: {url: example.org}}\n":                    "escalation.webhook.url: must begin with http:// or https://",
		"escalation: {webhook: {timeout: 2m}}\n":                         "escalation.webhook.timeout: want more than 0, at most 1m",
		"escalation: {webhook: {url: 'http://h/', token_file: /none}}\n": "escalation.webhook.token_file: cannot read the secret: no such file",
		"rules: {name: a}\n":                                             `rules: want a list of entries, each beginning with "- name:"`,
		"rules: [a]\n":                                                   "rules[0]: want keys: name, match, target, strategy, attempts, delays, permanent, sla",
	} {
		t.Run(text[:min(len(text), 60)], func(t *testing.T) {
			expect(t, faults(t, whole+text), "c.yaml:3: "+want)
		})
	}
}

func long(n int) string { return strings.Repeat("a", n) }

func TestKafkaIdentitiesAreChecked(t *testing.T) {
	const hostPort = "want host:port, such as localhost:9092, without a scheme"
	for text, want := range map[string]string{
		"brokers: [localhost]":                     "kafka.brokers[0]: " + hostPort,
		"brokers: [a:1, 'kafka://b:9092']":         "kafka.brokers[1]: " + hostPort,
		"brokers: [':9092']":                       "kafka.brokers[0]: " + hostPort,
		"brokers: ['a:0']":                         "kafka.brokers[0]: " + hostPort,
		"brokers: ['a:65536']":                     "kafka.brokers[0]: " + hostPort,
		"brokers: ['user:hunter2@a:9092']":         "kafka.brokers[0]: " + hostPort,
		"brokers: ['::1:9092']":                    "kafka.brokers[0]: " + hostPort,
		"brokers: ['[::1]:9092']":                  "",
		"brokers: []":                              "kafka.brokers: is missing: name at least one broker as host:port in the file, in RECON_DLQ_KAFKA_BROKERS or with --brokers",
		"brokers: [a:1], group: ''":                "kafka.group: must not be empty",
		"brokers: [a:1], group: a b":               "kafka.group: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"brokers: [a:1], group: " + long(246):      "kafka.group: too long: at most 245 characters",
		"brokers: [a:1], instance: a/b":            "kafka.instance: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"brokers: [a:1], instance: a.b":            "kafka.instance: a dot is not allowed: transactional ids are group.instance.lane, and must be one worker's alone",
		"brokers: [a:1], instance: " + long(240):   "kafka.instance: too long: group and instance together may have 244 characters, since they make the transactional id",
		"brokers: [a:1], instance: recon-dlq-0":    "",
		"brokers: [a:1], group: 42, instance: 007": "",
	} {
		t.Run(text[:min(len(text), 60)], func(t *testing.T) {
			got := faults(t, "kafka: {"+text+"}\ntargets: [{name: ledger, http: {url: 'http://h/'}}]\n")
			if want == "" {
				expect(t, got)
				return
			}
			expect(t, got, "c.yaml:1: "+want)
		})
	}
}

func TestTargetsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{http: {url: 'http://h/'}}":                                                   "targets[0].name: must not be empty",
		"{name: a b, http: {url: 'http://h/'}}":                                        "targets[0].name: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"{name: " + long(65) + ", http: {url: 'http://h/'}}":                           "targets[0].name: too long: at most 64 characters",
		"{name: a.b, http: {url: 'http://h/'}}, {name: a_b, http: {url: 'http://h/'}}": "targets[1].name: is the name of targets[0] too, or differs only in dots and underscores: it names the hold topic",
		"{name: a}": `targets[0]: says not how it is reached: add http, exec or sql, such as http: {url: "http://127.0.0.1:8080/remediate"}`,
		"{name: a, http: {url: 'http://h/'}, exec: {command: [b]}}": "targets[0]: has http and exec: a target is one of them, remove the others",
		"{name: a, http: {}}":                                                                               "targets[0].http: needs url, such as http://127.0.0.1:8080/remediate, or unix, the path of a socket",
		"{name: a, exec: {}}":                                                                               "targets[0].exec.command: is missing: name a program and its arguments, such as [python3, fix.py]",
		"{name: a, exec: {command: []}}":                                                                    "targets[0].exec.command: is missing: name a program and its arguments, such as [python3, fix.py]",
		"{name: a, exec: {command: ['']}}":                                                                  "targets[0].exec.command: is missing: name a program and its arguments, such as [python3, fix.py]",
		"{name: a, exec: {command: python3 fix.py}}":                                                        "targets[0].exec.command: want a list, such as [a, b]",
		"{name: a, exec: {command: [b], timeout: 1h}}":                                                      "targets[0].exec.timeout: must be shorter than 25s: a worker that stops waits no longer for calls in flight",
		"{name: a, exec: [b]}":                                                                              "targets[0].exec: want keys under it: command, timeout",
		"{name: a, exec: {command: [b]}}":                                                                   "",
		"{name: a, sql: {dsn_file: /d, statement: 'insert into t values (@id)'}}":                           "",
		"{name: a, sql: {statement: 'insert into t values (@id)'}}":                                         "targets[0].sql.dsn_file: is missing: name a file that holds postgres://user:password@host:5432/database?sslmode=verify-full",
		"{name: a, sql: {dsn_file: /d, statement: ' '}}":                                                    "targets[0].sql.statement: is missing: it applies a record, see docs/handlers.md",
		"{name: a, sql: {dsn_file: /d, statement: s, processed: 'drop table x'}}":                           "targets[0].sql.processed: want the name of a table in lower case, maybe with its schema, such as recon_dlq_processed",
		"{name: a, sql: {dsn_file: /d, statement: s, timeout: 0s}}":                                         "targets[0].sql.timeout: must be more than 0, such as 10s",
		"{name: a, sql: {dsn_file: /d, statement: s, dsn: 'postgres://me:hunter2@h/'}}":                     `targets[0].sql.dsn: unknown key: known here are dsn_file, statement, processed, timeout`,
		"{name: a, allow_link_local: yes, http: {url: 'http://h/'}}":                                        "targets[0].allow_link_local: want true or false",
		"{name: a, allow_link_local: true, http: {url: 'http://h/'}}":                                       "",
		"{name: a, allow_link_local: true, exec: {command: [b]}}":                                           "targets[0].allow_link_local: has no meaning for exec, which has no address: remove it",
		"{name: a, http: {url: 'http://h/', auth: {token: hunter2}}}":                                       `targets[0].http.auth.token: unknown key here: did you mean "escalation.webhook.token"?`,
		"{name: a, http: {url: 'http://h/', auth: {bearer_file: /x}}}":                                      "",
		"{name: a, http: {url: 'http://h/', auth: {bearer_file: /x, basic: {user: a, password_file: /y}}}}": "targets[0].http.auth: has bearer_file and basic: both are the Authorization header, use one of them",
		"{name: a, http: {url: 'http://h/', auth: {basic: {user: a}}}}":                                     "targets[0].http.auth.basic.password_file: is missing: it belongs to user",
		"{name: a, http: {url: 'http://h/', auth: {basic: {password_file: /x}}}}":                           "targets[0].http.auth.basic.user: is missing: it belongs to password_file",
		"{name: a, http: {url: 'http://h/', auth: {basic: {user: 'a:b', password_file: /x}}}}":              "targets[0].http.auth.basic.user: must have no colon and no control character",
		"{name: a, http: {url: 'http://h/', auth: {hmac: {previous_secret_file: /x}}}}":                     "targets[0].http.auth.hmac.secret_file: is missing: previous_secret_file is the one that it replaces",
		"{name: a, http: {url: 'http://h/', tls: {ca_file: /x}}}":                                           "targets[0].http.tls: needs a url that begins with https://",
		"{name: a, http: {url: 'https://h/', tls: {cert_file: /x}}}":                                        "targets[0].http.tls.key_file: is missing: it belongs to cert_file",
		"{name: a, http: {url: 'https://h/', tls: {key_file: /x}}}":                                         "targets[0].http.tls.cert_file: is missing: it belongs to key_file",
		"{name: a, http: {url: 'https://h/', tls: {ca_file: /x, cert_file: /y, key_file: /z}}}":             "",
		"{name: a, http: {timeout: 3s}}":                                                                    "targets[0].http: needs url, such as http://127.0.0.1:8080/remediate, or unix, the path of a socket",
		"{name: a, http: {url: /remediate}}":                                                                "targets[0].http.url: must begin with http:// or https://",
		"{name: a, http: {url: 'ftp://h/'}}":                                                                "targets[0].http.url: must begin with http:// or https://",
		"{name: a, http: {url: 'http:///x'}}":                                                               "targets[0].http.url: names no host",
		"{name: a, http: {url: 'http://:80/x'}}":                                                            "targets[0].http.url: names no host",
		"{name: a, http: {url: 'http://h:0/x'}}":                                                            "targets[0].http.url: has no valid port: want 1 to 65535",
		"{name: a, http: {url: 'http://h:80000/x'}}":                                                        "targets[0].http.url: has no valid port: want 1 to 65535",
		"{name: a, http: {url: 'http://h/#x'}}":                                                             "targets[0].http.url: has a fragment (#), which is never sent: remove it",
		"{name: a, http: {url: 'http://h/%zz'}}":                                                            "targets[0].http.url: is not a URL: want http:// or https://, host and path",
		"{name: a, http: {url: 'http://me:hunter2@h/'}}":                                                    "targets[0].http.url: has a user name or password in it: put the secret in a file",
		"{name: a, http: {url: 'http://me:hun:ter2%zz@h/'}}":                                                "targets[0].http.url: is not a URL: want http:// or https://, host and path; a user name or password does not belong in it, put the secret in a file",
		"{name: a, http: {unix: run/x.sock}}":                                                               "targets[0].http.unix: want the absolute path of a socket, such as /run/ledger.sock",
		"{name: a, http: {url: 'unix:x.sock'}}":                                                             "targets[0].http.unix: want the absolute path of a socket, such as /run/ledger.sock",
		"{name: a, http: {unix: /" + long(107) + "}}":                                                       "targets[0].http.unix: too long for a socket: at most 107 bytes",
		"{name: a, http: {unix: /x, url: 'unix:/y'}}":                                                       "targets[0].http.url: names a unix socket, and targets[0].http.unix too: use one of them",
		"{name: a, http: {url: 'http://h/', timeout: 10}}":                                                  "targets[0].http.timeout: 10 has no unit: write 10s, or with ms, m, h or d",
		"{name: a, http: {url: 'http://h/', timeout: 0}}":                                                   "targets[0].http.timeout: 0 has no unit: write 0s, or with ms, m, h or d",
		"{name: a, http: {url: 'http://h/', timeout: 0s}}":                                                  "targets[0].http.timeout: must be more than 0, such as 10s",
		"{name: a, http: {url: 'http://h/', timeout: -3s}}":                                                 "targets[0].http.timeout: is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d",
		"{name: a, http: {url: 'http://h/', timeout: soon}}":                                                "targets[0].http.timeout: is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d",
		"{name: a, http: {url: 'http://h/', timeout: 25s}}":                                                 "targets[0].http.timeout: must be shorter than 25s: a worker that stops waits no longer for calls in flight",
		"{name: a, http: {url: 'http://h/', timeout: 24999ms}}":                                             "",
	} {
		t.Run(text[:min(len(text), 60)], func(t *testing.T) {
			got := faults(t, "kafka: {brokers: [a:1]}\ntargets: ["+text+"]\nrules: [{name: all, strategy: manual}]\n")
			if want == "" {
				expect(t, got)
				return
			}
			expect(t, got, "c.yaml:2: "+want)
		})
	}
}

func TestRulesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{target: ledger}":                                                                "rules[0].name: missing: decisions and audit events name their rule",
		"{name: a b, target: ledger}":                                                     "rules[0].name: only letters, digits, dot, underscore and hyphen are allowed in a name",
		"{name: a, target: legder}":                                                       `rules[0].target: no target has that name: did you mean "ledger"?`,
		"{name: a, target: hunter2}":                                                      "rules[0].target: no target has that name",
		"{name: a}":                                                                       "rules[0].target: missing: name a target, or use strategy manual",
		"{name: a, target: ledger, strategy: fast}":                                       "rules[0].strategy: unknown strategy: want aggressive, balanced, gentle, manual",
		"{name: a, target: ledger, strategy: gentle, attempts: 2}":                        "rules[0].strategy: is set, and attempts or delays too: a strategy names both, use one or the other",
		"{name: a, target: ledger, delays: [1s]}":                                         "rules[0].attempts: is missing: delays need it, such as attempts: 2",
		"{name: a, target: ledger, attempts: 2}":                                          "rules[0].delays: missing: 2 attempts need at least one delay between them",
		"{name: a, target: ledger, attempts: 2, delays: [1]}":                             "rules[0].delays[0]: 1 has no unit: write 1s, or with ms, m, h or d",
		"{name: a, target: ledger, attempts: 2, delays: [1s, soon]}":                      "rules[0].delays[1]: is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d",
		"{name: a, target: ledger, attempts: 2, delays: [1ms]}":                           "rules[0].delays[0]: 1ms: must be a multiple of 100ms, at most 720h",
		"{name: a, target: ledger, sla: {max_age: 24}}":                                   "rules[0].sla.max_age: 24 has no unit: write 24s, or with ms, m, h or d",
		"{name: a, target: ledger, sla: {on_breach: panic}}":                              "rules[0].sla.on_breach: want poison or alert",
		"{name: a, target: ledger, match: {category: 'x['}}, {name: b, strategy: manual}": `rules[0].match.category: "x[" is no valid glob: close its [, end it with no backslash, and let it have at most 256 bytes`,
		"{name: a, strategy: manual}, {name: b, target: ledger}":                          "rules[1].match.category: no record reaches this rule, rules[0] takes them all: put this one before it or remove it",
		"{name: a, match: {category: x}, target: ledger}":                                 "rules: a record that none of them matches has no rule: add a last one without match, such as {name: default, target: <name>}",
	} {
		t.Run(text[:min(len(text), 70)], func(t *testing.T) {
			got := faults(t, "kafka: {brokers: [a:1]}\ntargets: [{name: ledger, http: {url: 'http://h/'}}, {name: other, http: {url: 'http://h/'}}]\nrules: ["+text+"]\n")
			expect(t, got, "c.yaml:3: "+want)
		})
	}
}

func TestMatchesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"match: {age: 3h}":                                             "match.age: unknown key: known here are category, origin, header, value, target, error, status, code, older_than, after_attempts",
		"match: {sttus: 404}":                                          "match.sttus: unknown key: did you mean \"status\"?",
		"match: {category: [a, b]}":                                    "match.category: want one value",
		"match: {status: []}":                                          "match.status: is empty: say what it shall match, or remove it",
		"match: {status: {a: 404}}":                                    "match.status: want a list, such as [a, b]",
		"match: {status: [404, [405]]}":                                "match.status[1]: want one value",
		"match: {status: 4044}":                                        `match.status[0]: is no HTTP status: want three digits, such as 404, or 5xx for all from 500 to 599`,
		"match: {error: '['}":                                          `match.error[0]: is no valid glob: close its [, end it with no backslash, and let it have at most 256 bytes`,
		"match: {error: ''}":                                           "match.error[0]: is empty: remove it, or name what it shall match",
		"match: {older_than: 0s}":                                      "match.older_than: must be more than 0, such as 12h",
		"match: {older_than: 3}":                                       "match.older_than: 3 has no unit: write 3s, or with ms, m, h or d",
		"match: {older_than: -3h}":                                     "match.older_than: is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d",
		"match: {after_attempts: 0}":                                   "match.after_attempts: must be at least 1: every record has made 0",
		"match: {after_attempts: 1001}":                                "match.after_attempts: 1001: must be 1 to 1000",
		"match: {after_attempts: many}":                                "match.after_attempts: is not a whole number",
		"match: {target: legder}":                                      `match.target[0]: no target has that name: did you mean "ledger"?`,
		"match: {target: idle}":                                        `match.target[0]: no rule sends records to "idle"`,
		"match: {status: 404}, target: ledger":                         "target: a rule that matches on target, error, status, code, older_than or after_attempts chooses no target, which is the same for all of a record's life: remove it, or match on the target",
		"match: {header: []}":                                          "match.header: is empty: say what it shall match, or remove it",
		"match: {header: {name: a}}":                                   `match.header: want a list of entries, each beginning with "- name:"`,
		"match: {header: [{is: a}]}, target: ledger":                   "match.header[0].name: missing: which header?",
		"match: {value: [a]}, target: ledger":                          "match.value[0]: want keys: path, is",
		"match: {value: [{path: '$..a'}]}, target: ledger":             "match.value[0].path: a descendant segment (..) is not allowed: name the way to the field",
		"match: {value: [{path: a}]}, target: ledger":                  "match.value[0].path: is no JSONPath (RFC 9535), such as $.context.currency at position 1",
		"match: {value: [{path: $.a, is: '['}]}, target: ledger":       `match.value[0].is: is no valid glob: close its [, end it with no backslash, and let it have at most 256 bytes`,
		"match: {status: 404}, strategy: manual, permanent: [default]": "permanent: attempts is 0, so every outcome is: remove it or raise attempts",
	} {
		t.Run(text, func(t *testing.T) {
			got := faults(t, "kafka: {brokers: [a:1]}\ntargets: [{name: ledger, http: {url: 'http://h/'}}, {name: idle, http: {url: 'http://h/'}}]\nrules: [{name: a, "+text+"}, {name: default, target: ledger}]\n")
			expect(t, got, "c.yaml:3: rules[0]."+want)
		})
	}
}

func TestTenThousandFaultyRulesAreReportedInSeconds(t *testing.T) {
	var b strings.Builder
	b.WriteString(whole + "rules:\n")
	for i := range policy.MaxRules {
		fmt.Fprintf(&b, " - {name: r%d, target: x, match: {error: '['}, sla: {max_age: 0}}\n", i)
	}
	start := time.Now()
	got := faults(t, b.String())
	t.Logf("%d faults in %s", len(got), time.Since(start))
	if len(got) < 3*policy.MaxRules || time.Since(start) > time.Minute {
		t.Errorf("%d faults in %s", len(got), time.Since(start))
	}
}

func TestAllFaultsAreReportedAtOnceInTheOrderOfTheFile(t *testing.T) {
	expect(t, faults(t, `kafka:
  broker: [a]
  group: a b
limits:
  concurrency: none
targets:
  - name: x
    http: {url: "http://h/", timeout: 30s}
`, "RECON_DLQ_DELIVERY=never", "RECON_DLQ_KAFKA_GRUOP=x"),
		`RECON_DLQ_KAFKA_GRUOP: unknown variable: did you mean RECON_DLQ_KAFKA_GROUP?`,
		`RECON_DLQ_DELIVERY: delivery: want exactly-once or at-least-once`,
		`c.yaml:2: kafka.broker: unknown key: did you mean "brokers"?`,
		`c.yaml:3: kafka.group: only letters, digits, dot, underscore and hyphen are allowed in a name`,
		`c.yaml:5: limits.concurrency: is not a whole number`,
		`c.yaml:8: targets[0].http.timeout: must be shorter than 25s: a worker that stops waits no longer for calls in flight`,
	)
}

func TestTheEnvironmentIsExactToo(t *testing.T) {
	for env, want := range map[string]string{
		"RECON_DLQ_KAFKA_BROKRES=a:1":           "RECON_DLQ_KAFKA_BROKRES: unknown variable: did you mean RECON_DLQ_KAFKA_BROKERS?",
		"RECON_DLQ_CONFIGURATION_OF_THE_MOON=x": "RECON_DLQ_CONFIGURATION_OF_THE_MOON: unknown variable: nothing is configured by it",
		"RECON_DLQ_TARGETS=x":                   "RECON_DLQ_TARGETS: targets is a list of entries: it can only be set in the file",
		"RECON_DLQ_RULES_0_NAME=x":              "RECON_DLQ_RULES_0_NAME: rules is a list of entries: it can only be set in the file",
		"RECON_DLQ_KAFKA_SASL_PASSWORD=hunter2": "c.yaml:1: kafka.sasl.mechanism: is missing: want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
		"RECON_DLQ_MASKING_PAN=hunter2":         "RECON_DLQ_MASKING_PAN: masking is not supported yet",
		"RECON_DLQ_KAFKA_BROKERS=a:1,,b:2":      "RECON_DLQ_KAFKA_BROKERS: kafka.brokers[1]: want host:port, such as localhost:9092, without a scheme",
		"RECON_DLQ_LIMITS_CONCURRENCY=x":        "RECON_DLQ_LIMITS_CONCURRENCY: limits.concurrency: is not a whole number",
		"RECON_DLQ_ESCALATION_WEBHOOK_TOKEN=x":  "escalation.webhook.url: is missing: the token is set, but nobody is to be told",
		"RECON_DLQ_LIMITS_CONCURRENCY=":         "",
		"OTHER_KAFKA_BROKRES=x":                 "",
		// What Kubernetes injects for Services named recon-dlq and recon-dlq-metrics.
		"RECON_DLQ_SERVICE_HOST=10.0.0.1":                     "",
		"RECON_DLQ_SERVICE_PORT_HTTP=9644":                    "",
		"RECON_DLQ_PORT=tcp://10.0.0.1:9644":                  "",
		"RECON_DLQ_PORT_9644_TCP_ADDR=10.0.0.1":               "",
		"RECON_DLQ_METRICS_PORT_9644_TCP=tcp://10.0.0.1:9644": "",
		"RECON_DLQ_METRICS_SERVICE_PORT=9644":                 "",
	} {
		t.Run(env, func(t *testing.T) {
			got := faults(t, whole, env)
			if want == "" {
				expect(t, got)
				return
			}
			expect(t, got, want)
		})
	}
}

func TestAFlagWithABadValueIsNamed(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(fs)
	if err := fs.Parse([]string{"--brokers", "localhost", "--group", ""}); err != nil {
		t.Fatal(err)
	}
	_, err := Load(write(t, whole), nil, fs)
	expect(t, lines(t, err, ""),
		"--brokers: kafka.brokers[0]: want host:port, such as localhost:9092, without a scheme",
		"--group: kafka.group: must not be empty",
	)
}

func TestNoVariableSetsTwoKeys(t *testing.T) {
	seen := make(map[string]string)
	schema.each("", func(path string, k *key) {
		if k.kind == group || strings.Contains(path, "[]") {
			return
		}
		if other, twice := seen[envName(path)]; twice {
			t.Errorf("%s sets %s and %s", envName(path), other, path)
		}
		seen[envName(path)] = path
	})
	for name := range envKeys() {
		if injected.MatchString(name) {
			t.Errorf("%s would be ignored as injected by Kubernetes", name)
		}
	}
}

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

const rulesOfTwo = `
targets:
  - {name: ledger, http: {url: "http://127.0.0.1:1/"}}
  - {name: archive, http: {url: "http://127.0.0.1:2/", timeout: 3s}}
rules:
  - {name: people, match: {category: "schema_*"}, strategy: manual}
  - {name: broken, match: {header: [{name: exception, is: "*Timeout*"}], value: [{path: $.context.currency, is: EUR}]}, target: archive, strategy: gentle}
  - {name: locked, match: {status: 423, target: ledger}, attempts: 3, delays: [1h]}
  - {name: default, target: ledger, sla: {max_age: 12h, on_breach: alert}}
`

// tempFile puts text in a file of the test's own.
func tempFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const noon = "2026-03-01T12:00:00Z"

func TestExplainTellsTheWayOfAValueWithoutBrokers(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	value := tempFile(t, "d.json", `{"discrepancy_id":"d-1","category":"amount","context":{"currency":"EUR","iban":"SECRET"},"enqueued_ms":1772362800000}`+"\n")
	code, out, stderr := run(t, "explain", "-c", rules, "--at", noon, "--answer", "503", "--answer", "423/LOCKED", value)
	if code != ExitOK || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	const want = `discrepancy  d-1
record       in no topic yet, would arrive in recon.dlq
category     amount
enqueued     2026-03-01T11:00:00.000Z
rule         default
not          people: category is "amount", not schema_*
             broken: no header exception
             locked: has not failed yet
target       ledger, 10s a call, with all others at most 64 calls at a time
attempts     0 counted, at most 5
waits        10s 1m 10m 1h
permanent    default
SLA          12h, then alert

If calls are answered with http_503, then always rejected (423)/LOCKED:
AT                        AFTER   ANSWER                 COUNTED  THEN                  RULE
2026-03-01T12:00:00.000Z  0s      http_503               1        retry in 10s, failed  default
2026-03-01T12:00:09.168Z  9.168s  rejected (423)/LOCKED  2        poison, permanent     locked

fate: poison, permanent, by rule locked, at 2026-03-01T12:00:09.168Z
Each wait can differ by up to a second: the record gets its id, which spreads them, when it is in Kafka.
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}

	code, out, stderr = run(t, "explain", "-c", rules, "--at", noon, "--header", "exception=SECRET Timeout", "--answer", "resolved", "-o", "json", value)
	x := decode[explained](t, out)
	if code != ExitOK || stderr != "" || x.Rule != "broken" || x.Target.Name != "archive" || x.Target.Timeout != "3s" || x.Fate.Fate != "resolved" ||
		len(x.Steps) != 1 || x.Steps[0].Answer != "resolved" || x.Approximate || x.Record.Kind != "source" || x.Limits.Delays[0] != "10m" {
		t.Errorf("exit code %d, stderr %q, %s", code, stderr, out)
	}
	if strings.Contains(out, "SECRET") {
		t.Errorf("a field or header is shown: %s", out)
	}
}

func TestExplainOfARecordForPeopleAndOfAMalformedOne(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	people := tempFile(t, "p.json", `{"discrepancy_id":"d-1","category":"schema_x","context":{},"enqueued_ms":0}`)
	code, out, _ := run(t, "explain", "-c", rules, "--at", noon, people)
	if code != ExitOK || !strings.Contains(out, "target       none: straight to people\n") || !strings.HasSuffix(out, "\nfate: poison, manual, by rule people, at 2026-03-01T12:00:00.000Z\n") {
		t.Errorf("exit code %d, %s", code, out)
	}
	bad := tempFile(t, "b.json", `{"discrepancy_id":"d-1","context":{}}`)
	code, out, _ = run(t, "explain", "-c", rules, "--at", noon, bad)
	if code != ExitOK || !strings.HasSuffix(out, "fate         poison, malformed: value: field category: missing\n") {
		t.Errorf("exit code %d, %s", code, out)
	}
	code, out, _ = run(t, "explain", "-c", rules, "--at", noon, "-o", "json", bad)
	if x := decode[explained](t, out); code != ExitOK || x.Malformed == "" || x.Fate.Reason != "malformed" || x.Fate.Fate != "poison" || x.Rule != "" {
		t.Errorf("exit code %d, %s", code, out)
	}
}

func TestExplainSaysWhatIsWrongWithItsArguments(t *testing.T) {
	rules := tempFile(t, "c.yaml", rulesOfTwo)
	value := tempFile(t, "d.json", `{}`)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--at noon " + value, ExitUsage, "--at: want a time such as 2026-03-01T12:00:00Z"},
		{"--answer Not-Found " + value, ExitUsage, "--answer: answer \"Not-Found\": want an HTTP status such as 503, or a cause such as timeout"},
		{"--topic other " + value, ExitUsage, `--topic: "other" is not one of source.topics (recon.dlq)`},
		{"--header novalue " + value, ExitUsage, "--header: want NAME=VALUE"},
		{"--header a=b recon.dlq/0/1", ExitUsage, "--topic and --header are for a value from a file"},
		{"a b", ExitUsage, "accepts at most 1 arg(s)"},
		{"-", ExitNoMatch, "no record in the input"},
		{"/nowhere/x.json", ExitFailed, "open input: open /nowhere/x.json: no such file or directory"},
		{"recon.dlq/0/1", ExitFailed, "kafka.brokers: is missing"},
		{"--brokers 127.0.0.1:1 elsewhere/0/1", ExitUsage, "elsewhere is no topic with records of this configuration: want a source, a tier (recon.dlq.retry.…), a hold topic (recon.dlq.hold.…) or recon.dlq.poison"},
		{"--brokers 127.0.0.1:1 recon.dlq.audit/0/1", ExitUsage, "recon.dlq.audit is no topic with records"},
		{"--brokers 127.0.0.1:1 recon.dlq/0/1", ExitFailed, "cannot reach 127.0.0.1:1"},
	} {
		t.Run(c.args[:min(len(c.args), 40)], func(t *testing.T) {
			code, out, stderr := run(t, append([]string{"explain", "-c", rules}, strings.Split(c.args, " ")...)...)
			if code != c.code || out != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q", code, out, stderr, c.code, c.want)
			}
		})
	}
}

func TestExplainReadsARecordOfATopic(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		c := prepared(t, b)
		enqueued := time.Now().Add(-time.Hour).UnixMilli()
		value := fmt.Appendf(nil, `{"discrepancy_id":"d-9","category":"amount","context":{"iban":"SECRET"},"enqueued_ms":%d}`, enqueued)
		cl := brokers.Client(t, append(b.Opts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		produce := func(topic string, headers ...deadletter.Header) string {
			t.Helper()
			r := &kgo.Record{Topic: topic, Value: value}
			for _, h := range headers {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%s/%d/%d", topic, r.Partition, r.Offset)
		}
		ask := func(place string) explained {
			t.Helper()
			code, out, stderr := c.run(t.Context(), nil, "explain", "-o", "json", place)
			if code != ExitOK || strings.Contains(out, "SECRET") {
				t.Fatalf("%s: exit code %d, %s%s", place, code, stderr, out)
			}
			return decode[explained](t, out)
		}
		x := ask(produce(c.names.Source))
		if x.Record.ID == "" || x.Record.Kind != "source" || x.Record.Origin != c.names.Source+"/0/0" || x.Approximate || len(x.Steps) != 3 ||
			x.Steps[0].Tier != "1s" || x.Fate.Fate != "poison" || x.Record.Enqueued.UnixMilli() != enqueued {
			t.Errorf("source: %+v", x)
		}
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
		r := deadletter.Record{ID: x.Record.ID, Origin: x.Record.Origin, Attempt: 2, NotBefore: due.UnixMilli(), Enqueued: enqueued, ErrorClass: "http_503", ErrorStatus: 503, ErrorCode: "E42"}
		x = ask(produce(c.names.Tier(2*time.Second), r.Headers()...))
		if x.Record.Kind != "tier" || x.Record.Attempts != 2 || x.Record.ErrorCode != "E42" || !x.Record.NotBefore.Equal(due) || x.Steps[0].Action != "retier" {
			t.Errorf("tier: %+v", x)
		}
		// Taken up no earlier than its tier lets it go.
		if wait := time.Until(x.Steps[0].At); wait > 2*time.Second || x.Fate.At.Before(due) {
			t.Errorf("taken up in %s, ends at %s, not before %s", wait, x.Fate.At, due)
		}
		r.Reason, r.Rule = deadletter.ReasonPermanent, "of-old"
		place := produce(c.names.Poison, r.Headers()...)
		if x = ask(place); x.Record.Kind != "poison" || x.Fate.Fate != "poison" || x.Fate.Reason != "permanent" || x.Fate.Rule != "of-old" || len(x.Steps) != 0 {
			t.Errorf("poison: %+v", x)
		}
		code, out, _ := c.run(t.Context(), nil, "explain", place)
		if code != ExitOK || !strings.HasSuffix(out, "\nfate: poison, permanent, by rule of-old\n") || !strings.Contains(out, "last failure  http_503/E42\n") {
			t.Errorf("exit code %d, %s", code, out)
		}
		code, out, stderr := c.run(t.Context(), nil, "explain", c.names.Source+"/0/99")
		if code != ExitNoMatch || out != "" || !strings.Contains(stderr, "/0/99: no record: what is committed ends before 1") {
			t.Errorf("exit code %d, %q, %s", code, out, stderr)
		}
	})
}

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

func mustLoad(t *testing.T, text string, env ...string) Config {
	t.Helper()
	c, err := Load(write(t, text), env, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhatIsNotWrittenHasItsDefault(t *testing.T) {
	got := mustLoad(t, whole)
	want := Config{
		Kafka:  Kafka{Brokers: []string{"localhost:9092"}, Group: "recon-dlq"},
		Source: Source{Topics: []string{"recon.dlq"}},
		Topics: Topics{
			Retry: "recon.dlq.retry.", Hold: "recon.dlq.hold.", Poison: "recon.dlq.poison",
			Audit: "recon.dlq.audit", State: "recon.dlq.state", Replication: 3,
		},
		Delivery: ExactlyOnce,
		Limits:   Limits{MaxInflightBytes: 64 << 20, Concurrency: 64},
		Targets:  []Target{{Name: "ledger", HTTP: HTTP{URL: "http://127.0.0.1:8080/remediate", Timeout: 10 * time.Second}}},
		Rules: []policy.Rule{{
			Name: "default", Target: "ledger", Attempts: 5,
			Delays: []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, time.Hour},
			MaxAge: 24 * time.Hour,
		}},
		Escalation: Escalation{Webhook: Webhook{Timeout: 10 * time.Second}},
		Metrics:    Metrics{Listen: ":9644"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	def := Default()
	want.Kafka.Brokers, want.Targets, want.Rules = nil, nil, nil
	if !reflect.DeepEqual(def, want) {
		t.Errorf("Default() = %+v\nwant %+v", def, want)
	}
}

func TestTheDefaultsOfRulesAreThoseOfPolicy(t *testing.T) {
	for path, want := range map[string]string{
		"strategy": policy.DefaultPreset,
		"max_age":  policy.FormatDelay(policy.DefaultSLA),
	} {
		var got string
		schema.each("", func(_ string, k *key) {
			if k.name == path && k.def != "" {
				got = k.def
			}
		})
		if got != want {
			t.Errorf("default of %s is %q, policy's is %q", path, got, want)
		}
	}
	for _, name := range presets {
		if _, _, ok := policy.Preset(name); !ok {
			t.Errorf("policy has no strategy %q", name)
		}
	}
}

func TestARuleIsReadWithAllItsKeys(t *testing.T) {
	c := mustLoad(t, `
kafka: {brokers: ["a:1", "b:2"]}
targets:
  - {name: ledger, http: {url: "http://h/x", timeout: 3s}}
  - {name: archive, http: {url: "unix:/run/x.sock"}}
  - {name: paths, http: {unix: /run/y.sock, url: "/fix?a=b"}}
  - {name: cards, exec: {command: [python3, -u, cards.py]}}
rules:
  - {name: people, match: {category: "schema_*"}, strategy: manual}
  - name: failed
    match:
      origin: a.dlt
      header: [{name: h}, {name: g, is: 1}]
      value: [{path: $.a, is: "null"}]
      target: [ledger, archive]
      error: [timeout, "http_5??"]
      status: 503
      code: [E1, 42]
      older_than: 1d
      after_attempts: 2
    strategy: aggressive
    permanent: E*
  - {name: never, match: {status: 5xx}, strategy: balanced, permanent: []}
  - {name: own, match: {category: amount}, target: archive, attempts: 3, delays: [1500ms, 1d], sla: {max_age: 1d12h, on_breach: alert}}
  - {name: rest, target: ledger, strategy: gentle}
`)
	h := time.Hour
	aggressive, waits, _ := policy.Preset("aggressive")
	balanced, pauses, _ := policy.Preset("balanced")
	want := []policy.Rule{
		{Name: "people", Category: "schema_*", MaxAge: 24 * h},
		{Name: "failed", Match: policy.Match{
			Origin: []string{"a.dlt"}, Header: []policy.HeaderMatch{{Name: "h"}, {Name: "g", Is: "1"}},
			Value:  []policy.ValueMatch{{Path: "$.a", Is: "null"}},
			Target: []string{"ledger", "archive"}, Error: []string{"timeout", "http_5??"}, Status: []string{"503"}, Code: []string{"E1", "42"},
			OlderThan: 24 * h, AfterAttempts: 2,
		}, Attempts: aggressive, Delays: waits, Permanent: []string{"E*"}, MaxAge: 24 * h},
		{Name: "never", Match: policy.Match{Status: []string{"5xx"}}, Attempts: balanced, Delays: pauses, Permanent: []string{}, MaxAge: 24 * h},
		{Name: "own", Category: "amount", Target: "archive", Attempts: 3, Delays: []time.Duration{1500 * time.Millisecond, 24 * h}, MaxAge: 36 * h, OnBreach: policy.BreachAlert},
		{Name: "rest", Target: "ledger", Attempts: 5, Delays: []time.Duration{10 * time.Minute, h, 6 * h, 24 * h}, MaxAge: 24 * h},
	}
	if !reflect.DeepEqual(c.Rules, want) {
		t.Errorf("rules %+v\nwant  %+v", c.Rules, want)
	}
	if got, want := c.Targets[1].HTTP, (HTTP{Unix: "/run/x.sock", Timeout: 10 * time.Second}); got != want {
		t.Errorf("archive: %+v, want %+v", got, want)
	}
	if got, want := c.Targets[2].HTTP, (HTTP{Unix: "/run/y.sock", URL: "http://localhost/fix?a=b", Timeout: 10 * time.Second}); got != want {
		t.Errorf("paths: %+v, want %+v", got, want)
	}
	if got, want := c.Targets[3], (Target{Name: "cards", Exec: Exec{Command: []string{"python3", "-u", "cards.py"}, Timeout: 10 * time.Second}}); !reflect.DeepEqual(got, want) {
		t.Errorf("cards: %+v, want %+v", got, want)
	}
	if got := c.Targets[3].Timeout(); got != 10*time.Second {
		t.Errorf("cards: timeout %s", got)
	}
}

func TestARuleWithoutTargetMeansTheOnlyOne(t *testing.T) {
	c := mustLoad(t, whole+"rules: [{name: all, strategy: aggressive}]\n")
	if got := c.Rules[0].Target; got != "ledger" {
		t.Errorf("target %q, want ledger", got)
	}
}

func TestARuleOnWhatChangesHasNoTargetNotEvenTheOnlyOne(t *testing.T) {
	c := mustLoad(t, whole+"rules: [{name: slow, match: {status: 503}, strategy: gentle}, {name: all}]\n")
	if got := c.Rules[0].Target; got != "" {
		t.Errorf("target %q, want none", got)
	}
}

func TestFlagsWinOverEnvironmentOverFileOverDefaults(t *testing.T) {
	const file = whole + "metrics: {listen: ':1111'}\n"
	load := func(text string, env []string, args ...string) Config {
		t.Helper()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		Flags(fs)
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
		c, err := Load(write(t, text), env, fs)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	env := []string{"RECON_DLQ_METRICS_LISTEN=:2222", "RECON_DLQ_KAFKA_BROKERS=e1:1, e2:2"}
	if got := load(whole, nil).Metrics.Listen; got != ":9644" {
		t.Errorf("default: %q", got)
	}
	if got := load(file, nil).Metrics.Listen; got != ":1111" {
		t.Errorf("file: %q", got)
	}
	c := load(file, env)
	if got := c.Metrics.Listen; got != ":2222" {
		t.Errorf("environment: %q", got)
	}
	if got := fmt.Sprint(c.Kafka.Brokers); got != "[e1:1 e2:2]" {
		t.Errorf("environment: brokers %s", got)
	}
	c = load(file, env, "--metrics-listen", ":3333", "--brokers", "f1:1,f2:2", "--group", "g", "--instance", "i", "--first-start")
	if got := c.Metrics.Listen; got != ":3333" {
		t.Errorf("flag: %q", got)
	}
	if got := fmt.Sprintf("%v %s %s", c.Kafka.Brokers, c.Kafka.Group, c.Kafka.Instance); got != "[f1:1 f2:2] g i" {
		t.Errorf("flags: kafka %s", got)
	}
	if !c.FirstStart || load(file, env).FirstStart {
		t.Error("--first-start is not what the flag says")
	}
}

func TestAHigherLayerMendsAFaultyValueBelowIt(t *testing.T) {
	c := mustLoad(t, whole+"limits: {concurrency: 0}\n", "RECON_DLQ_LIMITS_CONCURRENCY=7")
	if c.Limits.Concurrency != 7 {
		t.Errorf("concurrency %d, want 7", c.Limits.Concurrency)
	}
}

func TestTheEnvironmentNamesTheFileWhereNothingElseDoes(t *testing.T) {
	file := write(t, whole)
	if _, err := Load("", []string{EnvConfig + "=" + file}, nil); err != nil {
		t.Error(err)
	}
	_, err := Load(filepath.Join(t.TempDir(), "absent"), []string{EnvConfig + "=" + file}, nil)
	if err == nil {
		t.Error("the file that was named outright did not win over the environment's")
	}
}

func TestAClientNeedsNoTarget(t *testing.T) {
	env := []string{"RECON_DLQ_KAFKA_BROKERS=a:1"}
	if _, err := LoadClient("", env, nil); err != nil {
		t.Error(err)
	}
	if _, err := Load("", env, nil); err == nil {
		t.Error("a worker without a target was accepted")
	}
	if _, err := LoadClient("", nil, nil); err == nil {
		t.Error("a client without brokers was accepted")
	}
}

func TestWhatOnlyDecidesNeedsNoBroker(t *testing.T) {
	file := write(t, "targets: [{name: ledger, http: {url: 'http://h/'}}]\n")
	if c, err := LoadRules(file, nil, nil); err != nil || len(c.Rules) != 1 {
		t.Error(c.Rules, err)
	}
	if _, err := LoadRules(file, []string{"RECON_DLQ_KAFKA_BROKERS=nonsense"}, nil); err == nil {
		t.Error("a faulty broker was accepted")
	}
	if _, err := LoadRules("", nil, nil); err == nil {
		t.Error("rules without a target were accepted")
	}
}

func TestPrintIsTheGoldenFileAndLoadsAgain(t *testing.T) {
	c, err := Load("../deploy/recon-dlq.yaml", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "print.golden.yaml")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("Print gives\n%s\nwant (go test ./config -update writes it)\n%s", b.String(), want)
	}
	again, err := Load(golden, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, c) {
		t.Errorf("loaded again: %+v\nwant %+v", again, c)
	}
}

// legal draws a name that Kafka takes.
func legal(t *rapid.T, label string) string {
	return rapid.StringMatching(`[a-z0-9][a-zA-Z0-9_-]{0,20}`).Draw(t, label)
}

func TestWhatIsPrintedLoadsToTheSame(t *testing.T) {
	dir := pems(t)
	rapid.Check(t, func(t *rapid.T) {
		delay := rapid.Custom(func(t *rapid.T) time.Duration {
			return policy.MinDelay * time.Duration(rapid.Int64Range(1, int64(policy.MaxDelay/policy.MinDelay)).Draw(t, "delay"))
		})
		c := Default()
		c.Kafka = Kafka{
			Brokers:  rapid.SliceOfN(rapid.SampledFrom([]string{"a:1", "[::1]:9092", "10.0.0.1:65535"}), 1, 3).Draw(t, "brokers"),
			Group:    legal(t, "group"),
			Instance: rapid.SampledFrom([]string{"", "1e3", "null", "yes", "0x1F", "2024-01-01", "pod-0"}).Draw(t, "instance"),
			TLS: rapid.SampledFrom([]TLS{
				{},
				{Enabled: true},
				{Enabled: true, CAFile: dir + "/ca.pem", ServerName: "null"},
				{Enabled: true, CertFile: dir + "/client.pem", KeyFile: dir + "/client-key.pem"},
			}).Draw(t, "tls"),
			SASL: rapid.SampledFrom([]SASL{
				{},
				{Mechanism: ScramSHA256, Username: "yes: '1e3", PasswordFile: dir + "/text", Password: NewSecret("hunter2")},
				{Mechanism: OAuthBearer, TokenFile: dir + "/text"},
				{Mechanism: OAuthBearer, TokenURL: "https://h/t?a=b", Username: "id", PasswordFile: dir + "/text", Password: NewSecret("hunter2"), Scopes: []string{"a:b", "c"}},
			}).Draw(t, "sasl"),
		}
		c.Topics.Partitions = rapid.IntRange(0, maxPartitions).Draw(t, "partitions")
		c.Delivery = rapid.SampledFrom([]Delivery{ExactlyOnce, AtLeastOnce}).Draw(t, "delivery")
		c.Limits.MaxInflightBytes = rapid.Int64Min(MinInflightBytes).Draw(t, "bytes")
		c.Limits.Concurrency = rapid.IntRange(1, MaxConcurrency).Draw(t, "concurrency")
		c.Metrics.Listen = rapid.SampledFrom([]string{"", ":0", "127.0.0.1:1", "[::1]:9644"}).Draw(t, "listen")
		c.Escalation.Webhook.URL = rapid.SampledFrom([]string{"", "https://h/a?b=c&d='e'", "http://[::1]:8080/:-"}).Draw(t, "webhook")
		for i := range rapid.IntRange(1, 3).Draw(t, "targets") {
			target := rapid.SampledFrom([]Target{
				{HTTP: HTTP{URL: "http://h/", Timeout: time.Second}, AllowLinkLocal: true},
				{HTTP: HTTP{Unix: "/run/a: b.sock", Timeout: DrainBound - 1, Auth: Auth{BearerFile: "/run/#x"}}},
				{HTTP: HTTP{Unix: "/run/x", URL: "http://localhost/y", Timeout: 1500 * time.Microsecond, Auth: Auth{User: "null", PasswordFile: "/p", HMACFile: "/h"}}},
				{HTTP: HTTP{URL: "https://h/", Timeout: time.Second, Auth: Auth{HMACFile: "/h", PreviousHMACFile: "/i"}, TLS: TLSFiles{CAFile: "/ca", CertFile: "/c", KeyFile: "/k"}}},
				{HTTP: HTTP{URL: "https://h/", Timeout: time.Second, TLS: TLSFiles{CAFile: "/ca"}}},
				{Exec: Exec{Command: []string{"/bin/a b", "", "yes", "-c", "x: [y] # z"}, Timeout: time.Second}},
				{SQL: SQL{DSNFile: "/d", Statement: "insert into t\n  values (@id) -- #: x\n", Processed: "s.p", Timeout: time.Second}, AllowLinkLocal: true},
			}).Draw(t, "target")
			target.Name = fmt.Sprintf("%s%d", legal(t, "name"), i)
			c.Targets = append(c.Targets, target)
		}
		n := rapid.IntRange(1, 4).Draw(t, "rules")
		for i := range n {
			r := policy.Rule{
				Name:     fmt.Sprintf("r%d", i),
				Target:   c.Targets[0].Name,
				Attempts: rapid.IntRange(0, 5).Draw(t, "attempts"),
				MaxAge:   delay.Draw(t, "age"),
				OnBreach: rapid.SampledFrom([]policy.Breach{policy.BreachPoison, policy.BreachAlert}).Draw(t, "breach"),
			}
			if i == n-1 {
				r.Attempts++ // some rule sends records to the target
			}
			if r.Attempts > 0 {
				r.Delays = rapid.SliceOfN(delay, 1, 4).Draw(t, "delays")
			}
			if r.Attempts > 0 {
				r.Permanent = rapid.SampledFrom([][]string{nil, {}, {"default"}, {"E: '4*'", "~"}}).Draw(t, "permanent")
			}
			if i < n-1 {
				r.Category = fmt.Sprintf("[#%d] '*: x", i)
				r.Match = rapid.SampledFrom([]policy.Match{
					{},
					{Origin: []string{"a.b", "*"}, Header: []policy.HeaderMatch{{Name: "a: b"}, {Name: "{c}", Is: "'*'"}}},
					{Value: []policy.ValueMatch{{Path: "$['a b']"}, {Path: `$[?@.a > 1 && @["b"] == 'x']`, Is: "null"}}},
					{Target: []string{c.Targets[0].Name}, Error: []string{"timeout", "~"}, Status: []string{"404", "5xx"}, Code: []string{"1e3", "# x"}},
					{OlderThan: delay.Draw(t, "older than"), AfterAttempts: rapid.IntRange(0, 1000).Draw(t, "after attempts")},
				}).Draw(t, "match")
				if !r.ChoosesTarget() {
					r.Target = ""
				}
			}
			c.Rules = append(c.Rules, r)
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("the generator made a faulty configuration: %v", err)
		}
		var b bytes.Buffer
		if err := c.Print(&b); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Load(file, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if !reflect.DeepEqual(again, c) {
			t.Fatalf("got  %+v\nwant %+v\n%s", again, c, b.String())
		}
		// JSON is YAML: what PrintJSON writes loads too.
		b.Reset()
		if err := c.PrintJSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err = Load(file, nil, nil)
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("from JSON %+v (%v)\nwant %+v", again, err, c)
		}
	})
}

func TestASecretIsReadFromItsFileOrTheEnvironmentAndNeverShown(t *testing.T) {
	const hunter = "hunter2"
	tokenFile := write(t, "  "+hunter+"\r\n")
	hook := whole + "escalation: {webhook: {url: 'https://h/'}}\n"
	withFile := whole + "escalation: {webhook: {url: 'https://h/', token_file: " + tokenFile + "}}\n"
	for name, c := range map[string]Config{
		"file":                          mustLoad(t, withFile),
		"environment":                   mustLoad(t, hook, "RECON_DLQ_ESCALATION_WEBHOOK_TOKEN="+hunter),
		"file named by the environment": mustLoad(t, hook, "RECON_DLQ_ESCALATION_WEBHOOK_TOKEN_FILE="+tokenFile),
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.Escalation.Webhook.Token.Reveal(); got != hunter {
				t.Fatalf("token %q, want %q", got, hunter)
			}
			var b bytes.Buffer
			for _, print := range []func() error{
				func() error { return c.Print(&b) },
				func() error { return c.PrintJSON(&b) },
				func() error { return json.NewEncoder(&b).Encode(c) },
				func() error {
					slog.New(slog.NewTextHandler(&b, nil)).Info("configuration", "config", c, "token", c.Escalation.Webhook.Token)
					slog.New(slog.NewJSONHandler(&b, nil)).Info("configuration", "config", c, "token", c.Escalation.Webhook.Token)
					return nil
				},
				func() error {
					for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
						fmt.Fprintf(&b, verb+verb+verb, c, c.Escalation.Webhook.Token, &c.Escalation)
					}
					return nil
				},
			} {
				if err := print(); err != nil {
					t.Fatal(err)
				}
			}
			for _, form := range []string{hunter, fmt.Sprintf("%x", hunter)} {
				if strings.Contains(b.String(), form) {
					t.Errorf("the secret is shown as %s:\n%s", form, b.String())
				}
			}
		})
	}
}

func TestABadSecretIsAFaultThatDoesNotShowIt(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty":     {" \n", "the secret is empty"},
		"two lines": {"hunter2\nhunter3\n", "the secret has spaces, control characters or letters beyond ASCII: want one token"},
		"too large": {strings.Repeat("hunter2", 2000), "cannot read the secret: file is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, test.text)
			expect(t, faults(t, whole+"escalation: {webhook: {url: 'https://h/', token_file: "+file+"}}\n"),
				"c.yaml:3: escalation.webhook.token_file: "+test.want)
		})
	}
	file := write(t, "hunter2")
	expect(t, faults(t, whole+"escalation: {webhook: {url: 'https://h/', token_file: "+file+"}}\n", "RECON_DLQ_ESCALATION_WEBHOOK_TOKEN=hunter3"),
		"RECON_DLQ_ESCALATION_WEBHOOK_TOKEN: escalation.webhook.token: is set, and escalation.webhook.token_file too: use one of them")
}

// A secret in the wrong place of a file is a fault; no message may show it.
func TestNoFaultShowsAValueThatStandsInTheWrongPlace(t *testing.T) {
	const hunter = "hunter2"
	example, err := os.ReadFile("testdata/print.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Split(string(example), "\n")
	forms := []string{
		"http://me:hunter2@h/", "http://me:hun%ter2hunter2@h:hunter2/", "unix:hunter2", "*hunter2", "!hunter2 a", "&hunter2 b",
		"hunter2 hunter2", "{hunter2 x: hunter2}", "[hunter2:]", "[[hunter2]]", "'hunter2", "\"\\hunter2\"", "hunter2: hunter2: hunter2", "`hunter2", "|hunter2", "@hunter2", "%hunter2",
	}
	faulty := 0
	for i, line := range text {
		key, _, ok := strings.Cut(line, ":")
		if !ok || strings.HasSuffix(key, "category") {
			continue
		}
		for _, form := range forms {
			changed := append([]string(nil), text...)
			changed[i] = key + ": " + form
			c, err := Load(write(t, strings.Join(changed, "\n")), nil, nil)
			if err == nil {
				continue
			}
			faulty++
			if strings.Contains(err.Error(), hunter) {
				t.Errorf("line %d as %q: %v", i+1, changed[i], err)
			}
			if list, ok := errors.AsType[*Faults](err); !ok || len(list.List) == 0 {
				t.Errorf("line %d as %q: %T without faults", i+1, changed[i], err)
			}
			_ = c
		}
	}
	if faulty < 300 {
		t.Errorf("only %d of the changed files had a fault: the test has lost its grip", faulty)
	}
}

// FuzzLoad: whatever a file holds, Load gives a configuration that prints and
// loads to the same, or faults that name the file.
func FuzzLoad(f *testing.F) {
	for _, file := range []string{"testdata/print.golden.yaml", "../deploy/recon-dlq.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range []string{"", whole, "\tx", "a: &a [*a]", "kafka: {brokers: [1:2]}\ntargets: [{name: a, http: {unix: /x}}]\n", "? [a]\n: b", "--- a\n--- b", "kafka:\n  <<: *x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		load := func(data []byte) (Config, error) {
			l := &loader{}
			l.tree = newTree("c.yaml")
			l.tree.parse(data)
			return l.finish(nil, nil, Config.faults)
		}
		c, err := load(data)
		if err != nil {
			if list, ok := errors.AsType[*Faults](err); !ok || len(list.List) == 0 {
				t.Fatalf("%T without faults: %v", err, err)
			}
			return
		}
		var b bytes.Buffer
		if err := c.Print(&b); err != nil {
			t.Fatal(err)
		}
		again, err := load(b.Bytes())
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("got  %+v (%v)\nwant %+v\n%s", again, err, c, b.String())
		}
	})
}

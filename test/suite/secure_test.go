package suite

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/cli"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/authority"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
	dlqworker "github.com/recon-dlq/recon-dlq/worker"
)

func TestOverTLSAndSASL(t *testing.T) {
	// Not beside the other tests: one more cluster would make their clocks late.
	k := brokers.NewKafka(t, brokers.Options{Secure: true})
	for name, test := range map[string]func(*testing.T, *brokers.Kafka){
		"the whole job runs as the guide connects":                                                       wholeJob,
		"each mechanism connects":                                                                        eachMechanism,
		"what is wrong with a connection is said within seconds":                                         wrongConnections,
		"a revoked password is told while running and a new one counts without a restart":                revokedPassword,
		"a client certificate that expires is told while running and a new one counts without a restart": expiringCertificate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// secured is one test's files and names on the cluster with TLS and SASL.
type secured struct {
	t     *testing.T
	k     *brokers.Kafka
	dir   string
	names brokers.Names
}

func newSecured(t *testing.T, k *brokers.Kafka) *secured {
	t.Helper()
	s := &secured{t: t, k: k, dir: t.TempDir(), names: brokers.NewNames([]time.Duration{200 * time.Millisecond})}
	other, err := authority.New("another CA")
	if err != nil {
		t.Fatal(err)
	}
	s.write("ca.pem", s.k.Authority().PEM)
	s.write("other-ca.pem", other.PEM)
	s.write("password", []byte(s.k.Password()+"\n"))
	s.write("wrong", []byte("not-the-password\n"))
	s.issue("client", s.k.Authority(), time.Hour)
	s.issue("expired", s.k.Authority(), -time.Minute)
	s.issue("foreign", other, time.Hour)
	s.write("token", []byte(unsigned(time.Now().Add(time.Hour))))
	s.write("old-token", []byte(unsigned(time.Now().Add(-time.Hour))))
	return s
}

func (s *secured) write(name string, data []byte) {
	s.t.Helper()
	// As those do who rotate files: a new one takes the old one's place.
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		s.t.Fatal(err)
	}
}

// issue writes NAME.pem and NAME-key.pem.
func (s *secured) issue(name string, by *authority.Authority, valid time.Duration) {
	s.t.Helper()
	cert, key, err := by.Issue(name, valid)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(name+".pem", cert)
	s.write(name+"-key.pem", key)
}

// unsigned is a token that the brokers' listener takes, for the user worker.
func unsigned(expires time.Time) string {
	part := func(v any) string {
		text, _ := json.Marshal(v) //nolint:errchkjson // strings and numbers
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return part(map[string]any{"alg": "none"}) + "." +
		part(map[string]any{"sub": brokers.SecureUser, "iat": expires.Add(-time.Hour).Unix(), "exp": expires.Unix()}) + "."
}

// file writes a configuration with the keys kafka beside brokers and group, in
// which DIR is the directory of the test's files.
func (s *secured) file(listener, kafka, target string) string {
	s.t.Helper()
	address := s.k.Addrs()[0]
	if listener != "" {
		address = s.k.Listener(listener)
	}
	return s.whole(fmt.Sprintf("kafka: {brokers: [%q], group: %s, %s}\n", address, s.names.Group, strings.ReplaceAll(kafka, "DIR", s.dir)), target)
}

// whole writes a configuration with the section kafka.
func (s *secured) whole(kafka, target string) string {
	s.t.Helper()
	n := s.names
	s.write("recon-dlq.yaml", fmt.Appendf([]byte(kafka), `
source: {topics: [%s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, state: %s, replication: 1}
targets: [{name: ledger, http: {url: %q}}]
rules: [{name: default, target: ledger, attempts: 2, delays: [200ms]}]
metrics: {listen: ""}
`, n.Source, n.Retry, n.Hold, n.Poison, n.Audit, n.State, target))
	return filepath.Join(s.dir, "recon-dlq.yaml")
}

// guide is the examples of docs/security.md: sections kafka.
func guide(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []string
	for _, rest := range strings.Split(string(text), "```yaml\n")[1:] {
		example, _, _ := strings.Cut(rest, "```")
		examples = append(examples, example)
	}
	return examples
}

// example is an example of the guide with this test's cluster and files.
func (s *secured) example(text, tokens string) string {
	s.t.Helper()
	listener := brokers.ListenSASL
	if !strings.Contains(text, "sasl:") {
		listener = brokers.ListenMTLS
	}
	for from, to := range map[string]string{
		"[kafka-0.example:9093, kafka-1.example:9093]":                   fmt.Sprintf("[%q]\n  group: %s", s.k.Listener(listener), s.names.Group),
		"/etc/recon-dlq/ca.crt":                                          s.dir + "/ca.pem",
		"/etc/recon-dlq/tls.crt":                                         s.dir + "/client.pem",
		"/etc/recon-dlq/tls.key":                                         s.dir + "/client-key.pem",
		"/etc/recon-dlq/password":                                        s.dir + "/password",
		"/etc/recon-dlq/token":                                           s.dir + "/token",
		"https://sso.example/realms/kafka/protocol/openid-connect/token": tokens,
	} {
		text = strings.ReplaceAll(text, from, to)
	}
	if strings.Contains(text, "SCRAM") {
		text = strings.Replace(text, "username: recon-dlq", "username: "+brokers.SecureUser, 1)
	}
	if strings.Contains(text, "example") || strings.Contains(text, "/etc/") {
		s.t.Fatalf("an example of the guide has what the test does not know:\n%s", text)
	}
	return text
}

// command runs one command line.
func (s *secured) command(ctx context.Context, stdin io.Reader, args ...string) (code int, output string) {
	var out buffer
	code = cli.Main(ctx, args, stdin, &out, &out, nil)
	return code, out.String()
}

// buffer may be written by several at a time.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// The ways in, as a user writes them under kafka.
const (
	overSCRAM = `tls: {ca_file: DIR/ca.pem}, sasl: {mechanism: SCRAM-SHA-512, username: worker, password_file: DIR/password}`
	overMTLS  = `tls: {ca_file: DIR/ca.pem, cert_file: DIR/client.pem, key_file: DIR/client-key.pem}`
	overToken = `sasl: {mechanism: OAUTHBEARER, token_file: DIR/token}`
)

func wholeJob(t *testing.T, k *brokers.Kafka) {
	examples := guide(t)
	if len(examples) != 4 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, name := range []string{"SCRAM", "mTLS", "token file", "token endpoint"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t, k)
			target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var v struct {
					ID string `json:"discrepancy_id"`
				}
				_ = json.NewDecoder(r.Body).Decode(&v)
				switch {
				case suffix(v.ID, "7"):
					w.WriteHeader(http.StatusUnprocessableEntity)
				case suffix(v.ID, "3") && r.Header.Get("ce-reconattempt") == "0":
					w.WriteHeader(http.StatusInternalServerError)
				}
			}))
			defer target.Close()
			tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if id, secret, _ := r.BasicAuth(); id != "recon-dlq" || secret != s.k.Password() || r.FormValue("scope") != "kafka" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 3600}`, unsigned(time.Now().Add(time.Hour)))
			}))
			defer tokens.Close()

			brokers.Create(t, s.k, 2, nil, s.names.Source)
			file := s.whole(s.example(examples[i], tokens.URL), target.URL)
			if code, out := s.command(t.Context(), nil, "topics", "plan", "-c", file); code != 0 || !strings.Contains(out, s.names.Poison) {
				t.Fatalf("topics plan: exit %d, %s", code, out)
			}
			if code, out := s.command(t.Context(), nil, "topics", "apply", "-c", file); code != 0 {
				t.Fatalf("topics apply: exit %d, %s", code, out)
			}
			var lines bytes.Buffer
			for i := range 100 {
				lines.Write(append(value(fmt.Sprintf("d-%06d", i), ""), '\n'))
			}
			if code, out := s.command(t.Context(), &lines, "enqueue", "-c", file); code != 0 {
				t.Fatalf("enqueue: exit %d, %s", code, out)
			}

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			end := make(chan struct{})
			var code int
			var out string
			go func() {
				defer close(end)
				code, out = s.command(ctx, nil, "run", "-c", file)
			}()
			rep := s.settled(100, end)
			stop()
			<-end
			if code != 0 {
				t.Errorf("run: exit %d, %s", code, out)
			}
			if warned := strings.Contains(out, "as it is: use https"); warned != (name == "token endpoint") {
				t.Errorf("a secret in the clear is warned of: %t\n%s", warned, out)
			}
			if strings.Contains(out, s.k.Password()) {
				t.Error("the password is logged")
			}
			if rep.Resolved != 90 || rep.Poisoned != 10 || rep.Retried != 10 {
				t.Errorf("resolved %d, poisoned %d, retried %d", rep.Resolved, rep.Poisoned, rep.Retried)
			}
		})
	}
}

// settled waits until n records have ended, and counts the invariants.
func (s *secured) settled(n int, end <-chan struct{}) invariants.Report {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		rep, err := invariants.Check(s.t.Context(), s.k.Opts(), invariants.Spec{
			Sources: []string{s.names.Source}, RetryPrefix: s.names.Retry, HoldPrefix: s.names.Hold, Poison: s.names.Poison, Audit: s.names.Audit,
			Group: s.names.Group, Secrets: []string{"s3cr3t-"},
		})
		if err != nil {
			s.t.Fatal(err)
		}
		if len(rep.Faults) > 0 || rep.Lost > 0 || rep.Doubled > 0 {
			j, _ := json.MarshalIndent(rep, "", "  ") //nolint:errchkjson // numbers and strings
			s.t.Fatalf("invariants broken: %s", j)
		}
		if rep.Resolved+rep.Poisoned >= n {
			return rep
		}
		select {
		case <-end:
			s.t.Fatal("the worker has ended")
		case <-deadline.C:
			s.t.Fatalf("waited %s for %d records", patience, n)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func eachMechanism(t *testing.T, k *brokers.Kafka) {
	for name, way := range map[string]struct{ listener, kafka string }{
		"SCRAM-SHA-256":           {brokers.ListenSASL, strings.Replace(overSCRAM, "512", "256", 1)},
		"PLAIN":                   {brokers.ListenSASL, strings.Replace(overSCRAM, "SCRAM-SHA-512", "PLAIN", 1)},
		"PLAIN without TLS":       {brokers.ListenLogin, `sasl: {mechanism: PLAIN, username: worker, password_file: DIR/password}`},
		"OAUTHBEARER without TLS": {brokers.ListenLogin, overToken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t, k)
			if code, out := s.command(t.Context(), nil, "topics", "plan", "-c", s.file(way.listener, way.kafka, "http://127.0.0.1:1/")); code != 0 {
				t.Errorf("exit %d, %s", code, out)
			}
		})
	}
}

func wrongConnections(t *testing.T, k *brokers.Kafka) {
	const (
		ca       = `tls: {ca_file: DIR/ca.pem}`
		required = "the broker requires a client certificate (bad certificate): set kafka.tls.cert_file"
		noTLS    = "the connection was closed in the TLS handshake: does this port speak TLS?"
		wantsTLS = "this port wants TLS: set kafka.tls"
		wantSASL = "this port wants SASL: set kafka.sasl"
		password = "the broker does not accept this user and password: look at kafka.sasl"
		token    = "the broker does not accept this token"
		unknown  = "the broker's certificate is signed by an unknown CA: set kafka.tls.ca_file"
	)
	for name, c := range map[string]struct{ listener, kafka, want string }{
		"wrong password of SCRAM": {brokers.ListenSASL, strings.Replace(overSCRAM, "/password", "/wrong", 1), password},
		"unknown user of SCRAM":   {brokers.ListenSASL, strings.Replace(overSCRAM, "worker", "nobody", 1), password},
		"wrong password of PLAIN": {brokers.ListenLogin, `sasl: {mechanism: PLAIN, username: worker, password_file: DIR/wrong}`, password},
		"expired token":           {brokers.ListenLogin, `sasl: {mechanism: OAUTHBEARER, token_file: DIR/old-token}`, token},
		"no token":                {brokers.ListenLogin, `sasl: {mechanism: OAUTHBEARER, token_file: DIR/wrong}`, token},
		"token endpoint away":     {brokers.ListenLogin, `sasl: {mechanism: OAUTHBEARER, token_url: "http://127.0.0.1:1/", username: a, password_file: DIR/wrong}`, "kafka.sasl.token_url: no token: the endpoint cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused"},
		"mechanism not offered":   {brokers.ListenLogin, `sasl: {mechanism: SCRAM-SHA-512, username: worker, password_file: DIR/password}`, "the broker does not offer SCRAM-SHA-512 on this port: set kafka.sasl.mechanism"},
		"SASL not wanted":         {brokers.ListenMTLS, overMTLS + `, sasl: {mechanism: PLAIN, username: worker, password_file: DIR/password}`, "this port has no SASL: remove kafka.sasl"},
		"SASL missing":            {brokers.ListenLogin, ``, wantSASL},
		"SASL missing over TLS":   {brokers.ListenSASL, ca, wantSASL},
		"unknown CA":              {brokers.ListenMTLS, `tls: {ca_file: DIR/other-ca.pem}`, unknown},
		"only known CAs":          {brokers.ListenMTLS, `tls: {enabled: true}`, unknown},
		"expired broker":          {brokers.ListenExpired, ca, "the broker's certificate (CN=expired) is valid from "},
		"host name":               {brokers.ListenMTLS, `tls: {ca_file: DIR/ca.pem, server_name: kafka.example}`, "the broker's certificate is for localhost, 127.0.0.1, not for kafka.example"},
		"no client certificate":   {brokers.ListenMTLS, ca, required},
		"foreign client":          {brokers.ListenMTLS, strings.ReplaceAll(overMTLS, "client", "foreign"), "the broker does not accept the client certificate (unknown certificate): kafka.tls.cert_file must be signed by a CA of the broker's truststore"},
		"expired client":          {brokers.ListenMTLS, strings.ReplaceAll(overMTLS, "client", "expired"), "kafka.tls.cert_file: the client certificate has expired, on "},
		"plain to TLS":            {brokers.ListenMTLS, ``, wantsTLS},
		"plain SASL to TLS":       {brokers.ListenSASL, overToken, wantsTLS},
		"TLS to plain":            {"", ca, noTLS},
		"TLS to plain SASL":       {brokers.ListenLogin, ca + ", " + overToken, noTLS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t, k)
			file := s.file(c.listener, c.kafka, "http://127.0.0.1:1/")
			for _, command := range [][]string{{"topics", "plan"}, {"run"}} {
				start := time.Now()
				code, out := s.command(t.Context(), nil, append(command, "-c", file)...)
				if code != cli.ExitFailed || !strings.Contains(out, "kafka.brokers: cannot reach 127.0.0.1:") || !strings.Contains(out, c.want) {
					t.Errorf("%v: exit %d, want %d and %q:\n%s", command, code, cli.ExitFailed, c.want, out)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("%v: took %s", command, took)
				}
				if strings.Contains(out, s.k.Password()) || strings.Contains(out, "not-the-password") || strings.Contains(out, "eyJ") {
					t.Errorf("%v: a secret is shown:\n%s", command, out)
				}
			}
		})
	}
}

// process is a worker with its log.
type process struct {
	*dlqworker.Worker
	log  buffer
	stop context.CancelFunc
	end  chan struct{}
	err  error
}

// launch makes the topics, and starts a worker that resolves everything.
func (s *secured) launch(listener, kafka string, dial func(context.Context, string, string) (net.Conn, error)) *process {
	s.t.Helper()
	names := brokers.Topics(s.t, s.k, 2, s.names.Delays, nil)
	s.names = names
	brokers.Create(s.t, s.k, 2, map[string]string{"retention.ms": "-1", "max.message.bytes": "2000000"}, names.Hold+"ledger")
	cfg, err := config.Load(s.file(listener, kafka, "http://127.0.0.1:1/"), nil, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	p := &process{end: make(chan struct{})}
	p.Worker, err = dlqworker.New(dlqworker.Options{
		Config: cfg, Dialer: dial, Logger: slog.New(slog.NewTextHandler(&p.log, nil)),
		Handlers: map[string]remedy.Handler{"ledger": remedy.HandlerFunc(func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.end)
		p.err = p.Run(ctx)
	}()
	s.t.Cleanup(func() {
		stop()
		<-p.end
		if p.err != nil {
			s.t.Errorf("the worker ended: %v", p.err)
		}
		if s.t.Failed() {
			s.t.Log(p.log.String())
		}
	})
	return p
}

// refusals is how many connections were refused, by the metric's reason.
func (p *process) refusals(t *testing.T, reason string) float64 {
	t.Helper()
	families, err := p.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "recon_dlq_refused_connections_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabels(m, []string{"reason", reason}) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("recon_dlq_refused_connections_total has no reason %s", reason)
	return 0
}

// told is how often the log tells of a refusal.
func (p *process) told(reason string) int { return strings.Count(p.log.String(), "refusal="+reason) }

// send produces n records over the plain listener.
func (s *secured) send(from, n int) {
	x := &bench{t: s.t, b: s.k, names: s.names}
	var values [][]byte
	for i := range n {
		values = append(values, value(fmt.Sprintf("d-%06d", from+i), ""))
	}
	x.send(values...)
}

func (s *secured) eventually(what string, ok func() bool) {
	s.t.Helper()
	(&bench{t: s.t}).eventually(what, ok)
}

func revokedPassword(t *testing.T, k *brokers.Kafka) {
	s := newSecured(t, k)
	adm := kadm.NewClient(brokers.Client(t, s.k.Opts()...))
	user := s.names.Group
	password := func(p string) {
		t.Helper()
		res, err := adm.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: p}})
		if err == nil {
			err = res.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	password("first")
	s.write("own", []byte("first"))
	p := s.launch(brokers.ListenSASL, `tls: {ca_file: DIR/ca.pem}, sasl: {mechanism: SCRAM-SHA-512, username: `+user+`, password_file: DIR/own}`, nil)
	s.send(0, 50)
	s.settled(50, p.end)

	// The broker asks again after 4 s.
	password("second")
	start := time.Now()
	s.eventually("the refusal is counted and told", func() bool { return p.refusals(t, "credentials") >= 3 && p.told("credentials") >= 1 })
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
	s.send(50, 50)
	s.eventually("more refusals", func() bool { return p.refusals(t, "credentials") >= 10 })
	if n, most := p.told("credentials"), int(time.Since(start)/(10*time.Second))+1; n > most {
		t.Errorf("told %d times in %s", n, time.Since(start))
	}
	s.write("own", []byte("second"))
	s.settled(100, p.end)
	s.eventually("the log says that it is over", func() bool { return strings.Contains(p.log.String(), "accepts connections again") })
	for _, secret := range []string{"first", "second"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log has the password %q", secret)
		}
	}
}

func expiringCertificate(t *testing.T, k *brokers.Kafka) {
	s := newSecured(t, k)
	var mu sync.Mutex
	var open []net.Conn
	p := s.launch(brokers.ListenMTLS, overMTLS, func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, host)
		if err == nil {
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
		return c, err
	})
	cut := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
		open = nil
	}
	s.send(0, 50)
	s.settled(50, p.end)

	s.issue("client", s.k.Authority(), -time.Second)
	cut()
	s.send(50, 50)
	s.eventually("the refusal is counted and told", func() bool {
		return p.refusals(t, "secret") >= 3 && strings.Contains(p.log.String(), "the client certificate has expired, on ")
	})
	s.issue("client", s.k.Authority(), time.Hour)
	s.settled(100, p.end)
}

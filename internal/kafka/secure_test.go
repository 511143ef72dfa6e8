package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/authority"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// newAuthority is a CA with what trusts it.
func newAuthority(t *testing.T) (*authority.Authority, *x509.CertPool) {
	t.Helper()
	ca, err := authority.New("CA")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	return ca, pool
}

func issue(t *testing.T, ca *authority.Authority, valid time.Duration, hosts ...string) tls.Certificate {
	t.Helper()
	cert, key, err := ca.Issue("somebody", valid, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestEachConnectionAsksForTheCertificatesAnew(t *testing.T) {
	ca, pool := newAuthority(t)
	var seen atomic.Value
	b := brokers.NewKfake(t, kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{issue(t, ca, time.Hour, "127.0.0.1")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		VerifyConnection: func(s tls.ConnectionState) error {
			seen.Store(s.PeerCertificates[0].SerialNumber.String())
			return nil
		},
	}))
	_, unknown := newAuthority(t)
	config := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{issue(t, ca, time.Hour)}}
	conn := kafka.Conn{Brokers: b.Addrs(), TLS: func() (*tls.Config, error) { return config.Clone(), nil }}
	first := ""
	for i := range 2 {
		if err := kafka.Reach(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = seen.Load().(string)
		}
		config = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{issue(t, ca, time.Hour)}}
	}
	if seen.Load() == first {
		t.Error("the broker saw the old certificate after it was replaced")
	}
	config = &tls.Config{RootCAs: unknown}
	if err := kafka.Reach(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "unknown CA") {
		t.Errorf("after the CA was replaced: %v", err)
	}
}

// What real brokers make of each fault is tested on Apache Kafka, in test/suite.
func TestAlertsOfOtherBrokersAreExplainedToo(t *testing.T) {
	ca, pool := newAuthority(t)
	other, _ := newAuthority(t)
	for name, c := range map[string]struct {
		broker *tls.Config
		client []tls.Certificate
		want   string
	}{
		"no certificate":      {&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert}, nil, "the broker requires a client certificate ("},
		"foreign certificate": {&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert}, []tls.Certificate{issue(t, other, time.Hour)}, "the broker does not accept the client certificate (unknown certificate authority)"},
		"expired for the broker": {&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, Time: func() time.Time { return time.Now().Add(2 * time.Hour) }},
			[]tls.Certificate{issue(t, ca, time.Hour)}, "the broker says that the client certificate has expired"},
		"no version in common": {&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil, "no TLS version or cipher suite in common"},
	} {
		t.Run(name, func(t *testing.T) {
			c.broker.Certificates, c.broker.ClientCAs = []tls.Certificate{issue(t, ca, time.Hour, "127.0.0.1")}, pool
			b := brokers.NewKfake(t, kfake.TLS(c.broker))
			err := kafka.Reach(t.Context(), kafka.Conn{Brokers: b.Addrs(), TLS: func() (*tls.Config, error) {
				return &tls.Config{RootCAs: pool, Certificates: c.client}, nil
			}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestABrokerThatKeepsSilentInTheHandshakeIsGivenUpWithinSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := kafka.Reach(t.Context(), kafka.Conn{
			Brokers: []string{"silent:9093"},
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				t.Cleanup(func() { theirs.Close() })
				return ours, nil
			},
			TLS: func() (*tls.Config, error) { return &tls.Config{}, nil },
		})
		if err == nil || !strings.Contains(err.Error(), "silent:9093: no answer in time") {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// counts collects what a Watch counts.
type counts chan string

func (c counts) drain() map[string]int {
	m := map[string]int{}
	for {
		select {
		case word := <-c:
			m[word]++
		default:
			return m
		}
	}
}

func TestRefusedConnectionsAreCountedEachAndToldOnceUntilTheyAreAccepted(t *testing.T) {
	b := brokers.NewKfake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "worker", "right"))
	var lost atomic.Bool
	mechanism, err := kafka.Credentials{Mechanism: "PLAIN", Username: "worker", Password: func() (string, error) {
		if lost.Load() {
			return "", errors.New("kafka.sasl.password_file: cannot read the secret: no such file")
		}
		return "right", nil
	}}.SASL()
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	counted := make(counts, 1000)
	conn := kafka.Conn{Brokers: b.Addrs(), SASL: mechanism, Logger: logger, Watch: kafka.NewWatch(logger, func(word string) { counted <- word })}
	ping := func() error {
		cl, err := kgo.NewClient(conn.Opts()...)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		return cl.Ping(t.Context())
	}
	if err := ping(); err != nil || len(counted) != 0 || log.String() != "" {
		t.Fatalf("%v, %v, log:\n%s", err, counted.drain(), log.String())
	}
	lost.Store(true)
	for range 5 {
		if err := ping(); err == nil {
			t.Fatal("it came in without a password")
		}
	}
	if got := counted.drain(); len(got) != 1 || got[kafka.RefusedSecret] < 5 {
		t.Errorf("counted %v", got)
	}
	text := log.String()
	if n := strings.Count(text, "\n"); n != 1 || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "refusal=secret") ||
		!strings.Contains(text, "broker="+b.Addrs()[0]) || !strings.Contains(text, "cannot read the secret: no such file") {
		t.Errorf("%d lines:\n%s", n, text)
	}
	lost.Store(false)
	for range 2 {
		if err := ping(); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "accepts connections again"); n != 1 {
		t.Errorf("told %d times that it is over:\n%s", n, log.String())
	}
}

func TestABrokerThatIsAwayOrGoesDownIsNoRefusal(t *testing.T) {
	secure := func() (*tls.Config, error) { return &tls.Config{}, nil }
	for name, conn := range map[string]kafka.Conn{
		"away":                     {Brokers: []string{closedPort(t)}},
		"away, TLS":                {Brokers: []string{closedPort(t)}, TLS: secure},
		"goes down":                {Brokers: []string{listen(t, func(c net.Conn) { c.Close() })}},
		"goes down, TLS":           {Brokers: []string{listen(t, func(c net.Conn) { c.Close() })}, TLS: secure},
		"goes down at once, TLS":   {Brokers: []string{listen(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() })}, TLS: secure},
		"has its own trouble, TLS": {Brokers: []string{listen(t, func(c net.Conn) { _, _ = c.Write([]byte("\x15\x03\x03\x00\x02\x02\x50")); c.Close() })}, TLS: secure},
	} {
		t.Run(name, func(t *testing.T) {
			counted := make(counts, 1000)
			var log lockedBuffer
			conn.Logger = slog.New(slog.NewTextHandler(&log, nil))
			conn.Watch = kafka.NewWatch(conn.Logger, func(word string) { counted <- word })
			cl, err := kgo.NewClient(conn.Opts()...)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if err := cl.Ping(t.Context()); err == nil {
				t.Fatal("nobody answered")
			}
			if got := counted.drain(); len(got) > 0 {
				t.Errorf("counted %v", got)
			}
			if !strings.Contains(log.String(), `msg="kafka client"`) {
				t.Errorf("the client's own line is missing:\n%s", log.String())
			}
		})
	}
}

func TestAHandshakeThatFailsIsAFailedDialAndTheNextBrokerIsAsked(t *testing.T) {
	ca, pool := newAuthority(t)
	expired := brokers.NewKfake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{issue(t, ca, -time.Minute, "127.0.0.1")}}))
	good := brokers.NewKfake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{issue(t, ca, time.Hour, "127.0.0.1")}}))
	conn := kafka.Conn{
		Brokers: []string{expired.Addrs()[0], good.Addrs()[0]},
		TLS:     func() (*tls.Config, error) { return &tls.Config{RootCAs: pool}, nil },
	}
	for range 5 { // whichever is asked first
		cl, err := kgo.NewClient(conn.Opts()...)
		if err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{}
		if _, err := req.RequestWith(t.Context(), cl); err != nil {
			t.Error(err)
		}
		cl.Close()
	}
}

func TestAnUnknownMechanismIsRefused(t *testing.T) {
	if _, err := (kafka.Credentials{Mechanism: "GSSAPI"}).SASL(); err == nil || !strings.Contains(err.Error(), `kafka.sasl.mechanism: unknown mechanism "GSSAPI"`) {
		t.Errorf("error is %v", err)
	}
}

func TestASecretThatCannotBeReadIsNamed(t *testing.T) {
	b := brokers.NewKfake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "worker", "right"))
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"} {
		bad := errors.New("kafka.sasl.password_file: cannot read the secret: no such file")
		s, err := kafka.Credentials{
			Mechanism: mechanism, Username: "worker",
			Password: func() (string, error) { return "", bad }, Token: func(context.Context) (string, error) { return "", bad },
		}.SASL()
		if err != nil {
			t.Fatal(err)
		}
		err = kafka.Reach(t.Context(), kafka.Conn{Brokers: b.Addrs(), SASL: s})
		switch {
		case err == nil:
			t.Errorf("%s: reached", mechanism)
		case mechanism == "OAUTHBEARER": // kfake does not offer it: it is asked before the token is got
			if !strings.Contains(err.Error(), "the broker does not offer OAUTHBEARER") {
				t.Errorf("%s: %v", mechanism, err)
			}
		case !strings.Contains(err.Error(), bad.Error()):
			t.Errorf("%s: %v", mechanism, err)
		}
	}
}

// endpoint is a token endpoint that gives tokens of so many seconds.
func endpoint(t *testing.T, seconds int, asked *atomic.Int32) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		if id != "recon" || secret != "right" || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "a b" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": "invalid_client", "error_description": "leaky: `+secret+`"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token": "token-%d", "token_type": "Bearer", "expires_in": %d}`, asked.Add(1), seconds)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestATokenIsUsedUntilItIsAboutToExpire(t *testing.T) {
	for _, c := range []struct {
		seconds int
		want    [2]string
	}{
		{3600, [2]string{"token-1", "token-1"}},
		{5, [2]string{"token-1", "token-2"}}, // in less than 10 s
		{0, [2]string{"token-1", "token-2"}}, // nobody knows when
	} {
		var asked atomic.Int32
		tokens := kafka.NewTokens(endpoint(t, c.seconds, &asked).URL, "recon", func() (string, error) { return "right", nil }, []string{"a", "b"})
		for _, want := range c.want {
			if got, err := tokens.Token(t.Context()); got != want || err != nil {
				t.Errorf("%d s: token %q (%v), want %q", c.seconds, got, err, want)
			}
		}
	}
}

func TestWhyThereIsNoTokenIsSaidWithoutSecrets(t *testing.T) {
	var asked atomic.Int32
	elsewhere := endpoint(t, 3600, &asked)
	answers := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	for name, c := range map[string]struct{ url, secret, want string }{
		"wrong secret":        {elsewhere.URL, "hunter2", "the endpoint does not accept this client and secret (invalid_client): look at kafka.sasl.username and password_file"},
		"scope":               {answers(400, `{"error": "invalid_scope"}`), "hunter2", "the endpoint refuses (invalid_scope): look at kafka.sasl.scopes"},
		"not found":           {answers(404, `hunter2`), "hunter2", "the endpoint answers with status 404: is this the token endpoint?"},
		"an odd code":         {answers(400, `{"error": "hunter2 <b>"}`), "hunter2", "the endpoint answers with status 400: is this the token endpoint?"},
		"redirect":            {answers(307, `{}`), "right", "the endpoint answers with status 307"},
		"not JSON":            {answers(200, `hunter2`), "hunter2", "what the endpoint answers is no token"},
		"no token":            {answers(200, `{"hunter2": 1}`), "hunter2", "what the endpoint answers is no token"},
		"away":                {"http://" + closedPort(t) + "/hunter2", "hunter2", "the endpoint cannot be reached: dial tcp"},
		"secret not readable": {elsewhere.URL, "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			tokens := kafka.NewTokens(c.url, "recon", func() (string, error) {
				if c.secret == "" {
					return "", errors.New("no such file")
				}
				return c.secret, nil
			}, []string{"a", "b"})
			_, err := tokens.Token(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
	if asked.Load() != 0 {
		t.Error("a secret was sent where the endpoint has sent us")
	}
}

package config

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/test/authority"
)

// pems makes a directory with ca.pem, client.pem, client-key.pem, other-key.pem,
// encrypted.pem and text.
func pems(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := authority.New("CA")
	if err != nil {
		t.Fatal(err)
	}
	write("ca.pem", ca.PEM)
	for _, name := range []string{"client", "other"} {
		cert, key, err := ca.Issue(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", cert)
		write(name+"-key.pem", key)
	}
	write("encrypted.pem", []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	write("text", []byte("hunter2\n"))
	return dir
}

func TestEveryFaultOfTLSAndSASLIsNamedWithItsFix(t *testing.T) {
	const (
		mechanisms = "want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
		only       = "is for OAUTHBEARER only: remove it"
		onlyURL    = "is for token_url only: a token from a file says who it is for"
	)
	dir := pems(t)
	for kafka, want := range map[string][]string{
		// What is right.
		"tls: {enabled: true}":                                                   nil,
		"tls: {enabled: false}":                                                  nil,
		"tls: {ca_file: DIR/ca.pem}":                                             nil,
		"tls: {server_name: kafka.example}":                                      nil,
		"tls: {server_name: '::1'}":                                              nil,
		"tls: {cert_file: DIR/client.pem, key_file: DIR/client-key.pem}":         nil,
		"sasl: {mechanism: PLAIN, username: u, password_file: DIR/text}":         nil,
		"sasl: {mechanism: SCRAM-SHA-256, username: u, password_file: DIR/text}": nil,
		"sasl: {mechanism: OAUTHBEARER, token_file: DIR/text}":                   nil,
		"sasl: {mechanism: OAUTHBEARER, token_url: 'https://h/t', username: u, password_file: DIR/text, scopes: [a, b]}": nil,

		"tls: {enabled: maybe}":                      {"kafka.tls.enabled: want true or false"},
		"tls: {enabled: false, ca_file: DIR/ca.pem}": {"kafka.tls.enabled: is false, but other keys of kafka.tls are set: remove the one or the others"},
		"tls: {ca_file: DIR/none}":                   {"kafka.tls.ca_file: cannot read it: no such file"},
		"tls: {ca_file: DIR}":                        {"kafka.tls.ca_file: cannot read it: is a directory, not a file"},
		"tls: {ca_file: DIR/text}":                   {"kafka.tls.ca_file: has no certificate: want the CA's in PEM, beginning with -----BEGIN CERTIFICATE-----"},
		"tls: {ca_file: DIR/client-key.pem}":         {"kafka.tls.ca_file: has no certificate: want the CA's in PEM, beginning with -----BEGIN CERTIFICATE-----"},
		"tls: {cert_file: DIR/client.pem}":           {"kafka.tls.key_file: is missing: cert_file needs its private key"},
		"tls: {key_file: DIR/client-key.pem}":        {"kafka.tls.cert_file: is missing: key_file is set, but not the certificate it belongs to"},
		"tls: {cert_file: DIR/none, key_file: DIR/none}": {
			"kafka.tls.cert_file: cannot read it: no such file", "kafka.tls.key_file: cannot read it: no such file"},
		"tls: {cert_file: DIR/client-key.pem, key_file: DIR/client-key.pem}": {"kafka.tls.cert_file: has no certificate: want one in PEM, beginning with -----BEGIN CERTIFICATE-----"},
		"tls: {cert_file: DIR/client.pem, key_file: DIR/client.pem}":         {"kafka.tls.key_file: has no private key: want one in PEM, beginning with -----BEGIN PRIVATE KEY-----"},
		"tls: {cert_file: DIR/client.pem, key_file: DIR/text}":               {"kafka.tls.key_file: has no private key: want one in PEM, beginning with -----BEGIN PRIVATE KEY-----"},
		"tls: {cert_file: DIR/client.pem, key_file: DIR/other-key.pem}":      {"kafka.tls.key_file: is not the private key of cert_file"},
		"tls: {cert_file: DIR/client.pem, key_file: DIR/encrypted.pem}":      {"kafka.tls.key_file: is encrypted, which is not supported: decrypt it (openssl pkey -in FILE -out FILE) and protect it by its mode"},
		"tls: {server_name: 'kafka.example:9093'}":                           {"kafka.tls.server_name: want a host name as in the brokers' certificates, without a port"},

		"sasl: {username: u}":                     {"kafka.sasl.mechanism: is missing: " + mechanisms},
		"sasl: {mechanism: scram-sha-512}":        {"kafka.sasl.mechanism: unknown mechanism: " + mechanisms},
		"sasl: {mechanism: hunter2, username: u}": {"kafka.sasl.mechanism: unknown mechanism: " + mechanisms},
		"sasl: {mechanism: PLAIN}":                {"kafka.sasl.username: is missing: the user to log in as with PLAIN", "kafka.sasl.password_file: is missing: name the file of the password, or set RECON_DLQ_KAFKA_SASL_PASSWORD"},
		"sasl: {mechanism: PLAIN, password: hunter2, username: u}": {"kafka.sasl.password: a secret does not belong in the file: put it in a file of its own and name that in kafka.sasl.password_file, or set RECON_DLQ_KAFKA_SASL_PASSWORD",
			"kafka.sasl.password_file: is missing: name the file of the password, or set RECON_DLQ_KAFKA_SASL_PASSWORD"},
		"sasl: {mechanism: PLAIN, username: \"a\\0b\", password_file: DIR/text}":                       {"kafka.sasl.username: has control characters"},
		"sasl: {mechanism: PLAIN, username: u, password_file: DIR/none}":                               {"kafka.sasl.password_file: cannot read the secret: no such file"},
		"sasl: {mechanism: SCRAM-SHA-512, username: u, password_file: DIR/text, token_file: DIR/text}": {"kafka.sasl.token_file: " + only},
		"sasl: {mechanism: PLAIN, username: u, password_file: DIR/text, token_url: x, scopes: [a]}":    {"kafka.sasl.token_url: " + only, "kafka.sasl.scopes: " + only},
		"sasl: {mechanism: OAUTHBEARER}":                                                               {"kafka.sasl.token_file: is missing: OAUTHBEARER needs the file of a token, or token_url, where to get one"},
		"sasl: {mechanism: OAUTHBEARER, token_file: DIR/none}":                                         {"kafka.sasl.token_file: cannot read the secret: no such file"},
		"sasl: {mechanism: OAUTHBEARER, token_file: DIR/text, username: u, scopes: [a]}":               {"kafka.sasl.username: " + onlyURL, "kafka.sasl.scopes: " + onlyURL},
		"sasl: {mechanism: OAUTHBEARER, token_file: DIR/text, token_url: 'https://h/t'}":               {"kafka.sasl.token_file: is set, and token_url too: use one of them"},
		"sasl: {mechanism: OAUTHBEARER, token_url: 'https://u:hunter2@h/t', username: u}":              {"kafka.sasl.token_url: has a user name or password in it: put the secret in a file", "kafka.sasl.password_file: is missing: name the file of the client secret, or set RECON_DLQ_KAFKA_SASL_PASSWORD"},
		"sasl: {mechanism: OAUTHBEARER, token_url: 'https://h/t', password_file: DIR/text}":            {"kafka.sasl.username: is missing: the client id for token_url"},
	} {
		t.Run(kafka, func(t *testing.T) {
			text := strings.Replace(whole, "brokers: [localhost:9092]", "brokers: [localhost:9092], "+strings.ReplaceAll(kafka, "DIR", dir), 1)
			var lines []string
			for _, w := range want {
				lines = append(lines, "c.yaml:1: "+w)
			}
			got := faults(t, text)
			expect(t, got, lines...)
			if strings.Contains(strings.Join(got, "\n"), "hunter2") {
				t.Errorf("a secret is shown: %s", got)
			}
		})
	}
}

func TestThePasswordMayComeFromTheEnvironment(t *testing.T) {
	c := mustLoad(t, whole, "RECON_DLQ_KAFKA_SASL_MECHANISM=PLAIN", "RECON_DLQ_KAFKA_SASL_USERNAME=u", "RECON_DLQ_KAFKA_SASL_PASSWORD=hunter2")
	if p, err := c.Kafka.SASL.ReadPassword(); p != "hunter2" || err != nil {
		t.Errorf("password %q, %v", p, err)
	}
}

func TestSecretsAndCertificatesAreReadAgainWhereTheyAreNeeded(t *testing.T) {
	dir := pems(t)
	text := strings.ReplaceAll(`
kafka:
  brokers: [localhost:9092]
  tls: {ca_file: DIR/ca.pem, cert_file: DIR/client.pem, key_file: DIR/client-key.pem, server_name: kafka.example}
  sasl: {mechanism: PLAIN, username: u, password_file: DIR/text}
targets: [{name: ledger, http: {url: "http://h/"}}]
`, "DIR", dir)
	k := mustLoad(t, text).Kafka
	certificate := func() string {
		t.Helper()
		c, err := k.TLS.Load()
		if err != nil {
			t.Fatal(err)
		}
		if c.ServerName != "kafka.example" || c.RootCAs.Equal(x509.NewCertPool()) || c.InsecureSkipVerify {
			t.Errorf("server name %q, roots %v", c.ServerName, c.RootCAs)
		}
		return c.Certificates[0].Leaf.Subject.CommonName
	}
	if got := certificate(); got != "client" {
		t.Errorf("the certificate is %s's", got)
	}
	for _, suffix := range []string{".pem", "-key.pem"} {
		if err := os.Rename(filepath.Join(dir, "other"+suffix), filepath.Join(dir, "client"+suffix)); err != nil {
			t.Fatal(err)
		}
	}
	if got := certificate(); got != "other" {
		t.Errorf("after it was replaced the certificate is %s's", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("hunter3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := k.SASL.ReadPassword(); p != "hunter3" || err != nil {
		t.Errorf("after it was replaced the password is %q, %v", p, err)
	}

	// What is wrong then is said as at start.
	for _, name := range []string{"text", "ca.pem"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.SASL.ReadPassword(); err == nil || err.Error() != "kafka.sasl.password_file: cannot read the secret: no such file" {
		t.Errorf("without the file: %v", err)
	}
	if _, err := k.TLS.Load(); err == nil || err.Error() != "kafka.tls.ca_file: cannot read it: no such file" {
		t.Errorf("without the file: %v", err)
	}
}

func TestWhatIsSentInTheClearIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		k    Kafka
		want string
	}{
		"nothing to hide":    {Kafka{}, ""},
		"PLAIN":              {Kafka{SASL: SASL{Mechanism: Plain}}, "PLAIN without TLS sends the password as it is"},
		"PLAIN over TLS":     {Kafka{SASL: SASL{Mechanism: Plain}, TLS: TLS{Enabled: true}}, ""},
		"SCRAM":              {Kafka{SASL: SASL{Mechanism: ScramSHA512}}, ""},
		"a token":            {Kafka{SASL: SASL{Mechanism: OAuthBearer}}, "OAUTHBEARER without TLS sends the token as it is"},
		"a client secret":    {Kafka{SASL: SASL{Mechanism: OAuthBearer, TokenURL: "http://h/"}, TLS: TLS{Enabled: true}}, "the client secret is sent as it is"},
		"a token's well got": {Kafka{SASL: SASL{Mechanism: OAuthBearer, TokenURL: "https://h/"}, TLS: TLS{Enabled: true}}, ""},
	} {
		if got := c.k.InTheClear(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// FuzzPEM: whatever the files hold, they load or are a fault.
func FuzzPEM(f *testing.F) {
	ca, err := authority.New("CA")
	if err != nil {
		f.Fatal(err)
	}
	cert, key, err := ca.Issue("client", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert, key)
	f.Add(key, cert)
	f.Add([]byte("x"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("x")}))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		var k checker
		if pairs := k.keyPair(cert, key); (len(pairs) == 1) == (len(k.list) == 1) {
			t.Errorf("%d pairs, faults %v", len(pairs), k.list)
		}
	})
}

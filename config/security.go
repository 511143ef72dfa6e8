package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// TLS says how connections to the brokers are encrypted. Its files are PEM.
type TLS struct {
	Enabled    bool
	CAFile     string // of the CAs that sign the brokers' certificates; empty: those the system trusts
	CertFile   string // the client certificate, with what leads to its CA; empty: none
	KeyFile    string // of CertFile's private key, not encrypted
	ServerName string // the name that the brokers' certificates must have; empty: the host that is dialled
}

// Load reads the files. It is called for each connection, so that files that
// were replaced count without a restart. It must be Enabled.
func (t TLS) Load() (*tls.Config, error) {
	c, faults := t.load()
	var errs []error
	for _, f := range faults {
		errs = append(errs, errors.New(f.String()))
	}
	return c, errors.Join(errs...)
}

func (t TLS) load() (*tls.Config, []Fault) {
	var k checker
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		c.RootCAs = x509.NewCertPool()
		if text, ok := k.pem("kafka.tls.ca_file", t.CAFile); ok && !c.RootCAs.AppendCertsFromPEM(text) {
			k.fault("kafka.tls.ca_file", "has no certificate: want the CA's in PEM, beginning with -----BEGIN CERTIFICATE-----")
		}
	}
	if t.CertFile != "" && t.KeyFile != "" {
		cert, certRead := k.pem("kafka.tls.cert_file", t.CertFile)
		key, keyRead := k.pem("kafka.tls.key_file", t.KeyFile)
		if certRead && keyRead {
			c.Certificates = k.keyPair(cert, key)
		}
	}
	return c, k.list
}

// keyPair makes a certificate of its two files.
func (k *checker) keyPair(cert, key []byte) []tls.Certificate {
	pair, err := tls.X509KeyPair(cert, key)
	switch {
	case err == nil:
		return []tls.Certificate{pair}
	case !hasBlock(cert, "CERTIFICATE"):
		k.fault("kafka.tls.cert_file", "has no certificate: want one in PEM, beginning with -----BEGIN CERTIFICATE-----")
	case bytes.Contains(key, []byte("ENCRYPTED")):
		k.fault("kafka.tls.key_file", "is encrypted, which is not supported: decrypt it (openssl pkey -in FILE -out FILE) and protect it by its mode")
	case !hasBlock(key, "PRIVATE KEY"):
		k.fault("kafka.tls.key_file", "has no private key: want one in PEM, beginning with -----BEGIN PRIVATE KEY-----")
	case strings.Contains(err.Error(), "does not match"):
		k.fault("kafka.tls.key_file", "is not the private key of cert_file")
	default:
		k.fault("kafka.tls.cert_file", "cannot be used with key_file: %s", strings.TrimPrefix(err.Error(), "tls: "))
	}
	return nil
}

// hasBlock says whether text has a PEM block of a type that ends in kind.
func hasBlock(text []byte, kind string) bool {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, kind) {
			return true
		}
	}
	return false
}

// pem reads the file at path.
func (k *checker) pem(path, file string) ([]byte, bool) {
	text, err := slurp(file, maxFile)
	if err != nil {
		k.fault(path, "cannot read it: %s", fileProblem(err))
	}
	return text, err == nil
}

func (k *checker) tls(t TLS) {
	const path = "kafka.tls"
	if !t.Enabled {
		if t != (TLS{}) {
			k.fault(path+".enabled", "is false, but other keys of %s are set: remove the one or the others", path)
		}
		return
	}
	switch {
	case t.CertFile == "" && t.KeyFile != "":
		k.fault(path+".cert_file", "is missing: key_file is set, but not the certificate it belongs to")
	case t.CertFile != "" && t.KeyFile == "":
		k.fault(path+".key_file", "is missing: cert_file needs its private key")
	}
	if t.ServerName != "" && net.ParseIP(t.ServerName) == nil && strings.ContainsFunc(t.ServerName, func(r rune) bool { return !strings.ContainsRune(nameChars, r) }) {
		k.fault(path+".server_name", "want a host name as in the brokers' certificates, without a port")
	}
	_, faults := t.load()
	k.list = append(k.list, faults...)
}

// The SASL mechanisms, as Kafka names them.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

var mechanisms = []string{Plain, ScramSHA256, ScramSHA512, OAuthBearer}

// SASL says who the worker is to the brokers. An empty mechanism: nobody, or
// whom its client certificate names.
type SASL struct {
	Mechanism    string
	Username     string // with TokenURL the client id
	PasswordFile string // with TokenURL of the client secret
	Password     Secret // what Load read from PasswordFile or the environment; never printed
	TokenFile    string
	TokenURL     string // endpoint of the client-credentials grant (RFC 6749, section 4.4)
	Scopes       []string
}

// ReadPassword gives the password: the file's as it is now, or the environment's.
func (s SASL) ReadPassword() (string, error) {
	if s.PasswordFile == "" {
		return s.Password.Reveal(), nil
	}
	return s.read("kafka.sasl.password_file", s.PasswordFile)
}

// ReadToken gives the token that TokenFile has now.
func (s SASL) ReadToken() (string, error) { return s.read("kafka.sasl.token_file", s.TokenFile) }

func (s SASL) read(path, file string) (string, error) {
	secret, err := readSecret(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return secret.Reveal(), nil
}

func (s SASL) empty() bool {
	return s.Mechanism == "" && s.Username == "" && s.PasswordFile == "" && s.Password == Secret{} && s.TokenFile == "" && s.TokenURL == "" && len(s.Scopes) == 0
}

func (k *checker) sasl(s SASL) {
	const path = "kafka.sasl"
	if s.empty() {
		return
	}
	unwanted := func(name, msg string, written bool) {
		if written {
			k.fault(path+"."+name, "%s", msg)
		}
	}
	switch {
	case s.Mechanism == "":
		k.fault(path+".mechanism", "is missing: want %s", strings.Join(mechanisms, ", "))
		return
	case !slices.Contains(mechanisms, s.Mechanism):
		k.fault(path+".mechanism", "unknown mechanism: want %s", strings.Join(mechanisms, ", "))
		return
	case s.Mechanism != OAuthBearer:
		k.login(s, "the user to log in as with "+s.Mechanism, "password")
		const only = "is for " + OAuthBearer + " only: remove it"
		unwanted("token_file", only, s.TokenFile != "")
		unwanted("token_url", only, s.TokenURL != "")
		unwanted("scopes", only, len(s.Scopes) > 0)
	case s.TokenFile != "" && s.TokenURL != "":
		k.fault(path+".token_file", "is set, and token_url too: use one of them")
	case s.TokenURL != "":
		k.url(path+".token_url", s.TokenURL)
		k.login(s, "the client id for token_url", "client secret")
	case s.TokenFile == "":
		k.fault(path+".token_file", "is missing: %s needs the file of a token, or token_url, where to get one", OAuthBearer)
	default:
		const only = "is for token_url only: a token from a file says who it is for"
		unwanted("username", only, s.Username != "")
		unwanted("password_file", only, s.PasswordFile != "")
		unwanted("password", only, s.PasswordFile == "" && s.Password != Secret{})
		unwanted("scopes", only, len(s.Scopes) > 0)
	}
	if s.TokenFile != "" {
		if _, err := readSecret(s.TokenFile); err != nil {
			k.fault(path+".token_file", "%s", err)
		}
	}
}

// login reports a missing user name or password.
func (k *checker) login(s SASL, who, secret string) {
	const path = "kafka.sasl"
	switch {
	case s.Username == "":
		k.fault(path+".username", "is missing: %s", who)
	case strings.ContainsFunc(s.Username, isControl):
		k.fault(path+".username", "has control characters")
	}
	if s.PasswordFile == "" && s.Password == (Secret{}) {
		k.fault(path+".password_file", "is missing: name the file of the %s, or set %s", secret, envName(path+".password"))
	}
}

// InTheClear says what of the connection's secrets anybody on the way can read;
// empty: nothing.
func (k Kafka) InTheClear() string {
	switch {
	case !k.TLS.Enabled && k.SASL.Mechanism == Plain:
		return "kafka.sasl: PLAIN without TLS sends the password as it is: set kafka.tls, or use " + ScramSHA512
	case !k.TLS.Enabled && k.SASL.Mechanism == OAuthBearer:
		return "kafka.sasl: OAUTHBEARER without TLS sends the token as it is: set kafka.tls"
	case strings.HasPrefix(k.SASL.TokenURL, "http://"):
		return "kafka.sasl.token_url: the client secret is sent as it is: use https"
	}
	return ""
}

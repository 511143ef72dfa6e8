package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// dial opens a connection to a broker, encrypted if the Conn says so. It takes
// at most dialTimeout. Its errors are dial errors to the client, also those of
// the TLS handshake: it goes on to the next broker, as with one that is down.
func (c Conn) dial(ctx context.Context, network, host string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	open := c.Dialer
	if open == nil {
		open = new(net.Dialer).DialContext
	}
	if c.TLS == nil {
		return open(ctx, network, host)
	}
	failed := func(err error) error { return &net.OpError{Op: "dial", Net: network, Err: &handshakeError{err}} }
	config, err := c.TLS()
	if err != nil {
		return nil, failed(&ownError{err})
	}
	if config.ServerName == "" {
		if config.ServerName, _, err = net.SplitHostPort(host); err != nil {
			return nil, failed(err)
		}
	}
	if certs := config.Certificates; len(certs) > 0 {
		// Asked for one, the client gives it whoever signed it: the broker says what
		// is wrong with it. Without this it would keep silent about one it thinks
		// the broker does not want.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if leaf := certs[0].Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
				return nil, &ownError{fmt.Errorf("kafka.tls.cert_file: the client certificate has expired, on %s: replace it", day(leaf.NotAfter))}
			}
			return &certs[0], nil
		}
	}
	conn, err := open(ctx, network, host)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, failed(err)
	}
	return secure, nil
}

// handshakeError is an error before a TLS session exists.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "TLS handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// ownError is about our own secrets and certificates: no broker has been asked.
// Its text says what is wrong with what.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// day writes a time to the minute, in UTC.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// Credentials are what a worker proves itself with over SASL. Secrets are
// functions: they are asked at each authentication, so that one that was changed
// counts without a restart.
type Credentials struct {
	Mechanism string                                    // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
	Username  string                                    // of all but OAUTHBEARER
	Password  func() (string, error)                    // of all but OAUTHBEARER
	Token     func(ctx context.Context) (string, error) // of OAUTHBEARER
}

// tokenTimeout bounds the getting of a token.
const tokenTimeout = 5 * time.Second

// SASL makes the mechanism for a Conn.
func (c Credentials) SASL() (sasl.Mechanism, error) {
	password := func() (string, error) {
		p, err := c.Password()
		if err != nil {
			return "", &ownError{err}
		}
		return p, nil
	}
	ofScram := func(context.Context) (scram.Auth, error) {
		p, err := password()
		return scram.Auth{User: c.Username, Pass: p}, err
	}
	switch c.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			p, err := password()
			return plain.Auth{User: c.Username, Pass: p}, err
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(ofScram), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(ofScram), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
			defer cancel()
			token, err := c.Token(ctx)
			if err != nil {
				return oauth.Auth{}, &ownError{err}
			}
			return oauth.Auth{Token: token}, nil
		}), nil
	}
	return nil, fmt.Errorf("kafka.sasl.mechanism: unknown mechanism %q", c.Mechanism)
}

package remedy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// TLSFiles are PEM files. They are read again for every connection, so that what is
// rotated is used by the connections that are opened then.
type TLSFiles struct {
	CA   string // who signed the target's certificate; empty: the system's authorities
	Cert string // the worker's own certificate with its chain; with Key
	Key  string
}

// check reports everything that is wrong, the files' contents included.
func (f TLSFiles) check(now time.Time) []error {
	if (f.Cert == "") != (f.Key == "") {
		return []error{errors.New("tls: cert_file and key_file belong together")}
	}
	if _, err := f.config(now); err != nil {
		return []error{err}
	}
	return nil
}

// config reads the files. The error is a *credentialsError; one's own certificate
// that is not valid now is one, too: the target would only say that it is bad.
func (f TLSFiles) config(now time.Time) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		pem, err := readFile(f.CA, maxPEM)
		if err != nil {
			return nil, &credentialsError{"tls.ca_file", err}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &credentialsError{"tls.ca_file", errors.New("the file has no certificate in PEM")}
		}
	}
	if f.Cert == "" {
		return c, nil
	}
	cert, err := readFile(f.Cert, maxPEM)
	if err != nil {
		return nil, &credentialsError{"tls.cert_file", err}
	}
	key, err := readFile(f.Key, maxPEM)
	if err != nil {
		return nil, &credentialsError{"tls.key_file", err}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &credentialsError{"tls.cert_file", fmt.Errorf("the files are no certificate and its key in PEM: %w", err)}
	}
	switch leaf := pair.Leaf; {
	case now.Before(leaf.NotBefore):
		return nil, &credentialsError{"tls.cert_file", fmt.Errorf("the certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339))}
	case now.After(leaf.NotAfter):
		return nil, &credentialsError{"tls.cert_file", fmt.Errorf("the certificate expired at %s: renew it", leaf.NotAfter.UTC().Format(time.RFC3339))}
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// dialTLS is dial with a TLS session by the files.
func (f TLSFiles) dialTLS(dial func(ctx context.Context, network, addr string) (net.Conn, error), now func() time.Time) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := f.config(now())
		if err != nil {
			return nil, err
		}
		if c.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(raw, c)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
}

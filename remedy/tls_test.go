package remedy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * 365 * 100 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	a.key, der = certificate(t, tmpl, tmpl, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = pemFile(t, "CERTIFICATE", der)
	return a
}

// issue makes a certificate for localhost with its key, as files. It is valid until then.
func (a *authority) issue(t *testing.T, until time.Time) (cert, key string) {
	t.Helper()
	k, der := certificate(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "worker"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: now.Add(-time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, a.key)
	text, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemFile(t, "CERTIFICATE", der), pemFile(t, "EC PRIVATE KEY", text)
}

// certificate makes one; without a signer it is its own.
func certificate(t *testing.T, tmpl, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

func pemFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	return secretFile(t, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// valid is a time after which the certificates of these tests are not valid any more.
// The server and the client's check of it live by the real clock.
var valid = time.Now().Add(time.Hour)

// secure is the address of a server with that certificate. It answers the name of its
// client's certificate, which is asked for only if clients has a file.
func secure(t *testing.T, cert, key, clients string) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		for _, c := range r.TLS.PeerCertificates {
			_, _ = io.WriteString(w, c.SerialNumber.String()+" "+c.NotAfter.UTC().Format(time.RFC3339))
		}
	}))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != "" {
		data, err := readFile(clients, maxPEM)
		if err != nil {
			t.Fatal(err)
		}
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		s.TLS.ClientCAs.AppendCertsFromPEM(data)
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func TestATargetIsTrustedByItsAuthority(t *testing.T) {
	own, other := newAuthority(t), newAuthority(t)
	cert, key := own.issue(t, valid)
	url := secure(t, cert, key, "")
	if o := target(t, HTTPOptions{URL: url, TLS: TLSFiles{CA: own.file}}).Remediate(t.Context(), record()); o.Status != 422 {
		t.Errorf("its own authority: %+v", o)
	}
	for name, f := range map[string]TLSFiles{"another authority": {CA: other.file}, "the system's": {}} {
		if o := target(t, HTTPOptions{URL: url, TLS: f}).Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseTLS {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if o := target(t, HTTPOptions{URL: strings.Replace(url, "127.0.0.1", "[::ffff:127.0.0.1]", 1), TLS: TLSFiles{CA: own.file}}).Remediate(t.Context(), record()); o.Status != 422 {
		t.Errorf("by another notation of its address: %+v", o)
	}
}

func TestATargetsExpiredCertificateIsNotTrusted(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(-time.Minute))
	o := target(t, HTTPOptions{URL: secure(t, cert, key, ""), TLS: TLSFiles{CA: a.file}}).Remediate(t.Context(), record())
	if o.Class != deadletter.Unavailable || o.Cause != CauseTLS || !strings.Contains(o.Message, "expired") {
		t.Errorf("got %+v", o)
	}
}

func TestAClientCertificateIsShown(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, valid)
	url := secure(t, cert, key, a.file)
	h := target(t, HTTPOptions{URL: url, TLS: TLSFiles{CA: a.file, Cert: cert, Key: key}})
	if o := h.Remediate(t.Context(), record()); !strings.Contains(o.Message, "2 "+valid.UTC().Format(time.RFC3339)) {
		t.Errorf("got %+v", o)
	}
	// What is rotated is shown by the next connection.
	later := valid.Add(time.Hour)
	newCert, newKey := a.issue(t, later)
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		data, err := readFile(from, maxPEM)
		if err != nil {
			t.Fatal(err)
		}
		write(t, to, string(data))
	}
	h.Close()
	if o := h.Remediate(t.Context(), record()); !strings.Contains(o.Message, "2 "+later.UTC().Format(time.RFC3339)) {
		t.Errorf("after the rotation: %+v", o)
	}
}

func TestAClientCertificateThatIsMissingOrWrongIsNotTheRecordsFault(t *testing.T) {
	own, other := newAuthority(t), newAuthority(t)
	cert, key := own.issue(t, valid)
	url := secure(t, cert, key, own.file)
	otherCert, otherKey := other.issue(t, valid)
	for name, f := range map[string]TLSFiles{
		"none":    {CA: own.file},
		"another": {CA: own.file, Cert: otherCert, Key: otherKey},
	} {
		// With TLS 1.3 the refusal comes behind the handshake, and can be overtaken by the end of the connection.
		if o := target(t, HTTPOptions{URL: url, TLS: f}).Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseTLS && o.Cause != CauseReset {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestAClientCertificateOfItsOwnThatIsNotValidIsCalledSo(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, now.Add(time.Hour))
	at := now
	h, err := NewHTTP(HTTPOptions{
		URL: "https://127.0.0.1:1/", Timeout: patience, Source: "w", TLS: TLSFiles{CA: a.file, Cert: cert, Key: key},
		Now: func() time.Time { return at },
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at   time.Time
		want string
	}{
		"expired":    {now.Add(2 * time.Hour), "tls.cert_file: the certificate expired at 2026-03-01T13:00:00Z: renew it"},
		"not begun":  {now.Add(-2 * time.Hour), "tls.cert_file: the certificate is not valid before 2026-03-01T11:00:00Z"},
		"valid, but": {now, ""},
	} {
		at = c.at
		o := h.Remediate(t.Context(), record())
		if c.want == "" {
			if o.Cause != CauseRefused { // nobody listens
				t.Errorf("%s: %+v", name, o)
			}
			continue
		}
		if o.Class != deadletter.Unavailable || o.Cause != CauseCredentials || o.Message != c.want {
			t.Errorf("%s: %+v", name, o)
		}
	}
	at = now.Add(2 * time.Hour)
	if _, err := NewHTTP(HTTPOptions{URL: "https://h/", Timeout: 1, Source: "w", TLS: TLSFiles{Cert: cert, Key: key}, Now: func() time.Time { return at }}); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("at the start: %v", err)
	}
}

func TestTLSWorksOverAUnixSocket(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, valid)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	l, err := tls.Listen("unix", path, &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if o := target(t, HTTPOptions{Unix: path, URL: "https://localhost/", TLS: TLSFiles{CA: a.file}}).Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Errorf("got %+v", o)
	}
}

package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Refusals are the words for why a connection fails though the broker is there:
// what waiting does not mend. They are a label of metrics.
const (
	RefusedCredentials = "credentials"        // user, password or token not accepted
	RefusedMechanism   = "mechanism"          // not offered, SASL missing, or none wanted
	RefusedClient      = "client_certificate" // required, or not accepted
	RefusedAuthority   = "unknown_ca"         // of the broker's certificate
	RefusedExpired     = "expired"            // the broker's certificate, or not valid yet
	RefusedName        = "host_name"          // not in the broker's certificate
	RefusedProtocol    = "protocol"           // TLS with a port that has none, the reverse, no version in common
	RefusedSecret      = "secret"             // our own: it cannot be read, has expired, or no token is to be had. No broker was asked
)

// Refusals lists those words.
var Refusals = []string{
	RefusedCredentials, RefusedMechanism, RefusedClient, RefusedAuthority, RefusedExpired, RefusedName, RefusedProtocol, RefusedSecret,
}

// refused says why a connection of c is refused: one of Refusals, and in few
// words what is wrong and what to do. The word is empty where err is no refusal.
func (c Conn) refused(err error) (word, text string) {
	var (
		own       *ownError
		unknown   x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		handshake *handshakeError
		eof       *kgo.ErrFirstReadEOF
	)
	switch {
	case errors.As(err, &own):
		return RefusedSecret, own.Error()

	case c.SASL != nil && errors.Is(err, kerr.SaslAuthenticationFailed):
		what := "the broker does not accept this user and password"
		if c.SASL.Name() == "OAUTHBEARER" {
			what = "the broker does not accept this token: expired, for another audience, or of an issuer that it does not trust"
		}
		return RefusedCredentials, what + ": look at kafka.sasl (" + c.SASL.Name() + ")"
	case c.SASL != nil && errors.Is(err, kerr.UnsupportedSaslMechanism):
		return RefusedMechanism, "the broker does not offer " + c.SASL.Name() + " on this port: set kafka.sasl.mechanism to one of its sasl.enabled.mechanisms"
	case errors.Is(err, kerr.IllegalSaslState):
		return RefusedMechanism, "this port has no SASL: remove kafka.sasl, or use the port that has"

	case errors.As(err, &unknown):
		return RefusedAuthority, "the broker's certificate is signed by an unknown CA: set kafka.tls.ca_file to the CA that signs the brokers' certificates"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return RefusedExpired, fmt.Sprintf("the broker's certificate (%s) is valid from %s to %s only: renew it, or set this machine's clock",
			invalid.Cert.Subject, day(invalid.Cert.NotBefore), day(invalid.Cert.NotAfter))
	case errors.As(err, &name):
		return RefusedName, fmt.Sprintf("the broker's certificate is for %s, not for %s: use a name that it has, in kafka.brokers and in the broker's advertised.listeners, or set kafka.tls.server_name",
			names(name.Certificate), name.Host)
	case errors.As(err, &verify):
		return RefusedAuthority, "the broker's certificate cannot be verified: " + verify.Err.Error()

	case c.TLS != nil && alert(err) != "":
		return c.alerted(alert(err))
	case errors.As(err, &record):
		return RefusedProtocol, "this port does not speak TLS: use the port that does, or remove kafka.tls"
	case errors.As(err, &handshake) && strings.HasPrefix(handshake.err.Error(), "tls: "): // crypto/tls has no types for the rest
		return RefusedProtocol, handshake.Error()

	// kgo does not export which kind of first read this was, and what it has seen
	// of an answer that is none of Kafka's: only its texts say so.
	case c.TLS == nil && strings.Contains(err.Error(), "tls alert record"):
		return RefusedProtocol, "this port wants TLS: set kafka.tls, or use the port without"
	case c.SASL == nil && errors.As(err, &eof) && strings.Contains(err.Error(), "is SASL missing"):
		return RefusedMechanism, "the broker closed the connection at the first request: this port wants SASL: set kafka.sasl, or use the port without"
	}
	return "", ""
}

// alert gives the TLS alert that the broker has sent, in the words of RFC 8446,
// section 6; empty: none. crypto/tls does not export its type.
func alert(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" { // ours, of a handshake
		err = op.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return strings.TrimPrefix(op.Err.Error(), "tls: ")
	}
	return ""
}

// alerted explains a TLS alert of the broker.
func (c Conn) alerted(alert string) (word, text string) {
	switch {
	case strings.Contains(alert, "certificate"):
	case strings.Contains(alert, "protocol version"), strings.Contains(alert, "handshake failure"), strings.Contains(alert, "insufficient security"):
		return RefusedProtocol, "the broker ends the TLS handshake (" + alert + "): it has no TLS version or cipher suite in common with this client"
	default: // its own trouble
		return "", ""
	}
	config, err := c.TLS()
	switch {
	case err == nil && len(config.Certificates) == 0:
		return RefusedClient, "the broker requires a client certificate (" + alert + "): set kafka.tls.cert_file and kafka.tls.key_file"
	case alert == "expired certificate":
		return RefusedClient, "the broker says that the client certificate has expired: replace kafka.tls.cert_file, or look at the clocks"
	}
	return RefusedClient, "the broker does not accept the client certificate (" + alert + "): kafka.tls.cert_file must be signed by a CA of the broker's truststore"
}

// names are those that a certificate is valid for.
func names(cert *x509.Certificate) string {
	all := cert.DNSNames
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no host name"
	}
	const most = 5
	if len(all) > most {
		all = append(all[:most:most], "…")
	}
	return strings.Join(all, ", ")
}

// reason says in few words what is wrong with an address, and what to do.
func (c Conn) reason(err error) string {
	if word, text := c.refused(err); word != "" {
		return text
	}
	var dns *net.DNSError
	var eof *kgo.ErrFirstReadEOF
	var handshake *handshakeError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: is the broker running, and is the port right?"
	case errors.As(err, &dns):
		return "no such host: check the name"
	case errors.As(err, &handshake) && errors.Is(err, io.EOF): // or it is going down
		return "the connection was closed in the TLS handshake: does this port speak TLS? Use the port that does, or remove kafka.tls"
	case errors.As(err, &eof), errors.Is(err, io.EOF):
		return "the broker closed the connection at once: does this port expect TLS or SASL?"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to host: check the address"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer in time: check the address and the firewall, and that a Kafka broker listens there"
	default:
		return err.Error() + ": is this a Kafka broker?"
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

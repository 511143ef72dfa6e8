package brokers

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/recon-dlq/recon-dlq/test/authority"
)

// The listeners that every node of a cluster with Options.Secure has beside the
// plain one. Each sends its clients to itself.
const (
	ListenSASL    = "SASL"    // TLS; SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, and OAUTHBEARER with unsigned tokens; SCRAM again every 4 s
	ListenMTLS    = "MTLS"    // TLS; a client certificate is required
	ListenLogin   = "LOGIN"   // no TLS; PLAIN, and OAUTHBEARER with unsigned tokens
	ListenExpired = "EXPIRED" // TLS; the broker's certificate has expired
)

var secureListeners = []string{ListenSASL, ListenMTLS, ListenLogin, ListenExpired}

// SecureUser may log in at ListenSASL and ListenLogin, see Kafka.Password.
const SecureUser = "worker"

// Listener is the address of a secure listener at the first node.
func (k *Kafka) Listener(name string) string { return loopback(k.nodes[0].secure[name]) }

// Authority has signed the brokers' certificates, and those it issues are taken
// from clients.
func (k *Kafka) Authority() *authority.Authority { return k.authority }

// Password of SecureUser, and of the super user.
func (k *Kafka) Password() string { return k.password }

// keystores writes what the brokers prove themselves with.
func (k *Kafka) keystores() error {
	var err error
	if k.authority, err = authority.New("recon-dlq test CA"); err != nil {
		return err
	}
	if err := os.WriteFile(k.pem("ca"), k.authority.PEM, 0o600); err != nil {
		return err
	}
	for name, valid := range map[string]time.Duration{"broker": 24 * time.Hour, "expired": -time.Minute} {
		cert, key, err := k.authority.Issue(name, valid, "127.0.0.1", "localhost")
		if err != nil {
			return err
		}
		if err := os.WriteFile(k.pem(name), append(key, cert...), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kafka) pem(name string) string { return filepath.Join(k.dir, name+".pem") }

// secure adds the secure listeners to a node's properties.
func (k *Kafka) secure(n *node, p map[string]string) {
	for _, name := range secureListeners {
		address := name + "://" + loopback(n.secure[name])
		p["listeners"] += "," + address
		p["advertised.listeners"] += "," + address
	}
	p["listener.security.protocol.map"] += ",SASL:SASL_SSL,MTLS:SSL,LOGIN:SASL_PLAINTEXT,EXPIRED:SSL"
	p["ssl.keystore.type"], p["ssl.truststore.type"] = "PEM", "PEM"
	p["ssl.keystore.location"], p["ssl.truststore.location"] = k.pem("broker"), k.pem("ca")
	p["listener.name.expired.ssl.keystore.type"], p["listener.name.expired.ssl.keystore.location"] = "PEM", k.pem("expired")
	p["listener.name.mtls.ssl.client.auth"] = "required"
	p["listener.name.sasl.sasl.enabled.mechanisms"] = "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER"
	p["listener.name.login.sasl.enabled.mechanisms"] = "PLAIN,OAUTHBEARER"
	for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
		p["listener.name.sasl."+mechanism+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		p["listener.name.sasl."+mechanism+".connections.max.reauth.ms"] = "4000"
	}
	for _, listener := range []string{"sasl", "login"} {
		p["listener.name."+listener+".plain.sasl.jaas.config"] = fmt.Sprintf(
			`org.apache.kafka.common.security.plain.PlainLoginModule required user_%s="%s";`, SecureUser, k.password)
		p["listener.name."+listener+".oauthbearer.sasl.jaas.config"] = `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
	}
}

// scramUsers are arguments of the format.
func (k *Kafka) scramUsers() (args []string) {
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, SecureUser, k.password))
	}
	return args
}

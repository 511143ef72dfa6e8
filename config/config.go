// Package config reads the configuration: YAML file, RECON_DLQ_* environment
// and flags, through viper, into one validated value. It is the only importer
// of viper.
//
// Every key that a user can write is in one table (schema.go). Keys are exact:
// an unknown one is a fault that names the nearest right one, and a key of a
// feature that is not built yet is refused, never accepted and ignored. All
// faults are reported at once, each with its path and place. Flags win over the
// environment, the environment over the file, the file over the defaults.
package config

import (
	"fmt"
	"time"

	"github.com/recon-dlq/recon-dlq/policy"
)

// DrainBound is how long a worker that loses a partition or stops waits for
// calls in flight. A handler's timeout is shorter, or its calls would be cut.
const DrainBound = 25 * time.Second

// Config is the whole configuration. It is not changed after Load.
type Config struct {
	Kafka      Kafka
	Source     Source
	Topics     Topics
	Delivery   Delivery
	Limits     Limits
	Targets    []Target
	Rules      []policy.Rule // never empty after Load
	Escalation Escalation
	Metrics    Metrics
	FirstStart bool // --first-start: go on although the group's progress is gone; never in a file
}

// Kafka says where the brokers are and who the worker is.
type Kafka struct {
	Brokers  []string // host:port
	Group    string   // also the prefix of transactional ids
	Instance string   // a name that outlives restarts; empty: dynamic member
	TLS      TLS
	SASL     SASL
}

// Source names the topics that classifiers write.
type Source struct{ Topics []string }

// Topics names the worker's own topics.
type Topics struct {
	Retry       string // prefix of the tiers
	Hold        string // prefix of the hold topics
	Poison      string
	Audit       string
	State       string
	Replication int
	Partitions  int // of topics that topics apply creates; 0: as many as the source has (3 without one)
}

// Delivery is the delivery mode.
type Delivery string

// The delivery modes.
const (
	ExactlyOnce Delivery = "exactly-once"
	AtLeastOnce Delivery = "at-least-once"
)

// Limits bound the worker.
type Limits struct {
	MaxInflightBytes int64
	Concurrency      int // handler calls at a time
}

// Target is one named handler. It is one of HTTP, Exec and SQL, the others are zero.
type Target struct {
	Name string // also the end of its hold topic's name
	HTTP HTTP
	Exec Exec
	SQL  SQL

	AllowLinkLocal bool // or addresses of metadata services
}

// Timeout is that of one call, shorter than DrainBound.
func (t Target) Timeout() time.Duration {
	return t.HTTP.Timeout + t.Exec.Timeout + t.SQL.Timeout // two are zero
}

// HTTP is a target reached over HTTP.
type HTTP struct {
	URL     string        // http(s)://…; may be empty with Unix, then the path is /
	Unix    string        // absolute path of a unix socket; URL then gives host and path of the request only
	Timeout time.Duration // per call, shorter than DrainBound
	Auth    Auth
	TLS     TLSFiles
}

// Auth says how a target knows the worker; empty: by nothing. Its files are read when
// they are needed, so that what is changed is used.
type Auth struct {
	BearerFile       string
	User             string // Basic, with PasswordFile
	PasswordFile     string
	HMACFile         string // secret of Standard Webhooks signatures
	PreviousHMACFile string // signs, too, while a secret is replaced
}

// TLSFiles names PEM files.
type TLSFiles struct {
	CAFile   string // empty: the system's authorities
	CertFile string // the worker's own certificate, with KeyFile
	KeyFile  string
}

func (h HTTP) used() bool { return h != HTTP{} }

// Exec is a target that is a program, started by the worker.
type Exec struct {
	Command []string      // program and arguments; no shell
	Timeout time.Duration // per call, shorter than DrainBound
}

func (e Exec) used() bool { return e.Command != nil || e.Timeout != 0 }

// SQL is a target that is a PostgreSQL database.
type SQL struct {
	DSNFile   string        // file of the connection string, read for every connection
	Statement string        // applies a record; named parameters
	Processed string        // table of processed ids
	Timeout   time.Duration // per call, shorter than DrainBound
}

func (s SQL) used() bool { return s != SQL{} }

// Escalation says who is told.
type Escalation struct {
	Webhook Webhook
}

// Webhook gets one POST per poison record. Empty URL: log lines only.
type Webhook struct {
	URL       string
	TokenFile string        // file of the bearer token
	Token     Secret        // what Load read from TokenFile or the environment; never printed
	Timeout   time.Duration // per POST
}

// Metrics is the read-only HTTP server.
type Metrics struct {
	Listen string // host:port; empty: no server
}

// Secret is text that no printing, logging or encoding shows.
type Secret struct{ value string }

// NewSecret wraps a secret.
func NewSecret(s string) Secret { return Secret{value: s} }

// Reveal gives the secret itself, for the one place that needs it.
func (s Secret) Reveal() string { return s.value }

const redacted = "[redacted]"

// Format prints a placeholder whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText gives a placeholder, for encoders and slog.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Default is the configuration without file, environment and flags. It lacks
// what has no default: brokers, a target, and so rules.
func Default() Config {
	c, _ := Load("", nil, nil) // the faults are the missing brokers and targets
	return c
}

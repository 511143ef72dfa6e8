// Package config reads the configuration: YAML file, RECON_DLQ_* environment
// and flags, through viper, into one validated value. It is the only importer
// of viper.
package config

import (
	"time"

	"github.com/recon-dlq/recon-dlq/policy"
)

// Config is the whole configuration. It is not changed after Load.
type Config struct {
	Kafka      Kafka
	Source     Source
	Topics     Topics
	Delivery   Delivery
	Limits     Limits
	Targets    []Target
	Rules      []policy.Rule
	Escalation Escalation
	Metrics    Metrics
	FirstStart bool // --first-start: go on although the group's progress is gone
}

// Kafka says where the brokers are and who the worker is.
type Kafka struct {
	Brokers  []string
	Group    string // also the prefix of transactional ids
	Instance string // a name that outlives restarts; empty: dynamic member
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

// Target is one named handler.
type Target struct {
	Name string
	HTTP HTTP
}

// HTTP is a target reached over HTTP.
type HTTP struct {
	URL     string        // http(s)://…
	Unix    string        // path of a unix socket; URL then gives the path only
	Timeout time.Duration // per call
}

// Escalation says who is told.
type Escalation struct {
	Webhook Webhook
}

// Webhook gets one POST per poison record. Empty URL: log lines only.
type Webhook struct {
	URL       string
	TokenFile string // bearer token, read at start; never printed
	Timeout   time.Duration
}

// Metrics is the read-only HTTP server.
type Metrics struct{ Listen string }

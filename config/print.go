package config

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/recon-dlq/recon-dlq/policy"
)

// document is the configuration as a file: the same keys, in the same order.
type document struct {
	Kafka struct {
		Brokers  []string `yaml:"brokers,flow" json:"brokers"`
		Group    string   `yaml:"group" json:"group"`
		Instance string   `yaml:"instance" json:"instance"`
		TLS      *tlsDoc  `yaml:"tls,omitempty" json:"tls,omitempty"`
		SASL     *saslDoc `yaml:"sasl,omitempty" json:"sasl,omitempty"`
	} `yaml:"kafka" json:"kafka"`
	Source struct {
		Topics []string `yaml:"topics,flow" json:"topics"`
	} `yaml:"source" json:"source"`
	Topics struct {
		Retry       string `yaml:"retry" json:"retry"`
		Hold        string `yaml:"hold" json:"hold"`
		Poison      string `yaml:"poison" json:"poison"`
		Audit       string `yaml:"audit" json:"audit"`
		State       string `yaml:"state" json:"state"`
		Replication int    `yaml:"replication" json:"replication"`
		Partitions  int    `yaml:"partitions" json:"partitions"`
	} `yaml:"topics" json:"topics"`
	Delivery string `yaml:"delivery" json:"delivery"`
	Limits   struct {
		MaxInflightBytes string `yaml:"max_inflight_bytes" json:"max_inflight_bytes"`
		Concurrency      int    `yaml:"concurrency" json:"concurrency"`
	} `yaml:"limits" json:"limits"`
	Targets    []targetDoc `yaml:"targets" json:"targets"`
	Rules      []ruleDoc   `yaml:"rules" json:"rules"`
	Escalation struct {
		Webhook struct {
			URL       string `yaml:"url" json:"url"`
			TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
			Timeout   string `yaml:"timeout" json:"timeout"`
		} `yaml:"webhook" json:"webhook"`
	} `yaml:"escalation" json:"escalation"`
	Metrics struct {
		Listen string `yaml:"listen" json:"listen"`
	} `yaml:"metrics" json:"metrics"`
}

type tlsDoc struct {
	Enabled    bool   `yaml:"enabled" json:"enabled"`
	CAFile     string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	CertFile   string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile    string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

type saslDoc struct {
	Mechanism    string   `yaml:"mechanism" json:"mechanism"`
	Username     string   `yaml:"username,omitempty" json:"username,omitempty"`
	PasswordFile string   `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	TokenFile    string   `yaml:"token_file,omitempty" json:"token_file,omitempty"`
	TokenURL     string   `yaml:"token_url,omitempty" json:"token_url,omitempty"`
	Scopes       []string `yaml:"scopes,flow,omitempty" json:"scopes,omitempty"`
}

type targetDoc struct {
	Name string   `yaml:"name" json:"name"`
	HTTP *httpDoc `yaml:"http,omitempty" json:"http,omitempty"`
	Exec *execDoc `yaml:"exec,omitempty" json:"exec,omitempty"`
	SQL  *sqlDoc  `yaml:"sql,omitempty" json:"sql,omitempty"`

	AllowLinkLocal bool `yaml:"allow_link_local,omitempty" json:"allow_link_local,omitempty"`
}

type httpDoc struct {
	URL     string       `yaml:"url,omitempty" json:"url,omitempty"`
	Unix    string       `yaml:"unix,omitempty" json:"unix,omitempty"`
	Timeout string       `yaml:"timeout" json:"timeout"`
	Auth    *authDoc     `yaml:"auth,omitempty" json:"auth,omitempty"`
	TLS     *tlsFilesDoc `yaml:"tls,omitempty" json:"tls,omitempty"`
}

type authDoc struct {
	BearerFile string    `yaml:"bearer_file,omitempty" json:"bearer_file,omitempty"`
	Basic      *basicDoc `yaml:"basic,omitempty" json:"basic,omitempty"`
	HMAC       *hmacDoc  `yaml:"hmac,omitempty" json:"hmac,omitempty"`
}

type basicDoc struct {
	User         string `yaml:"user" json:"user"`
	PasswordFile string `yaml:"password_file" json:"password_file"`
}

type hmacDoc struct {
	SecretFile         string `yaml:"secret_file" json:"secret_file"`
	PreviousSecretFile string `yaml:"previous_secret_file,omitempty" json:"previous_secret_file,omitempty"`
}

type tlsFilesDoc struct {
	CAFile   string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	CertFile string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
}

type execDoc struct {
	Command []string `yaml:"command,flow" json:"command"`
	Timeout string   `yaml:"timeout" json:"timeout"`
}

type sqlDoc struct {
	DSNFile   string `yaml:"dsn_file" json:"dsn_file"`
	Statement string `yaml:"statement" json:"statement"`
	Processed string `yaml:"processed" json:"processed"`
	Timeout   string `yaml:"timeout" json:"timeout"`
}

type ruleDoc struct {
	Name     string    `yaml:"name" json:"name"`
	Match    *matchDoc `yaml:"match,omitempty" json:"match,omitempty"`
	Target   string    `yaml:"target,omitempty" json:"target,omitempty"`
	Strategy string    `yaml:"strategy,omitempty" json:"strategy,omitempty"`
	Attempts *int      `yaml:"attempts,omitempty" json:"attempts,omitempty"`
	Delays   []string  `yaml:"delays,flow,omitempty" json:"delays,omitempty"`
	// Without it the default is in force, with an empty one nothing is permanent.
	Permanent *flowList `yaml:"permanent,omitempty" json:"permanent,omitempty"`
	SLA       struct {
		MaxAge   string `yaml:"max_age" json:"max_age"`
		OnBreach string `yaml:"on_breach" json:"on_breach"`
	} `yaml:"sla" json:"sla"`
}

type matchDoc struct {
	Category      string      `yaml:"category,omitempty" json:"category,omitempty"`
	Origin        []string    `yaml:"origin,flow,omitempty" json:"origin,omitempty"`
	Header        []headerDoc `yaml:"header,omitempty" json:"header,omitempty"`
	Value         []valueDoc  `yaml:"value,omitempty" json:"value,omitempty"`
	Target        []string    `yaml:"target,flow,omitempty" json:"target,omitempty"`
	Error         []string    `yaml:"error,flow,omitempty" json:"error,omitempty"`
	Status        []string    `yaml:"status,flow,omitempty" json:"status,omitempty"`
	Code          []string    `yaml:"code,flow,omitempty" json:"code,omitempty"`
	OlderThan     string      `yaml:"older_than,omitempty" json:"older_than,omitempty"`
	AfterAttempts int         `yaml:"after_attempts,omitempty" json:"after_attempts,omitempty"`
}

type headerDoc struct {
	Name string `yaml:"name" json:"name"`
	Is   string `yaml:"is,omitempty" json:"is,omitempty"`
}

type valueDoc struct {
	Path string `yaml:"path" json:"path"`
	Is   string `yaml:"is,omitempty" json:"is,omitempty"`
}

// flowList is a list on one line, the empty one too.
type flowList []string

// MarshalYAML makes it a node in flow style.
func (l flowList) MarshalYAML() (any, error) {
	n := &yaml.Node{}
	if err := n.Encode([]string(l)); err != nil {
		return nil, err
	}
	n.Style = yaml.FlowStyle
	return n, nil
}

func (c Config) document() document {
	var d document
	d.Kafka.Brokers = c.Kafka.Brokers
	d.Kafka.Group = c.Kafka.Group
	d.Kafka.Instance = c.Kafka.Instance
	if c.Kafka.TLS.Enabled {
		d.Kafka.TLS = (*tlsDoc)(&c.Kafka.TLS)
	}
	if s := c.Kafka.SASL; s.Mechanism != "" {
		d.Kafka.SASL = &saslDoc{s.Mechanism, s.Username, s.PasswordFile, s.TokenFile, s.TokenURL, s.Scopes}
	}
	d.Source.Topics = c.Source.Topics
	d.Topics.Retry = c.Topics.Retry
	d.Topics.Hold = c.Topics.Hold
	d.Topics.Poison = c.Topics.Poison
	d.Topics.Audit = c.Topics.Audit
	d.Topics.State = c.Topics.State
	d.Topics.Replication = c.Topics.Replication
	d.Topics.Partitions = c.Topics.Partitions
	d.Delivery = string(c.Delivery)
	d.Limits.MaxInflightBytes = formatSize(c.Limits.MaxInflightBytes)
	d.Limits.Concurrency = c.Limits.Concurrency
	for _, t := range c.Targets {
		d.Targets = append(d.Targets, newTargetDoc(t))
	}
	for _, r := range c.Rules {
		d.Rules = append(d.Rules, newRuleDoc(r))
	}
	w := c.Escalation.Webhook
	d.Escalation.Webhook.URL = w.URL
	d.Escalation.Webhook.TokenFile = w.TokenFile
	d.Escalation.Webhook.Timeout = policy.FormatDelay(w.Timeout)
	d.Metrics.Listen = c.Metrics.Listen
	return d
}

func newTargetDoc(t Target) targetDoc {
	doc := targetDoc{Name: t.Name, AllowLinkLocal: t.AllowLinkLocal}
	if h := t.HTTP; h.used() {
		doc.HTTP = &httpDoc{URL: h.URL, Unix: h.Unix, Timeout: policy.FormatDelay(h.Timeout), Auth: newAuthDoc(h.Auth)}
		if h.TLS != (TLSFiles{}) {
			doc.HTTP.TLS = &tlsFilesDoc{CAFile: h.TLS.CAFile, CertFile: h.TLS.CertFile, KeyFile: h.TLS.KeyFile}
		}
	}
	if e := t.Exec; e.used() {
		doc.Exec = &execDoc{Command: e.Command, Timeout: policy.FormatDelay(e.Timeout)}
	}
	if s := t.SQL; s.used() {
		doc.SQL = &sqlDoc{DSNFile: s.DSNFile, Statement: s.Statement, Processed: s.Processed, Timeout: policy.FormatDelay(s.Timeout)}
	}
	return doc
}

func newAuthDoc(a Auth) *authDoc {
	if a == (Auth{}) {
		return nil
	}
	doc := &authDoc{BearerFile: a.BearerFile}
	if a.User != "" {
		doc.Basic = &basicDoc{User: a.User, PasswordFile: a.PasswordFile}
	}
	if a.HMACFile != "" {
		doc.HMAC = &hmacDoc{SecretFile: a.HMACFile, PreviousSecretFile: a.PreviousHMACFile}
	}
	return doc
}

func newRuleDoc(r policy.Rule) ruleDoc {
	doc := ruleDoc{Name: r.Name, Target: r.Target}
	doc.Match = newMatchDoc(r)
	if r.Permanent != nil {
		list := flowList(r.Permanent)
		doc.Permanent = &list
	}
	for _, name := range presets {
		if attempts, delays, _ := policy.Preset(name); attempts == r.Attempts && slices.Equal(delays, r.Delays) {
			doc.Strategy = name
		}
	}
	if doc.Strategy == "" {
		doc.Attempts = &r.Attempts
		for _, d := range r.Delays {
			doc.Delays = append(doc.Delays, policy.FormatDelay(d))
		}
	}
	doc.SLA.MaxAge = policy.FormatDelay(r.MaxAge)
	doc.SLA.OnBreach = formatBreach(r.OnBreach)
	return doc
}

// newMatchDoc is nil where a rule matches everything.
func newMatchDoc(r policy.Rule) *matchDoc {
	m := r.Match
	doc := matchDoc{
		Category: r.Category, Origin: m.Origin, Target: m.Target,
		Error: m.Error, Status: m.Status, Code: m.Code, AfterAttempts: m.AfterAttempts,
	}
	for _, h := range m.Header {
		doc.Header = append(doc.Header, headerDoc(h))
	}
	for _, v := range m.Value {
		doc.Value = append(doc.Value, valueDoc(v))
	}
	if m.OlderThan > 0 {
		doc.OlderThan = policy.FormatDelay(m.OlderThan)
	}
	if reflect.DeepEqual(doc, matchDoc{}) {
		return nil
	}
	return &doc
}

// Print writes the configuration as YAML that Load reads to the same value. It
// has no secret, only the paths of their files. FirstStart is a flag's alone.
func (c Config) Print(w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(c.document()); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

// PrintJSON writes what Print writes, as JSON.
func (c Config) PrintJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c.document()); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

package config

import (
	"regexp"
	"slices"
	"strings"
)

// kind is the form of a key's value.
type kind uint8

const (
	text   kind = iota // any scalar, as written
	texts              // a list of scalars
	some               // a list of scalars, or one alone; in entries only
	group              // keys under it
	items              // a list of entries, each with keys; in the file only
	secret             // environment only
	later              // belongs to a feature that is not built yet: refused unless empty
)

// key is one key a user may write.
type key struct {
	name string
	kind kind
	def  string // default, as a user would write it
	keys []key  // of group and items
}

// schema is every key of the configuration. The walk over the file, the names
// in the environment, the defaults and the reference's test all come from it.
var schema = key{kind: group, keys: []key{
	{name: "kafka", kind: group, keys: []key{
		{name: "brokers", kind: texts},
		{name: "group", def: "recon-dlq"},
		{name: "instance"},
		{name: "tls", kind: group, keys: []key{
			{name: "enabled"},
			{name: "ca_file"},
			{name: "cert_file"},
			{name: "key_file"},
			{name: "server_name"},
		}},
		{name: "sasl", kind: group, keys: []key{
			{name: "mechanism"},
			{name: "username"},
			{name: "password_file"},
			{name: "password", kind: secret},
			{name: "token_file"},
			{name: "token_url"},
			{name: "scopes", kind: texts},
		}},
	}},
	{name: "source", kind: group, keys: []key{
		{name: "topics", kind: texts, def: "recon.dlq"},
	}},
	{name: "topics", kind: group, keys: []key{
		{name: "retry", def: "recon.dlq.retry."},
		{name: "hold", def: "recon.dlq.hold."},
		{name: "poison", def: "recon.dlq.poison"},
		{name: "audit", def: "recon.dlq.audit"},
		{name: "state", def: "recon.dlq.state"},
		{name: "replication", def: "3"},
		{name: "partitions", def: "0"},
	}},
	{name: "delivery", def: string(ExactlyOnce)},
	{name: "limits", kind: group, keys: []key{
		{name: "max_inflight_bytes", def: "64MiB"},
		{name: "concurrency", def: "64"},
	}},
	{name: "targets", kind: items, keys: []key{
		{name: "name"},
		{name: "http", kind: group, keys: []key{
			{name: "url"},
			{name: "unix"},
			{name: "timeout", def: "10s"},
			{name: "auth", kind: group, keys: []key{
				{name: "bearer_file"},
				{name: "basic", kind: group, keys: []key{
					{name: "user"},
					{name: "password_file"},
				}},
				{name: "hmac", kind: group, keys: []key{
					{name: "secret_file"},
					{name: "previous_secret_file"},
				}},
			}},
			{name: "tls", kind: group, keys: []key{
				{name: "ca_file"},
				{name: "cert_file"},
				{name: "key_file"},
			}},
		}},
		{name: "exec", kind: group, keys: []key{
			{name: "command", kind: texts},
			{name: "timeout", def: "10s"},
		}},
		{name: "sql", kind: group, keys: []key{
			{name: "dsn_file"},
			{name: "statement"},
			{name: "processed", def: "recon_dlq_processed"},
			{name: "timeout", def: "10s"},
		}},
		{name: "kafka", kind: later},
		{name: "allow_link_local", def: "false"},
		{name: "rate", kind: later},
		{name: "burst", kind: later},
		{name: "in_flight", kind: later},
		{name: "slow_start", kind: later},
		{name: "breaker", kind: later},
	}},
	{name: "rules", kind: items, keys: []key{
		{name: "name"},
		{name: "match", kind: group, keys: []key{
			{name: "category"},
			{name: "origin", kind: some},
			{name: "header", kind: items, keys: []key{
				{name: "name"},
				{name: "is"},
			}},
			{name: "value", kind: items, keys: []key{
				{name: "path"},
				{name: "is"},
			}},
			{name: "target", kind: some},
			{name: "error", kind: some},
			{name: "status", kind: some},
			{name: "code", kind: some},
			{name: "older_than"},
			{name: "after_attempts"},
		}},
		{name: "target"},
		{name: "strategy", def: "balanced"},
		{name: "attempts"},
		{name: "delays", kind: texts},
		{name: "permanent", kind: some},
		{name: "sla", kind: group, keys: []key{
			{name: "max_age", def: "24h"},
			{name: "on_breach", def: "poison"},
		}},
		{name: "window", kind: later},
	}},
	{name: "poison", kind: later},
	{name: "masking", kind: later},
	{name: "escalation", kind: group, keys: []key{
		{name: "webhook", kind: group, keys: []key{
			{name: "url"},
			{name: "token_file"},
			{name: "token", kind: secret},
			{name: "timeout", def: "10s"},
		}},
		{name: "routes", kind: later},
		{name: "notifiers", kind: later},
	}},
	{name: "metrics", kind: group, keys: []key{
		{name: "listen", def: ":9644"},
	}},
}}

// find gives the key of that name under k, or nil.
func (k *key) find(name string) *key {
	for i := range k.keys {
		if k.keys[i].name == name {
			return &k.keys[i]
		}
	}
	return nil
}

// names lists the keys under k that work today.
func (k *key) names() []string {
	var names []string
	for _, sub := range k.keys {
		if sub.kind != later && sub.kind != secret {
			names = append(names, sub.name)
		}
	}
	return names
}

// each calls f for every key below k, parents first, with its path. The path of
// an entry's key has empty brackets: targets[].name.
func (k *key) each(path string, f func(path string, k *key)) {
	for i := range k.keys {
		sub := &k.keys[i]
		p := join(path, sub.name)
		f(p, sub)
		if sub.kind == items {
			p += "[]"
		}
		sub.each(p, f)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// The environment.
const (
	// EnvPrefix begins the name of every variable.
	EnvPrefix = "RECON_DLQ_"
	// EnvConfig names the file where no flag does.
	EnvConfig = EnvPrefix + "CONFIG"
)

// envName is the variable that sets the key at path.
func envName(path string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// envKeys maps the variables that exist to the paths they set. Lists of entries are for the file.
func envKeys() map[string]string {
	m := make(map[string]string)
	schema.each("", func(path string, k *key) {
		if (k.kind == text || k.kind == texts || k.kind == secret) && !strings.Contains(path, "[]") {
			m[envName(path)] = path
		}
	})
	return m
}

// injected matches what Kubernetes puts into a pod's environment for a Service
// whose name begins with recon-dlq: nobody's typing error.
var injected = regexp.MustCompile(`^RECON_DLQ_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// nearest gives the candidate that takes the fewest edits to reach from s, and
// false if none is near enough to be what was meant.
func nearest(s string, candidates []string) (string, bool) {
	best, at := "", max(2, len(s)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(s, c); d < at {
			best, at = c, d
		}
	}
	return best, best != ""
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours between a and b (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

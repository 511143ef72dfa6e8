package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recon-dlq/recon-dlq/policy"
)

// Bounds of the values.
const (
	MinInflightBytes = 1 << 20
	MaxConcurrency   = 10_000
	maxPartitions    = 10_000
	maxWebhookWait   = time.Minute
	maxSocketPath    = 107 // sun_path of Linux, less its final zero
	maxName          = 64  // of a target or rule: they are labels of metrics

	// Kafka allows 249 characters in the name of a topic and in a group.instance.id.
	maxTopic = 249
	// A prefix leaves room for what follows: a delay, or a target's name.
	maxPrefix = maxTopic - maxName
	// A transactional id is group.instance.lane; the lane takes up to 4 characters, its dot included.
	maxIdentity = maxTopic - 4
)

// Validate reports everything that is wrong with a configuration that was made
// in code; Load has done it already. The error is a *Faults.
func (c Config) Validate() error {
	if faults := c.faults(); len(faults) > 0 {
		return &Faults{List: faults}
	}
	return nil
}

// checker collects faults.
type checker struct{ list []Fault }

func (k *checker) fault(path, format string, args ...any) {
	k.list = append(k.list, Fault{Path: path, Msg: fmt.Sprintf(format, args...)})
}

func (c Config) faults() []Fault {
	var k checker
	k.kafka(c.Kafka)
	k.tls(c.Kafka.TLS)
	k.sasl(c.Kafka.SASL)
	k.topics(c.Source, c.Topics)
	if c.Delivery != ExactlyOnce && c.Delivery != AtLeastOnce {
		k.fault("delivery", "want %s or %s", ExactlyOnce, AtLeastOnce)
	}
	if c.Limits.MaxInflightBytes < MinInflightBytes {
		k.fault("limits.max_inflight_bytes", "want at least 1MiB")
	}
	k.between("limits.concurrency", c.Limits.Concurrency, 1, MaxConcurrency)
	k.targets(c.Targets)
	k.rules(c.Rules, c.Targets)
	k.webhook(c.Escalation.Webhook)
	if c.Metrics.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Metrics.Listen); err != nil || !isPort(port, 0) {
			k.fault("metrics.listen", "want host:port or :port, such as :9644; empty for none")
		}
	}
	return k.list
}

func (k *checker) between(path string, n, low, high int) {
	if n < low || n > high {
		k.fault(path, "%d is out of range: want %d to %d", n, low, high)
	}
}

func (k *checker) kafka(c Kafka) {
	if len(c.Brokers) == 0 {
		k.fault("kafka.brokers", "is missing: name at least one broker as host:port in the file, in %s or with --brokers", envName("kafka.brokers"))
	}
	for i, b := range c.Brokers {
		// The value is not shown: it may be an address with a password in it.
		host, port, err := net.SplitHostPort(b)
		if err != nil || host == "" || strings.ContainsAny(host, "/@ \t,") || !isPort(port, 1) {
			k.fault(fmt.Sprintf("kafka.brokers[%d]", i), "want host:port, such as localhost:9092, without a scheme")
		}
	}
	k.name("kafka.group", c.Group, maxIdentity)
	if c.Instance == "" {
		return
	}
	k.name("kafka.instance", c.Instance, maxTopic)
	if strings.Contains(c.Instance, ".") {
		// Group a.b with instance c would share its transactional ids with group a and instance b.c.
		k.fault("kafka.instance", "a dot is not allowed: transactional ids are group.instance.lane, and must be one worker's alone")
	}
	if len(c.Group)+1+len(c.Instance) > maxIdentity {
		k.fault("kafka.instance", "too long: group and instance together may have %d characters, since they make the transactional id", maxIdentity-1)
	}
}

// name reports what Kafka would not take as the name of a topic, group or instance.
func (k *checker) name(path, s string, longest int) bool {
	switch {
	case s == "":
		k.fault(path, "must not be empty")
	case strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(nameChars, r) }):
		k.fault(path, "only letters, digits, dot, underscore and hyphen are allowed in a name")
	case s == "." || s == "..":
		k.fault(path, "%q is no name that Kafka allows", s)
	case len(s) > longest:
		k.fault(path, "too long: at most %d characters", longest)
	default:
		return true
	}
	return false
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// sameTopic makes names equal that Kafka takes for the same: it refuses a topic
// whose name differs from another's only in dots and underscores.
func sameTopic(s string) string { return strings.ReplaceAll(s, "_", ".") }

func (k *checker) topics(s Source, t Topics) {
	type owned struct {
		path, name string
		prefix     bool
	}
	own := []owned{
		{"topics.retry", t.Retry, true},
		{"topics.hold", t.Hold, true},
		{"topics.poison", t.Poison, false},
		{"topics.audit", t.Audit, false},
		{"topics.state", t.State, false},
	}
	for i, o := range own {
		longest := maxTopic
		if o.prefix {
			longest = maxPrefix
		}
		if !k.name(o.path, o.name, longest) {
			own[i].name = "" // overlaps nothing
		}
	}
	overlap := func(a, b owned) bool {
		x, y := sameTopic(a.name), sameTopic(b.name)
		switch {
		case x == "" || y == "":
			return false
		case a.prefix && strings.HasPrefix(y, x), b.prefix && strings.HasPrefix(x, y):
			return true
		}
		return x == y
	}
	for i, a := range own {
		for _, b := range own[:i] {
			if overlap(a, b) {
				k.fault(a.path, "overlaps %s: each of the worker's topics needs a name of its own, and the prefixes must not begin another name", b.path)
				break
			}
		}
	}
	if len(s.Topics) == 0 {
		k.fault("source.topics", "name at least one topic")
	}
	for i, name := range s.Topics {
		path := fmt.Sprintf("source.topics[%d]", i)
		if !k.name(path, name, maxTopic) {
			continue
		}
		if strings.HasPrefix(name, "__") {
			k.fault(path, "names beginning with two underscores are Kafka's own")
		}
		source := owned{name: name}
		for _, o := range own {
			if overlap(source, o) {
				k.fault(path, "overlaps %s: the worker would read what it writes there as new", o.path)
				break
			}
		}
		for j, other := range s.Topics[:i] {
			if sameTopic(other) == sameTopic(name) {
				k.fault(path, "is the same topic as source.topics[%d]", j)
				break
			}
		}
	}
	k.between("topics.replication", t.Replication, 1, 32_767)
	k.between("topics.partitions", t.Partitions, 0, maxPartitions)
}

func (k *checker) targets(targets []Target) {
	if len(targets) == 0 {
		k.fault("targets", "is missing: name at least one in the file, such as [{name: ledger, http: {url: \"http://127.0.0.1:8080/remediate\"}}]")
	}
	for i, t := range targets {
		path := fmt.Sprintf("targets[%d]", i)
		if k.name(path+".name", t.Name, maxName) {
			for j, other := range targets[:i] {
				if sameTopic(other.Name) == sameTopic(t.Name) {
					k.fault(path+".name", "is the name of targets[%d] too, or differs only in dots and underscores: it names the hold topic", j)
					break
				}
			}
		}
		k.kinds(path, t)
	}
}

// kinds checks what a target is.
func (k *checker) kinds(path string, t Target) {
	var kinds []string
	if t.HTTP.used() {
		kinds = append(kinds, "http")
		k.http(path+".http", t.HTTP)
	}
	if t.Exec.used() {
		kinds = append(kinds, "exec")
		k.exec(path+".exec", t.Exec)
	}
	if t.SQL.used() {
		kinds = append(kinds, "sql")
		k.sql(path+".sql", t.SQL)
	}
	switch {
	case len(kinds) == 0:
		k.fault(path, "says not how it is reached: add http, exec or sql, such as http: {url: \"http://127.0.0.1:8080/remediate\"}")
	case t.AllowLinkLocal && t.Exec.used():
		k.fault(path+".allow_link_local", "has no meaning for exec, which has no address: remove it")
	case len(kinds) > 1:
		k.fault(path, "has %s: a target is one of them, remove the others", strings.Join(kinds, " and "))
	}
}

func (k *checker) http(path string, h HTTP) {
	switch {
	case h.URL == "" && h.Unix == "":
		k.fault(path, "needs url, such as http://127.0.0.1:8080/remediate, or unix, the path of a socket")
	case h.URL != "":
		k.url(path+".url", h.URL)
	}
	if h.Unix != "" {
		switch {
		case !filepath.IsAbs(h.Unix) || strings.ContainsFunc(h.Unix, isControl):
			k.fault(path+".unix", "want the absolute path of a socket, such as /run/ledger.sock")
		case len(h.Unix) > maxSocketPath:
			k.fault(path+".unix", "too long for a socket: at most %d bytes", maxSocketPath)
		}
	}
	k.timeout(path+".timeout", h.Timeout)
	k.auth(path+".auth", h.Auth)
	if t := h.TLS; t != (TLSFiles{}) {
		if !strings.HasPrefix(h.URL, "https:") {
			k.fault(path+".tls", "needs a url that begins with https://")
		}
		k.both(path+".tls", "cert_file", t.CertFile, "key_file", t.KeyFile)
	}
}

func (k *checker) auth(path string, a Auth) {
	k.both(path+".basic", "user", a.User, "password_file", a.PasswordFile)
	if strings.ContainsFunc(a.User, func(r rune) bool { return isControl(r) || r == ':' }) {
		k.fault(path+".basic.user", "must have no colon and no control character")
	}
	if a.BearerFile != "" && a.PasswordFile != "" {
		k.fault(path, "has bearer_file and basic: both are the Authorization header, use one of them")
	}
	if a.PreviousHMACFile != "" && a.HMACFile == "" {
		k.fault(path+".hmac.secret_file", "is missing: previous_secret_file is the one that it replaces")
	}
}

// both reports one of two keys that is set without the other.
func (k *checker) both(path, name, value, otherName, other string) {
	switch {
	case value != "" && other == "":
		k.fault(path+"."+otherName, "is missing: it belongs to %s", name)
	case value == "" && other != "":
		k.fault(path+"."+name, "is missing: it belongs to %s", otherName)
	}
}

func (k *checker) exec(path string, e Exec) {
	if len(e.Command) == 0 || e.Command[0] == "" {
		k.fault(path+".command", "is missing: name a program and its arguments, such as [python3, fix.py]")
	}
	k.timeout(path+".timeout", e.Timeout)
}

func (k *checker) sql(path string, s SQL) {
	if s.DSNFile == "" {
		k.fault(path+".dsn_file", "is missing: name a file that holds postgres://user:password@host:5432/database?sslmode=verify-full")
	}
	if strings.TrimSpace(s.Statement) == "" {
		k.fault(path+".statement", "is missing: it applies a record, see docs/handlers.md")
	}
	if !tableName.MatchString(s.Processed) {
		k.fault(path+".processed", "want the name of a table in lower case, maybe with its schema, such as recon_dlq_processed")
	}
	k.timeout(path+".timeout", s.Timeout)
}

// tableName is what PostgreSQL takes unquoted.
var tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$`)

// timeout checks that of a target's calls.
func (k *checker) timeout(path string, d time.Duration) {
	switch {
	case d <= 0:
		k.fault(path, "must be more than 0, such as 10s")
	case d >= DrainBound:
		k.fault(path, "must be shorter than %s: a worker that stops waits no longer for calls in flight", policy.FormatDelay(DrainBound))
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7F }

// url reports what is wrong with an address. It never shows the address, nor
// what the parser says, which quotes it: there may be a password in it.
func (k *checker) url(path, s string) {
	u, err := url.Parse(s)
	switch {
	case err != nil && strings.Contains(s, "@"):
		k.fault(path, "is not a URL: want http:// or https://, host and path; a user name or password does not belong in it, put the secret in a file")
	case err != nil:
		k.fault(path, "is not a URL: want http:// or https://, host and path")
	case u.User != nil:
		k.fault(path, "has a user name or password in it: put the secret in a file")
	case u.Scheme != "http" && u.Scheme != "https":
		k.fault(path, "must begin with http:// or https://")
	case u.Hostname() == "":
		k.fault(path, "names no host")
	case u.Port() != "" && !isPort(u.Port(), 1):
		k.fault(path, "has no valid port: want 1 to 65535")
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		k.fault(path, "has a fragment (#), which is never sent: remove it")
	}
}

func (k *checker) rules(rules []policy.Rule, targets []Target) {
	names := make([]string, len(targets))
	for i, t := range targets {
		names[i] = t.Name
	}
	unknown := make(map[string]bool) // what is said of them is not said again
	for i, r := range rules {
		path := fmt.Sprintf("rules[%d]", i)
		if r.Name != "" {
			k.name(path+".name", r.Name, maxName)
		}
		k.known(path+".target", r.Target, names)
		for j, t := range r.Match.Target {
			p := fmt.Sprintf("%s.match.target[%d]", path, j)
			unknown[p] = !k.known(p, t, names)
		}
	}
	if len(rules) == 0 && len(targets) == 0 {
		return // without a target there is no default rule: one fault says it
	}
	_, err := policy.New(policy.Options{Rules: rules})
	for _, err := range each(err) {
		path, msg, found := strings.Cut(err.Error(), ": ")
		if !found || !strings.HasPrefix(path, "rules") {
			path, msg = "rules", err.Error()
		}
		if !unknown[path] {
			k.fault(path, "%s", msg)
		}
	}
}

// known reports a rule's target that does not exist.
func (k *checker) known(path, target string, names []string) bool {
	if target == "" || slices.Contains(names, target) {
		return true
	}
	if meant, ok := nearest(target, names); ok {
		k.fault(path, "no target has that name: did you mean %q?", meant)
	} else {
		k.fault(path, "no target has that name")
	}
	return false
}

// each takes an error apart that joins others.
func each(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

func (k *checker) webhook(w Webhook) {
	const path = "escalation.webhook"
	switch {
	case w.URL != "":
		k.url(path+".url", w.URL)
	case w.TokenFile != "":
		k.fault(path+".url", "is missing: token_file is set, but nobody is to be told")
	case w.Token != Secret{}:
		k.fault(path+".url", "is missing: the token is set, but nobody is to be told")
	}
	if w.Timeout <= 0 || w.Timeout > maxWebhookWait {
		k.fault(path+".timeout", "want more than 0, at most %s", policy.FormatDelay(maxWebhookWait))
	}
}

func isPort(s string, lowest int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && isDigits(s) && n >= lowest && n <= 65_535
}

package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/recon-dlq/recon-dlq/policy"
)

// Load reads file, environment and flags into one validated configuration.
//
// file is a YAML file; empty: the one that RECON_DLQ_CONFIG names, or none. env
// has the form of os.Environ; an empty variable counts as not set. Of flags (may
// be nil) those defined by Flags and ClientFlags count when they were given.
// The error is a *Faults with everything that is wrong; the Config then holds
// what could be read.
func Load(file string, env []string, flags *pflag.FlagSet) (Config, error) {
	return load(file, env, flags, Config.faults)
}

// LoadClient is Load for commands that only talk to Kafka: a target and rules may be missing.
func LoadClient(file string, env []string, flags *pflag.FlagSet) (Config, error) {
	return load(file, env, flags, func(c Config) []Fault {
		return slices.DeleteFunc(c.faults(), func(f Fault) bool { return f.Path == "targets" && len(c.Targets) == 0 })
	})
}

// LoadRules is Load for commands that only decide, and talk to nobody: brokers may be missing.
func LoadRules(file string, env []string, flags *pflag.FlagSet) (Config, error) {
	return load(file, env, flags, func(c Config) []Fault {
		return slices.DeleteFunc(c.faults(), func(f Fault) bool { return f.Path == "kafka.brokers" && len(c.Kafka.Brokers) == 0 })
	})
}

func load(file string, env []string, flags *pflag.FlagSet, check func(Config) []Fault) (Config, error) {
	var l loader
	vars := l.environment(env)
	if file == "" {
		file = vars[EnvConfig]
	}
	l.tree = newTree(file)
	if file != "" {
		l.tree.read()
	}
	return l.finish(vars, flags, check)
}

// finish lays the other layers over the file and checks the whole.
func (l *loader) finish(vars map[string]string, flags *pflag.FlagSet, check func(Config) []Fault) (Config, error) {
	l.v, l.origin = viper.New(), make(map[string]string)
	l.layer(vars, flags)
	c := l.build()
	if flags != nil {
		if f := flags.Lookup(flagFirstStart); f != nil {
			c.FirstStart = f.Value.String() == "true"
		}
	}
	faults := append(l.tree.faults, l.faults...)
	if !l.tree.spoilt[""] { // without the file, what it would have said is not missing
		for _, f := range check(c) {
			if !l.excused(f.Path) {
				faults = append(faults, l.placed(f))
			}
		}
	}
	if len(faults) == 0 {
		return c, nil
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return a.Line - b.Line })
	return c, &Faults{List: faults}
}

// loader puts the layers on each other and turns text into values.
type loader struct {
	tree   *tree
	v      *viper.Viper
	origin map[string]string // variable or flag that set a path; absent: file or default
	faults []Fault
}

// fault reports something wrong with the value at path, wherever it came from.
func (l *loader) fault(path, format string, args ...any) {
	if l.tree.spoilt[path] {
		return
	}
	l.tree.spoil(path)
	l.faults = append(l.faults, l.placed(Fault{Path: path, Msg: fmt.Sprintf(format, args...)}))
}

// placed adds to a fault where its value came from.
func (l *loader) placed(f Fault) Fault {
	key, _, _ := strings.Cut(f.Path, "[")
	if from, ok := l.origin[key]; ok {
		f.From = from
	} else if line := l.tree.line(f.Path); line > 0 {
		f.From, f.Line = l.tree.file, line
	}
	return f
}

// excused says whether something at path, above or below it is already
// reported: then what follows from it is noise.
func (l *loader) excused(path string) bool {
	for p := path; p != ""; p = above(p) {
		if l.tree.spoilt[p] {
			return true
		}
	}
	return l.tree.holed[path] > 0
}

// environment gives our variables that are set, and reports those that do not exist.
func (l *loader) environment(env []string) map[string]string {
	known := envKeys()
	names := []string{EnvConfig}
	for name := range known {
		names = append(names, name)
	}
	vars := make(map[string]string)
	for _, e := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		if slices.Contains(names, name) {
			if value != "" {
				vars[name] = value
			}
			continue
		}
		if injected.MatchString(name) {
			continue
		}
		l.faults = append(l.faults, Fault{From: unknownName(name), Msg: unknownVariable(name, names)})
	}
	return vars
}

func unknownName(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return EnvPrefix + "…"
}

func unknownVariable(name string, names []string) string {
	// A feature to come, or a list that only a file can hold?
	var msg string
	schema.each("", func(path string, k *key) {
		n := envName(path)
		if strings.Contains(path, "[]") || name != n && !strings.HasPrefix(name, n+"_") {
			return
		}
		switch k.kind {
		case later:
			msg = fmt.Sprintf("%s is not supported yet", path)
		case items:
			msg = fmt.Sprintf("%s is a list of entries: it can only be set in the file", path)
		}
	})
	if msg != "" {
		return msg
	}
	own := strings.TrimPrefix(name, EnvPrefix)
	bare := make([]string, len(names))
	for i, n := range names {
		bare[i] = strings.TrimPrefix(n, EnvPrefix)
	}
	if meant, ok := nearest(own, bare); ok {
		return fmt.Sprintf("unknown variable: did you mean %s?", EnvPrefix+meant)
	}
	return "unknown variable: nothing is configured by it"
}

// layer fills viper: defaults, file, environment, flags.
func (l *loader) layer(vars map[string]string, flags *pflag.FlagSet) {
	schema.each("", func(path string, k *key) {
		if k.def == "" || strings.Contains(path, "[]") {
			return
		}
		if k.kind == texts {
			l.v.SetDefault(path, []string{k.def})
			return
		}
		l.v.SetDefault(path, k.def)
	})
	l.merge(l.tree.values)

	set := make(map[string]any)
	lists := make(map[string]bool)
	schema.each("", func(path string, k *key) { lists[path] = k.kind == texts })
	for name, path := range envKeys() {
		value, ok := vars[name]
		if !ok {
			continue
		}
		l.override(path, name)
		if !lists[path] {
			set[path] = value
			continue
		}
		parts := strings.Split(value, ",")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		set[path] = parts
	}
	l.merge(set)

	for name, path := range flagKeys {
		if flags == nil {
			break
		}
		if f := flags.Lookup(name); f != nil && f.Changed {
			l.override(path, "--"+name)
			_ = l.v.BindPFlag(path, f) // its only error is a nil flag
		}
	}
}

// override notes that a layer above the file sets path. A fault that the file
// has there stays reported, but the new value is checked for itself.
func (l *loader) override(path, from string) {
	l.origin[path] = from
	l.tree.mend(path)
}

// merge lays values over what viper has. Those of lists of entries are not layered: only a file holds them.
func (l *loader) merge(values map[string]any) {
	nested := make(map[string]any)
	for path, value := range values {
		if strings.Contains(path, "[") {
			continue
		}
		m := nested
		parts := strings.Split(path, ".")
		for _, part := range parts[:len(parts)-1] {
			sub, ok := m[part].(map[string]any)
			if !ok {
				sub = make(map[string]any)
				m[part] = sub
			}
			m = sub
		}
		m[parts[len(parts)-1]] = value
	}
	_ = l.v.MergeConfigMap(nested) // it has no error to give
}

// build turns text into values. What cannot be turned is a fault, and stays zero.
func (l *loader) build() Config {
	v := l.v
	c := Config{
		Kafka: Kafka{
			Brokers:  v.GetStringSlice("kafka.brokers"),
			Group:    v.GetString("kafka.group"),
			Instance: v.GetString("kafka.instance"),
			TLS: TLS{
				CAFile:     v.GetString("kafka.tls.ca_file"),
				CertFile:   v.GetString("kafka.tls.cert_file"),
				KeyFile:    v.GetString("kafka.tls.key_file"),
				ServerName: v.GetString("kafka.tls.server_name"),
			},
			SASL: SASL{
				Mechanism:    v.GetString("kafka.sasl.mechanism"),
				Username:     v.GetString("kafka.sasl.username"),
				PasswordFile: v.GetString("kafka.sasl.password_file"),
				TokenFile:    v.GetString("kafka.sasl.token_file"),
				TokenURL:     v.GetString("kafka.sasl.token_url"),
				Scopes:       v.GetStringSlice("kafka.sasl.scopes"),
			},
		},
		Source: Source{Topics: v.GetStringSlice("source.topics")},
		Topics: Topics{
			Retry:       v.GetString("topics.retry"),
			Hold:        v.GetString("topics.hold"),
			Poison:      v.GetString("topics.poison"),
			Audit:       v.GetString("topics.audit"),
			State:       v.GetString("topics.state"),
			Replication: value(l, "topics.replication", v.GetString("topics.replication"), parseNumber),
			Partitions:  value(l, "topics.partitions", v.GetString("topics.partitions"), parseNumber),
		},
		Delivery: Delivery(v.GetString("delivery")),
		Limits: Limits{
			MaxInflightBytes: value(l, "limits.max_inflight_bytes", v.GetString("limits.max_inflight_bytes"), parseSize),
			Concurrency:      value(l, "limits.concurrency", v.GetString("limits.concurrency"), parseNumber),
		},
		Escalation: Escalation{Webhook: Webhook{
			URL:       v.GetString("escalation.webhook.url"),
			TokenFile: v.GetString("escalation.webhook.token_file"),
			Timeout:   value(l, "escalation.webhook.timeout", v.GetString("escalation.webhook.timeout"), ParseDuration),
		}},
		Metrics: Metrics{Listen: v.GetString("metrics.listen")},
	}
	c.Kafka.TLS.Enabled = c.Kafka.TLS != TLS{}
	if s := v.GetString("kafka.tls.enabled"); s != "" {
		c.Kafka.TLS.Enabled = value(l, "kafka.tls.enabled", s, parseBool)
	}
	c.Kafka.SASL.Password = l.secret("kafka.sasl.password", c.Kafka.SASL.PasswordFile)
	c.Escalation.Webhook.Token = l.secret("escalation.webhook.token", c.Escalation.Webhook.TokenFile)
	for i := range l.tree.count["targets"] {
		c.Targets = append(c.Targets, l.target(fmt.Sprintf("targets[%d]", i)))
	}
	for i := range l.tree.count["rules"] {
		c.Rules = append(c.Rules, l.rule(fmt.Sprintf("rules[%d]", i), c.Targets))
	}
	if l.tree.count["rules"] == 0 && len(c.Targets) > 0 {
		attempts, delays, _ := policy.Preset(policy.DefaultPreset)
		c.Rules = []policy.Rule{{
			Name: "default", Target: c.Targets[0].Name,
			Attempts: attempts, Delays: delays, MaxAge: policy.DefaultSLA,
		}}
	}
	return c
}

// value parses what is written at path.
func value[T any](l *loader, path, text string, parse func(string) (T, error)) T {
	v, err := parse(text)
	if err != nil {
		l.fault(path, "%s", err)
	}
	return v
}

// entry gives what a key of a list's entry says, or its default.
func (l *loader) entry(path string) string {
	if s, ok := l.tree.values[path].(string); ok {
		return s
	}
	k := &schema
	for name := range strings.SplitSeq(path, ".") {
		name, _, _ = strings.Cut(name, "[")
		k = k.find(name)
	}
	return k.def
}

// secret reads the secret at path from the environment, or from the file that path_file names.
func (l *loader) secret(path, file string) Secret {
	text := l.v.GetString(path)
	var s Secret
	var err error
	switch {
	case text != "" && file != "":
		l.fault(path, "is set, and %s_file too: use one of them", path)
	case file != "":
		path += "_file"
		s, err = readSecret(file)
	case text != "":
		s, err = parseSecret(text)
	}
	if err != nil {
		l.fault(path, "%s", err)
	}
	return s
}

// readSecret reads the secret that a file holds.
func readSecret(file string) (Secret, error) {
	data, err := slurp(file, maxSecret)
	if err != nil {
		return Secret{}, fmt.Errorf("cannot read the secret: %s", fileProblem(err))
	}
	return parseSecret(string(data))
}

func parseSecret(s string) (Secret, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return Secret{}, errors.New("the secret is empty")
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Secret{}, errors.New("the secret has spaces, control characters or letters beyond ASCII: want one token")
	}
	return NewSecret(s), nil
}

// maxSecret bounds a secret's file, in bytes.
const maxSecret = 8 << 10

func (l *loader) target(path string) Target {
	t := Target{
		Name:           l.entry(path + ".name"),
		AllowLinkLocal: value(l, path+".allow_link_local", l.entry(path+".allow_link_local"), parseBool),
	}
	if l.written(path + ".http") {
		t.HTTP = l.http(path + ".http")
	}
	if exec := path + ".exec"; l.written(exec) {
		t.Exec.Command, _ = l.tree.values[exec+".command"].([]string)
		t.Exec.Timeout = value(l, exec+".timeout", l.entry(exec+".timeout"), ParseDuration)
	}
	if sql := path + ".sql"; l.written(sql) {
		t.SQL = SQL{
			DSNFile:   l.entry(sql + ".dsn_file"),
			Statement: l.entry(sql + ".statement"),
			Processed: l.entry(sql + ".processed"),
			Timeout:   value(l, sql+".timeout", l.entry(sql+".timeout"), ParseDuration),
		}
	}
	return t
}

// written says whether the file has the group at path.
func (l *loader) written(path string) bool {
	_, ok := l.tree.lines[path]
	return ok
}

func (l *loader) http(path string) HTTP {
	h := HTTP{
		URL:     l.entry(path + ".url"),
		Unix:    l.entry(path + ".unix"),
		Timeout: value(l, path+".timeout", l.entry(path+".timeout"), ParseDuration),
		Auth: Auth{
			BearerFile:       l.entry(path + ".auth.bearer_file"),
			User:             l.entry(path + ".auth.basic.user"),
			PasswordFile:     l.entry(path + ".auth.basic.password_file"),
			HMACFile:         l.entry(path + ".auth.hmac.secret_file"),
			PreviousHMACFile: l.entry(path + ".auth.hmac.previous_secret_file"),
		},
		TLS: TLSFiles{
			CAFile:   l.entry(path + ".tls.ca_file"),
			CertFile: l.entry(path + ".tls.cert_file"),
			KeyFile:  l.entry(path + ".tls.key_file"),
		},
	}
	if socket, ok := strings.CutPrefix(h.URL, "unix:"); ok {
		if h.Unix != "" {
			l.fault(path+".url", "names a unix socket, and %s.unix too: use one of them", path)
			return h
		}
		h.URL, h.Unix = "", socket
		if rest, ok := strings.CutPrefix(socket, "//"); ok {
			h.Unix = rest
		}
	}
	if h.Unix != "" && strings.HasPrefix(h.URL, "/") {
		h.URL = "http://localhost" + h.URL
	}
	return h
}

func (l *loader) rule(path string, targets []Target) policy.Rule {
	r := policy.Rule{
		Name:     l.entry(path + ".name"),
		Category: l.entry(path + ".match.category"),
		Target:   l.entry(path + ".target"),
		Match:    l.match(path + ".match"),
		MaxAge:   value(l, path+".sla.max_age", l.entry(path+".sla.max_age"), ParseDuration),
		OnBreach: value(l, path+".sla.on_breach", l.entry(path+".sla.on_breach"), parseBreach),
	}
	if l.excused(path + ".match") {
		// Nobody knows what it was to match: not everything, and nothing of what others do.
		r.Match.Origin = []string{path}
		l.tree.spoil(path + ".target")
	}
	r.Permanent, _ = l.tree.values[path+".permanent"].([]string)
	_, hasStrategy := l.tree.values[path+".strategy"]
	attempts, hasAttempts := l.tree.values[path+".attempts"].(string)
	delays, hasDelays := l.tree.values[path+".delays"].([]string)
	switch {
	case hasStrategy && (hasAttempts || hasDelays):
		l.fault(path+".strategy", "is set, and attempts or delays too: a strategy names both, use one or the other")
	case hasAttempts:
		r.Attempts = value(l, path+".attempts", attempts, parseNumber)
		for i, d := range delays {
			r.Delays = append(r.Delays, value(l, fmt.Sprintf("%s.delays[%d]", path, i), d, ParseDuration))
		}
	case hasDelays:
		l.fault(path+".attempts", "is missing: delays need it, such as attempts: %d", len(delays)+1)
	default:
		var ok bool
		if r.Attempts, r.Delays, ok = policy.Preset(l.entry(path + ".strategy")); !ok {
			l.fault(path+".strategy", "unknown strategy: want %s", strings.Join(presets, ", "))
		}
	}
	if r.Target == "" && r.Attempts > 0 && len(targets) == 1 && r.ChoosesTarget() && !l.excused(path+".target") {
		r.Target = targets[0].Name // there is no other to mean
	}
	return r
}

// match reads what a rule matches on, beside the category.
func (l *loader) match(path string) policy.Match {
	some := func(name string) []string {
		list, written := l.tree.values[path+"."+name].([]string)
		if written && len(list) == 0 {
			l.fault(path+"."+name, "is empty: say what it shall match, or remove it")
		}
		return list
	}
	m := policy.Match{
		Origin: some("origin"), Target: some("target"),
		Error: some("error"), Status: some("status"), Code: some("code"),
	}
	for i := range l.conditions(path + ".header") {
		p := fmt.Sprintf("%s.header[%d]", path, i)
		m.Header = append(m.Header, policy.HeaderMatch{Name: l.entry(p + ".name"), Is: l.entry(p + ".is")})
	}
	for i := range l.conditions(path + ".value") {
		p := fmt.Sprintf("%s.value[%d]", path, i)
		m.Value = append(m.Value, policy.ValueMatch{Path: l.entry(p + ".path"), Is: l.entry(p + ".is")})
	}
	if p := path + ".older_than"; l.entry(p) != "" {
		if m.OlderThan = value(l, p, l.entry(p), ParseDuration); m.OlderThan == 0 {
			l.fault(p, "must be more than 0, such as 12h")
		}
	}
	if p := path + ".after_attempts"; l.entry(p) != "" {
		if m.AfterAttempts = value(l, p, l.entry(p), parseNumber); m.AfterAttempts == 0 {
			l.fault(p, "must be at least 1: every record has made 0")
		}
	}
	return m
}

// conditions counts the entries of a list in a match; one without any matches nothing that people could mean.
func (l *loader) conditions(path string) int {
	n, written := l.tree.count[path]
	if written && n == 0 {
		l.fault(path, "is empty: say what it shall match, or remove it")
	}
	return n
}

// presets are the strategies, by name.
var presets = []string{"aggressive", "balanced", "gentle", "manual"}

func parseBreach(s string) (policy.Breach, error) {
	switch s {
	case "poison":
		return policy.BreachPoison, nil
	case "alert":
		return policy.BreachAlert, nil
	}
	return 0, errors.New("want poison or alert")
}

func formatBreach(b policy.Breach) string {
	if b == policy.BreachAlert {
		return "alert"
	}
	return "poison"
}

package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/theory/jsonpath"
)

// compile makes conditions of the rules, and returns every fault of them.
func (p *Policy) compile() []error {
	switch n := len(p.rules); {
	case n == 0:
		return []error{errors.New("rules: there is none: add one without match, such as {name: default, target: <name>}")}
	case n > MaxRules:
		return []error{fmt.Errorf("rules: %d are too many: at most %d, let globs and lists take what is alike", n, MaxRules)}
	}
	c := compiler{p: p, names: make(map[string]int), paths: make(map[string]int), lookups: make(map[ValueMatch]int)}
	for i := range p.rules {
		c.rule(i)
	}
	p.plain = !slices.ContainsFunc(p.conditions, func(c conditions) bool { return !c.plain })
	if p.plain {
		for i := range p.conditions {
			p.categories = append(p.categories, p.conditions[i].category)
		}
	}
	if !slices.ContainsFunc(p.conditions, func(c conditions) bool { return c.everything() }) {
		c.faults = append(c.faults, errors.New("rules: a record that none of them matches has no rule: add a last one without match, such as {name: default, target: <name>}"))
	}
	return c.faults
}

// compiler collects what the rules have in common, and their faults.
type compiler struct {
	p       *Policy
	names   map[string]int     // rules by name
	paths   map[string]int     // Policy.paths by text
	lookups map[ValueMatch]int // Policy.lookups
	faults  []error
	at      int // the rule at hand
	spoilt  bool
}

func (c *compiler) fault(field, format string, args ...any) {
	c.spoilt = true
	c.faults = append(c.faults, fmt.Errorf("rules[%d].%s: %s", c.at, field, fmt.Sprintf(format, args...)))
}

func (c *compiler) rule(i int) {
	c.at, c.spoilt = i, false
	u := &c.p.rules[i]
	if u.Name == "" {
		c.fault("name", "missing: decisions and audit events name their rule")
	} else if j, twice := c.names[u.Name]; twice {
		c.fault("name", "%q is already the name of rules[%d]", u.Name, j)
	} else {
		c.names[u.Name] = i
	}
	c.spoilt = false
	cond := c.match(u)
	if cond.broken = c.spoilt; !cond.broken { // else nobody knows what it matches
		c.reachable(&cond)
	}
	c.p.conditions = append(c.p.conditions, cond)
	if cond.moving {
		c.p.moving = append(c.p.moving, i)
	}
	if len(cond.lookups) > 0 {
		c.p.looking = append(c.p.looking, i)
	}
	c.calls(u, cond.moving)
	c.p.permanent = append(c.p.permanent, c.permanent(u))
	if u.OnBreach > BreachAlert {
		c.fault("sla.on_breach", "unknown value %d: use poison or alert", u.OnBreach)
	}
	if u.MaxAge < 0 || u.MaxAge == 0 && u.Attempts > 0 {
		c.fault("sla.max_age", "%s: must be more than 0, such as %s", u.MaxAge, FormatDelay(DefaultSLA))
	}
}

// match compiles what a rule matches on.
func (c *compiler) match(u *Rule) conditions {
	m := &u.Match
	cond := conditions{plain: m.empty(), moving: m.moving(), targets: m.Target, olderThan: m.OlderThan, afterAttempts: m.AfterAttempts}
	var err error
	if cond.category, err = newWordGlob(u.Category); err != nil {
		c.fault("match.category", "%q %s", u.Category, badGlob)
	}
	cond.origins = c.globs("match.origin", m.Origin)
	cond.causes = c.globs("match.error", m.Error)
	cond.codes = c.globs("match.code", m.Code)
	for j, s := range m.Status {
		r, ok := parseStatus(s)
		if !ok {
			c.fault(fmt.Sprintf("match.status[%d]", j), "is no HTTP status: want three digits, such as 404, or 5xx for all from 500 to 599")
		}
		cond.statuses = append(cond.statuses, r)
	}
	for j, h := range m.Header {
		at := fmt.Sprintf("match.header[%d]", j)
		if h.Name == "" {
			c.fault(at+".name", "missing: which header?")
		}
		g, err := orAll(h.Is)
		if err != nil {
			c.fault(at+".is", badGlob)
		}
		cond.headers = append(cond.headers, headerCondition{h.Name, g})
	}
	for j, v := range m.Value {
		if l, ok := c.lookup(fmt.Sprintf("match.value[%d]", j), v); ok {
			cond.lookups = append(cond.lookups, l)
		}
	}
	for _, list := range []struct {
		field string
		n     int
	}{{"target", len(m.Target)}, {"status", len(m.Status)}, {"header", len(m.Header)}, {"value", len(m.Value)}} {
		if list.n > MaxPatterns {
			c.fault("match."+list.field, "%d entries are too many: at most %d", list.n, MaxPatterns)
		}
	}
	if m.OlderThan < 0 {
		c.fault("match.older_than", "%s: must be more than 0", m.OlderThan)
	}
	if m.AfterAttempts < 0 || m.AfterAttempts > MaxAttempts {
		c.fault("match.after_attempts", "%d: must be 1 to %d", m.AfterAttempts, MaxAttempts)
	}
	return cond
}

const badGlob = "is no valid glob: close its [, end it with no backslash, and let it have at most 256 bytes"

// orAll compiles a glob; empty matches everything.
func orAll(pattern string) (glob, error) {
	if pattern == "" {
		return glob{form: globAll}, nil
	}
	return newGlob(pattern)
}

func (c *compiler) globs(field string, patterns []string) []glob {
	if len(patterns) > MaxPatterns {
		c.fault(field, "%d entries are too many: at most %d", len(patterns), MaxPatterns)
		return nil
	}
	var globs []glob
	for j, s := range patterns {
		g, err := newGlob(s)
		switch {
		case s == "":
			c.fault(fmt.Sprintf("%s[%d]", field, j), "is empty: remove it, or name what it shall match")
		case err != nil:
			c.fault(fmt.Sprintf("%s[%d]", field, j), badGlob)
		}
		globs = append(globs, g)
	}
	return globs
}

// lookup gives the number of a condition on the value, the same for the same one.
func (c *compiler) lookup(at string, v ValueMatch) (int, bool) {
	if l, ok := c.lookups[v]; ok {
		return l, true
	}
	is, err := orAll(v.Is)
	if err != nil {
		c.fault(at+".is", badGlob)
		return 0, false
	}
	n, known := c.paths[v.Path]
	if !known {
		var query *jsonpath.Path
		if query, err = newPath(v.Path); err != nil {
			c.fault(at+".path", "%s", err)
			return 0, false
		}
		n = len(c.p.paths)
		c.paths[v.Path] = n
		c.p.paths = append(c.p.paths, query)
		if n == MaxPaths {
			c.fault(at+".path", "the rules have more than %d different paths", MaxPaths)
		}
	}
	l := len(c.p.lookups)
	c.lookups[v] = l
	c.p.lookups = append(c.p.lookups, lookup{path: n, is: is, any: v.Is == ""})
	if l == MaxValueMatches {
		c.fault(at, "the rules have more than %d different conditions on values", MaxValueMatches)
	}
	return l, true
}

// calls reports what is wrong with a rule's target, attempts and delays.
func (c *compiler) calls(u *Rule, moving bool) {
	switch {
	case u.Attempts < 0 || u.Attempts > MaxAttempts:
		c.fault("attempts", "%d: must be 0 (straight to people) to %d", u.Attempts, MaxAttempts)
	case u.Attempts == 0 && len(u.Delays) > 0:
		c.fault("delays", "attempts is 0, so nothing is ever delayed: remove delays or raise attempts")
	case u.Attempts > 1 && len(u.Delays) == 0:
		c.fault("delays", "missing: %d attempts need at least one delay between them", u.Attempts)
	}
	switch {
	case moving && u.Target != "":
		c.fault("target", "a rule that matches on target, error, status, code, older_than or after_attempts chooses no target, which is the same for all of a record's life: remove it, or match on the target")
	case !moving && u.Attempts > 0 && u.Target == "":
		c.fault("target", "missing: name a target, or use strategy manual")
	}
	for j, d := range u.Delays {
		if d < MinDelay || d > MaxDelay || d%MinDelay != 0 {
			c.fault(fmt.Sprintf("delays[%d]", j), "%s: must be a multiple of %s, at most %s", d, FormatDelay(MinDelay), FormatDelay(MaxDelay))
		}
	}
}

func (c *compiler) permanent(u *Rule) permanence {
	if u.Permanent == nil {
		return permanence{usual: true}
	}
	if u.Attempts == 0 {
		c.fault("permanent", "attempts is 0, so every outcome is: remove it or raise attempts")
	}
	words := c.globs("permanent", u.Permanent)
	return permanence{
		usual: slices.Contains(u.Permanent, DefaultPermanent),
		words: slices.DeleteFunc(words, func(g glob) bool { return g.form == globPlain && g.head == DefaultPermanent }),
	}
}

// everything says whether every record matches.
func (c *conditions) everything() bool { return c.plain && c.category.form == globAll && !c.broken }

// reachable reports a rule that no record reaches.
func (c *compiler) reachable(v *conditions) {
	field := "match"
	if v.plain {
		field = "match.category"
	}
	for j := range c.p.conditions {
		if u := &c.p.conditions[j]; u.shadows(v, c.p.lookups) {
			c.fault(field, "no record reaches this rule, rules[%d] takes them all: put this one before it or remove it", j)
			return
		}
	}
	for j, t := range v.targets {
		if !slices.ContainsFunc(c.p.rules, func(u Rule) bool { return u.Target == t && u.Attempts > 0 && !u.Match.moving() }) {
			c.fault(fmt.Sprintf("match.target[%d]", j), "no rule sends records to %q", t)
		}
	}
}

// shadows says whether no record can reach d when c stands before it: whatever
// matches d matches c. It may say no although it is so; it finds each condition
// of c in d, as it is or narrower.
func (c *conditions) shadows(d *conditions, lookups []lookup) bool {
	if c.broken || !c.category.covers(&d.category) {
		return false
	}
	if c.plain {
		return true
	}
	return (!c.moving || d.moving) &&
		coverAny(c.origins, d.origins) && coverAny(c.causes, d.causes) && coverAny(c.codes, d.codes) &&
		coverTargets(c.targets, d.targets) && coverStatuses(c.statuses, d.statuses) &&
		(c.olderThan == 0 || d.olderThan >= c.olderThan) && d.afterAttempts >= c.afterAttempts &&
		coverHeaders(c.headers, d.headers) && coverLookups(c.lookups, d.lookups, lookups)
}

func coverTargets(u, v []string) bool {
	return len(u) == 0 || len(v) > 0 && !slices.ContainsFunc(v, func(t string) bool { return !slices.Contains(u, t) })
}

func coverStatuses(u, v []statusRange) bool {
	return len(u) == 0 || len(v) > 0 && !slices.ContainsFunc(v, func(b statusRange) bool {
		return !slices.ContainsFunc(u, func(a statusRange) bool { return a.low <= b.low && b.high <= a.high })
	})
}

// coverHeaders: each header that u asks for is asked for by v, too.
func coverHeaders(u, v []headerCondition) bool {
	return !slices.ContainsFunc(u, func(a headerCondition) bool {
		return !slices.ContainsFunc(v, func(b headerCondition) bool { return a.name == b.name && a.is.covers(&b.is) })
	})
}

// coverLookups: each field that u asks for is asked for by v, too.
func coverLookups(u, v []int, all []lookup) bool {
	return !slices.ContainsFunc(u, func(i int) bool {
		a := &all[i]
		return !slices.ContainsFunc(v, func(j int) bool {
			b := &all[j]
			return a.path == b.path && (a.any || !b.any && a.is.covers(&b.is))
		})
	})
}

package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Match is what a record must be for a rule, beside its category. All that is
// said must hold; of a list one entry is enough. The zero Match matches
// everything. Globs go over slashes here.
type Match struct {
	// What never changes about a record.
	Origin []string      // globs over the topic of its first arrival
	Header []HeaderMatch // of others, each must be met
	Value  []ValueMatch  // each must be met

	// What changes, or follows from what never does. A rule that matches on any of
	// these chooses no target, see the package comment.
	Target        []string      // names of targets: where the record is called
	Error         []string      // globs over the cause of the last failure, such as "timeout" or "http_5??"
	Status        []string      // of the last failure: "404", or "5xx" for a hundred
	Code          []string      // globs over the code of the last failure
	OlderThan     time.Duration // more than this since entry or redrive, as for the SLA
	AfterAttempts int           // at least as many counted attempts were made
}

// HeaderMatch is a condition on the headers of others: one of that name, with a value that matches.
type HeaderMatch struct {
	Name string
	Is   string // glob; empty: the header is there, whatever it says
}

// ValueMatch is a condition on a field of the value.
type ValueMatch struct {
	Path string // JSONPath (RFC 9535) of child segments with one selector each; see newPath
	Is   string // glob over one of the selected strings, numbers (as written), true, false, null; empty: something is selected
}

// moving says whether the rule matches on something that changes in a record's life.
func (m *Match) moving() bool {
	return len(m.Target)+len(m.Error)+len(m.Status)+len(m.Code) > 0 || m.OlderThan != 0 || m.AfterAttempts != 0
}

// empty says whether the match is the zero one.
func (m *Match) empty() bool {
	return len(m.Origin)+len(m.Header)+len(m.Value) == 0 && !m.moving()
}

// clone is a copy that shares nothing.
func (m Match) clone() Match {
	m.Origin, m.Header, m.Value = slices.Clone(m.Origin), slices.Clone(m.Header), slices.Clone(m.Value)
	m.Target, m.Error, m.Status, m.Code = slices.Clone(m.Target), slices.Clone(m.Error), slices.Clone(m.Status), slices.Clone(m.Code)
	return m
}

// failure is the last failure of a record, and how many attempts were counted by then.
type failure struct {
	cause, code string
	status      int
	attempts    int
}

// lastFailure is what the record says of itself.
func lastFailure(r *deadletter.Record) failure {
	return failure{cause: r.ErrorClass, code: r.ErrorCode, status: r.ErrorStatus, attempts: max(0, r.Attempt)}
}

// failureAfter is what the record will say of itself once the outcome is its last.
func failureAfter(r *deadletter.Record, o deadletter.Outcome, counted bool) failure {
	f := lastFailure(r)
	if replaces(o) {
		f.cause, f.code, f.status = o.Cause, o.Code, o.Status
	}
	if counted {
		f.attempts++
	}
	return f
}

// replaces says whether an outcome takes the place of a record's last failure.
func replaces(o deadletter.Outcome) bool { return o.Class != deadletter.Resolved && o.Cause != "" }

// conditions is a rule's match, compiled.
type conditions struct {
	category glob
	plain    bool // there is nothing but the category
	moving   bool
	broken   bool // it has a fault
	origins  []glob
	headers  []headerCondition
	lookups  []int // in Policy.lookups

	targets       []string
	causes, codes []glob
	statuses      []statusRange
	olderThan     time.Duration
	afterAttempts int
}

type headerCondition struct {
	name string
	is   glob
}

// statusRange is the statuses from low to high, both included.
type statusRange struct{ low, high int }

// parseStatus reads "404" or "4xx".
func parseStatus(s string) (statusRange, bool) {
	if hundred, ok := strings.CutSuffix(s, "xx"); ok && len(hundred) == 1 && hundred[0] >= '1' && hundred[0] <= '9' {
		low := 100 * int(hundred[0]-'0')
		return statusRange{low, low + 99}, true
	}
	n, err := strconv.Atoi(s)
	return statusRange{n, n}, err == nil && n >= 100 && n <= 999 && strconv.Itoa(n) == s
}

// view is one record, looked at by the rules.
type view struct {
	r      *deadletter.Record
	last   failure
	age    time.Duration // unknownAge where it is not known
	target string        // where the record is called; empty: nowhere, it goes straight to people
	found  *findings     // in the value; nil: not looked yet
}

// find is the index of the rule that decides about a record, and the record's
// target. now is the zero time where the age does not count.
func (p *Policy) find(r *deadletter.Record, last failure, now time.Time) (i int, target string) {
	if p.plain {
		for i := range p.categories {
			if p.categories[i].match(r.Category) {
				return i, p.rules[i].Target
			}
		}
		panic("no rule matches") // one without match is there, see compile
	}
	v := view{r: r, last: last, age: age(r, now)}
	i = p.search(&v)
	return i, v.target
}

// route finds the first rule that matches among those on what never changes. It
// gives the view its target, if the record is ever called.
func (p *Policy) route(v *view) int {
	i := 0
	for p.conditions[i].moving || p.mismatch(i, v) != matched {
		i++ // never beyond the rule without match, see compile
	}
	if p.rules[i].Attempts > 0 {
		v.target = p.rules[i].Target
	}
	return i
}

// search finds the rule for a view: the first of all that matches. Those on
// what changes have no say in whether a record is called at all.
func (p *Policy) search(v *view) int {
	route := p.route(v)
	if v.target == "" {
		return route
	}
	for _, i := range p.moving {
		if i > route {
			break
		}
		if p.mismatch(i, v) == matched {
			return i
		}
	}
	return route
}

// condition is a part of a rule's match.
type condition uint8

const (
	matched condition = iota // none: all hold
	onCategory
	onOrigin
	onHeader
	onTarget
	onAttempts
	onError
	onStatus
	onCode
	onAge
	onValue
)

// mismatch is the first condition of rule i that does not hold. What is cheap is asked first.
func (p *Policy) mismatch(i int, v *view) condition {
	c := &p.conditions[i]
	switch {
	case c.category.form != globAll && !c.category.match(v.r.Category):
		return onCategory
	case c.plain:
		return matched
	}
	if c.moving {
		switch {
		case v.target == "" || len(c.targets) > 0 && !slices.Contains(c.targets, v.target):
			return onTarget
		case v.last.attempts < c.afterAttempts:
			return onAttempts
		case len(c.causes) > 0 && (v.last.cause == "" || !matchAny(c.causes, v.last.cause)):
			return onError
		case len(c.statuses) > 0 && !slices.ContainsFunc(c.statuses, func(s statusRange) bool { return s.low <= v.last.status && v.last.status <= s.high }):
			return onStatus
		case len(c.codes) > 0 && (v.last.code == "" || !matchAny(c.codes, v.last.code)):
			return onCode
		case c.olderThan > 0 && v.age <= c.olderThan:
			return onAge
		}
	}
	switch {
	case !c.origin(v.r):
		return onOrigin
	case !c.header(v.r):
		return onHeader
	case !p.value(c, v):
		return onValue
	}
	return matched
}

func (c *conditions) origin(r *deadletter.Record) bool {
	if len(c.origins) == 0 {
		return true
	}
	topic, _, _ := strings.Cut(r.Origin, "/")
	return topic != "" && matchAny(c.origins, topic)
}

func (c *conditions) header(r *deadletter.Record) bool {
	for i := range c.headers {
		if !c.headers[i].met(r.Foreign) {
			return false
		}
	}
	return true
}

func (h *headerCondition) met(headers []deadletter.Header) bool {
	for i := range headers {
		// Without a copy: a header's value is read only, and for the time of the match.
		if headers[i].Key == h.name && h.is.match(unsafe.String(unsafe.SliceData(headers[i].Value), len(headers[i].Value))) {
			return true
		}
	}
	return false
}

// value says whether the value meets what c asks of it.
func (p *Policy) value(c *conditions, v *view) bool {
	if len(c.lookups) == 0 {
		return true
	}
	if v.found == nil {
		var ok bool
		if v.found, ok = v.r.Findings.(*findings); !ok || v.found.of != p {
			v.found = p.look(v.r)
		}
	}
	for _, l := range c.lookups {
		if !v.found.has(l) {
			return false
		}
	}
	return true
}

// unknownAge is the age of a record of which nobody knows how old it is: it is not old.
const unknownAge = time.Duration(-1)

// age is how long ago r entered the queue (arrived, where that is not known) or
// was redriven, whichever is later. now is zero where it does not count.
func age(r *deadletter.Record, now time.Time) time.Duration {
	since := r.Enqueued
	if since == 0 {
		since = r.Timestamp
	}
	if since = max(since, r.Redriven); since <= 0 || now.IsZero() {
		return unknownAge
	}
	return now.Sub(time.UnixMilli(since))
}

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Bounds of what rules may ask of a value. With them a look at a value takes
// time in proportion to its size, whatever the paths and the value are.
const (
	MaxPaths        = 32        // different paths in a policy
	MaxValueMatches = 1000      // different conditions on values in a policy
	MaxPathBytes    = 256       // of one path
	MaxValueBytes   = 256 << 10 // of a value that is looked into: no rule finds anything in a larger one
)

// lookup is a condition on a value.
type lookup struct {
	path int // index in Policy.paths
	is   glob
	any  bool // it is enough that the path selects something
}

// where finds the place in the library's messages, whose other words can be the path's own.
var where = regexp.MustCompile(` at position [0-9]+$`)

// quoted matches the quoted texts of a path as the library writes it.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// call matches the name of a function before its arguments.
var call = regexp.MustCompile(`[a-z0-9_]\(`)

// newPath compiles a JSONPath (RFC 9535). Refused is what could make the work
// grow faster than the value: descendants, several selectors in one segment, and
// in a filter everything but comparisons and tests of single fields.
func newPath(text string) (*jsonpath.Path, error) {
	if len(text) > MaxPathBytes {
		return nil, errors.New("longer than 256 bytes")
	}
	query, err := jsonpath.Parse(text)
	if err != nil {
		return nil, errors.New("is no JSONPath (RFC 9535), such as $.context.currency" + where.FindString(err.Error()))
	}
	for _, segment := range query.Query().Segments() {
		switch selectors := segment.Selectors(); {
		case segment.IsDescendant():
			return nil, errors.New("a descendant segment (..) is not allowed: name the way to the field")
		case len(selectors) > 1:
			return nil, errors.New("several selectors in one pair of brackets are not allowed: use one rule each")
		default:
			filter, ok := selectors[0].(*spec.FilterSelector)
			if !ok {
				continue
			}
			inside := quoted.ReplaceAllString(filter.String(), "")[1:] // without its question mark
			if strings.ContainsAny(inside, "*:,$?") || strings.Contains(inside, "..") || call.MatchString(inside) {
				return nil, errors.New("a filter may compare and test single fields of @ only, such as $[?@.amount > 100 && @.currency == 'EUR']")
			}
		}
	}
	return query, nil
}

// findings are the conditions of a policy that a value meets, a bit each.
type findings struct {
	of   *Policy
	bits []uint64
}

func (f *findings) has(condition int) bool { return f.bits[condition/64]&(1<<(condition%64)) != 0 }

// Prepare looks into the value of r, if one of the rules could ask for it, and
// notes in r.Findings what it found. It is for callers that ask about a record
// more than once, and is to be called before the record is shared: without it
// every question that needs the value parses it again.
func (p *Policy) Prepare(r *deadletter.Record) {
	if f, ok := r.Findings.(*findings); ok && f.of == p {
		return
	}
	for _, i := range p.looking {
		if c := &p.conditions[i]; c.category.match(r.Category) && c.origin(r) && c.header(r) {
			r.Findings = p.look(r)
			return
		}
	}
}

// look evaluates every condition on the value of r. A value that is no JSON, or too large, meets none.
func (p *Policy) look(r *deadletter.Record) *findings {
	f := &findings{of: p, bits: make([]uint64, (len(p.lookups)+63)/64)}
	if len(r.Value) > MaxValueBytes {
		return f
	}
	dec := json.NewDecoder(bytes.NewReader(r.Value))
	dec.UseNumber() // so that a number is matched as it is written
	var value any
	if dec.Decode(&value) != nil || dec.Decode(new(any)) != io.EOF {
		return f
	}
	selected := make([][]any, len(p.paths))
	for i := range p.paths {
		selected[i] = p.paths[i].Select(value)
	}
	for i := range p.lookups {
		if p.lookups[i].met(selected[p.lookups[i].path]) {
			f.bits[i/64] |= 1 << (i % 64)
		}
	}
	return f
}

func (l *lookup) met(nodes []any) bool {
	if l.any {
		return len(nodes) > 0
	}
	for _, n := range nodes {
		if text, ok := scalar(n); ok && l.is.match(text) {
			return true
		}
	}
	return false
}

// scalar is the text of a JSON value that is no object and no array.
func scalar(v any) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		if v {
			return "true", true
		}
		return "false", true
	case nil:
		return "null", true
	}
	return "", false
}

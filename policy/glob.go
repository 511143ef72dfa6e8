package policy

import (
	"path"
	"strings"
)

// maxGlob bounds a pattern, in bytes.
const maxGlob = 256

// glob is a compiled pattern: "*" is any text, "?" any character, "[a-z]" one
// of a class, "\" takes the meaning of what follows. The whole text must match.
// Most patterns are a text with at most one star, and most texts do not match:
// both are told by comparing the ends.
type glob struct {
	head, tail string // how every text that matches begins and ends
	form       globForm
	word       bool   // the star stops at a slash, as in path.Match
	pattern    string // globOther: for path.Match
}

type globForm uint8

const (
	globAll   globForm = iota // every text
	globPlain                 // head is the text
	globEnds                  // head, a star, tail
	globOther
)

// newGlob compiles a pattern whose star goes over slashes. The error is path.ErrBadPattern.
func newGlob(pattern string) (glob, error) {
	g, err := compile(pattern)
	if g.form == globOther {
		// path.Match stops at slashes, so there are none for it.
		g.pattern = strings.ReplaceAll(g.pattern, "/", noSlash)
	}
	return g, err
}

// newWordGlob compiles a pattern as path.Match has it, but for the sole star and the empty pattern, which match everything.
func newWordGlob(pattern string) (glob, error) {
	if pattern == "" || pattern == "*" {
		return glob{form: globAll}, nil
	}
	g, err := compile(pattern)
	g.word = true
	return g, err
}

// noSlash stands for a slash where path.Match would stop at it: a control character that is in no text that people match.
const noSlash = "\x1f"

func compile(pattern string) (glob, error) {
	if _, err := path.Match(pattern, ""); err != nil || len(pattern) > maxGlob {
		return glob{}, path.ErrBadPattern
	}
	const meta = `*?[\`
	head, rest := pattern, ""
	if i := strings.IndexAny(pattern, meta); i >= 0 {
		head, rest = pattern[:i], pattern[i:]
	}
	switch {
	case rest == "":
		return glob{form: globPlain, head: head}, nil
	case rest[0] == '*' && !strings.ContainsAny(rest[1:], meta):
		return glob{form: globEnds, head: head, tail: rest[1:]}, nil
	}
	g := glob{form: globOther, head: head, pattern: pattern}
	if !strings.ContainsAny(rest, `[\`) { // there a star or a question mark can mean itself
		g.tail = rest[strings.LastIndexAny(rest, `*?`)+1:]
	}
	return g, nil
}

func (g *glob) match(s string) bool {
	if g.form == globAll {
		return true
	}
	h, t := len(g.head), len(g.tail)
	if len(s) < h+t || h > 0 && s[0] != g.head[0] || s[:h] != g.head || s[len(s)-t:] != g.tail {
		return false
	}
	switch g.form {
	case globPlain:
		return len(s) == h
	case globEnds:
		return !g.word || strings.IndexByte(s[h:len(s)-t], '/') < 0
	}
	if !g.word {
		s = strings.ReplaceAll(s, "/", noSlash)
	}
	ok, _ := path.Match(g.pattern, s) // its only error is a bad pattern, which compile refuses
	return ok
}

// covers says whether g matches every text that h, of the same dialect, matches. It may say no
// although it does: it knows the same pattern, everything, a plain text, and
// patterns without classes that begin and end as g does.
func (g *glob) covers(h *glob) bool {
	switch {
	case g.form == globAll:
		return true
	case h.form == globAll:
		return false
	case h.form == globPlain:
		return g.match(h.head)
	case g.form == globOther:
		return h.form == globOther && g.pattern == h.pattern
	case g.form == globPlain || !strings.HasPrefix(h.head, g.head) || !strings.HasSuffix(h.tail, g.tail):
		return false
	}
	// Where h may match a slash, a star that stops there may not.
	return !g.word || !strings.ContainsAny(h.head[len(g.head):]+h.pattern+h.tail[:len(h.tail)-len(g.tail)], `/[\`)
}

// matchAny says whether one of the patterns matches; none at all match everything.
func matchAny(globs []glob, s string) bool {
	for i := range globs {
		if globs[i].match(s) {
			return true
		}
	}
	return len(globs) == 0
}

// coverAny says whether every text that one of h matches is matched by one of g.
func coverAny(g, h []glob) bool {
	if len(g) == 0 {
		return true
	}
	for i := range h {
		covered := false
		for j := range g {
			covered = covered || g[j].covers(&h[i])
		}
		if !covered {
			return false
		}
	}
	return len(h) > 0
}

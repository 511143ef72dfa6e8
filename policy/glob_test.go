package policy

import (
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAStarGoesOverSlashesButNotInACategory(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		glob, word    bool
	}{
		{"*", "a/b", true, true}, // the sole star is everything
		{"*", "", true, true},
		{"a*", "a/b", true, false},
		{"*b", "a/b", true, false},
		{"a*c", "a/b/c", true, false},
		{"a/*", "a/b", true, true},
		{"a?c", "a/c", true, false},
		{"a?*c", "ab/c", true, false},
		{"*a*", "b/a/b", true, false},
		{"*a*", "bab", true, true},
		{"[a-c]/?*", "b/xy", true, true},
		{`\*`, "*", true, true},
		{`\*`, "a", false, false},
		{"a", "ab", false, false},
		{"ab*ba", "aba", false, false}, // the ends do not overlap
		{"Ü?", "Üß", true, true},
		{"*", "\xff\xfe", true, true},
		{"?", "\xff", true, true},
	} {
		g, err := newGlob(c.pattern)
		w, errW := newWordGlob(c.pattern)
		if err != nil || errW != nil {
			t.Fatal(c.pattern, err, errW)
		}
		if g.match(c.text) != c.glob || w.match(c.text) != c.word {
			t.Errorf("%q, %q: %v, as a category %v; want %v, %v", c.pattern, c.text, g.match(c.text), w.match(c.text), c.glob, c.word)
		}
	}
	if w, err := newWordGlob(""); err != nil || !w.match("a/b") {
		t.Error("no category does not match all")
	}
	if g, err := newGlob(""); err != nil || g.match("a") || !g.match("") {
		t.Error("an empty pattern matches more than the empty text")
	}
}

func drawPattern(t *rapid.T, label string) string {
	return rapid.StringMatching(`([ab/]|\*|\?|\[a-b\]|\[\^a\]|\\a|ü){0,5}`).Draw(t, label)
}

func drawText(t *rapid.T) string {
	return rapid.StringMatching(`[ab/üc]{0,6}`).Draw(t, "text")
}

func TestAGlobIsPathMatchWithItsShortCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern, text := drawPattern(t, "pattern"), drawText(t)
		want, err := path.Match(pattern, text)
		if err != nil {
			t.Skip()
		}
		w, err := newWordGlob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if all := pattern == "" || pattern == "*"; w.match(text) != (want || all) {
			t.Fatalf("category %q, %q: %v, path.Match says %v", pattern, text, w.match(text), want)
		}
		want, _ = path.Match(strings.ReplaceAll(pattern, "/", "|"), strings.ReplaceAll(text, "/", "|"))
		if g, err := newGlob(pattern); err != nil || g.match(text) != want {
			t.Fatalf("%q, %q: %v, want %v", pattern, text, g.match(text), want)
		}
	})
}

func TestWhatIsCoveredIsMatched(t *testing.T) {
	covered := 0
	rapid.Check(t, func(t *rapid.T) {
		make := rapid.SampledFrom([]func(string) (glob, error){newGlob, newWordGlob}).Draw(t, "dialect")
		g, err := make(drawPattern(t, "wide"))
		if err != nil {
			t.Skip()
		}
		h, err := make(drawPattern(t, "narrow"))
		if err != nil || !g.covers(&h) {
			t.Skip()
		}
		covered++
		for range 20 {
			if text := drawText(t); h.match(text) && !g.match(text) {
				t.Fatalf("%+v is to cover %+v, but does not match %q", g, h, text)
			}
		}
	})
	if covered == 0 {
		t.Error("nothing is covered: the test has lost its grip")
	}
}

func TestPatternsThatAreCovered(t *testing.T) {
	for _, c := range []struct {
		wide, narrow string
		want         bool
	}{
		{"*", "a*b?", true}, {"a*", "a*", true}, {"a*", "ab", true}, {"a*", "ab*", true}, {"*b", "a*ab", true},
		{"a*", "ab?*", true}, {"a*b", "a?b", true}, {"a?", "ab", true},
		{"ab*", "a*", false}, {"a*", "*", false}, {"a*", "[a]b", false}, {"a*b", "ab*a", false}, {"a*", "b*", false}, {"aa*aa", "aaa", false},
	} {
		for _, make := range []func(string) (glob, error){newGlob, newWordGlob} {
			g, _ := make(c.wide)
			h, _ := make(c.narrow)
			if g.covers(&h) != c.want {
				t.Errorf("%q covers %q: %v, want %v", c.wide, c.narrow, !c.want, c.want)
			}
		}
	}
	g, _ := newWordGlob("a*")
	h, _ := newWordGlob("a*/b*")
	if g.covers(&h) {
		t.Error("a category's star covers a slash")
	}
}

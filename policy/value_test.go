package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestAPathThatCouldTakeMoreThanLinearTimeIsRefused(t *testing.T) {
	for path, want := range map[string]string{
		"":                              "is no JSONPath",
		"context":                       "is no JSONPath",
		"$.a[":                          "is no JSONPath",
		"$..a":                          "descendant",
		"$.a..*":                        "descendant",
		"$['a','b']":                    "several selectors",
		"$[*,*][*,*][*,*]":              "several selectors",
		"$[0,-1]":                       "several selectors",
		"$[?@.a == $.b]":                "a filter may",
		"$[?@..a]":                      "a filter may",
		"$[?@.*]":                       "a filter may",
		"$[?@[0:3]]":                    "a filter may",
		"$[?@['a','b']]":                "a filter may",
		"$[?@[?@.a]]":                   "a filter may",
		"$.a[?match(@.b, @.c)]":         "a filter may",
		"$.a[?search(@.b, '(x+x+)+y')]": "a filter may",
		"$.a[?count(@.*) > 1]":          "a filter may",
		"$.a[?length(@.b) > 1]":         "a filter may",
		"$." + strings.Repeat("a", 255): "longer than 256 bytes",
	} {
		if _, err := newPath(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	for _, path := range []string{
		"$", "$.context.currency", "$['a b']", `$["x*,:?$..y"]`, "$.a[0]", "$.a[-1].b", "$.a[*].b", "$.a[1:3]", "$.*.*",
		"$[?@.a]", "$[?!@.a]", "$[?@.a > 1.5 && (@.b == 'x' || @.c != null)]", `$[?@["f(x)"] == "?*,:$.."]`, "$.a[?@.b == true].c",
		"$[?@.amount > 100 && @.currency == 'EUR']",
	} {
		if _, err := newPath(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The worst that the bounds allow: every path goes over the whole of the largest value.
func TestTheLargestLookTakesBoundedTime(t *testing.T) {
	var rules []Rule
	for i := range MaxPaths {
		path := []string{
			fmt.Sprintf("$[?@ > %d]", i), "$" + strings.Repeat("[*]", 40+i),
			fmt.Sprintf("$[?@.a == @.b && @.c != %d]", i), fmt.Sprintf("$[%d::-1]", -1-i), fmt.Sprintf("$.*[%d:]", i),
		}[i%5]
		u := refine(Match{Value: []ValueMatch{{path, "*a*a*a*a*b"}}})
		u.Name = fmt.Sprint(i)
		rules = append(rules, u)
	}
	p := mustNew(t, append(rules, balanced())...)
	const deep = deadletter.MaxDepth - 2
	for _, text := range []string{
		"[" + strings.Repeat("0,", MaxValueBytes/2-2) + "0",
		"[" + strings.Repeat("{},", MaxValueBytes/3-1) + "{}",
		strings.Repeat("[", deep) + strings.Repeat("[0],", MaxValueBytes/4-deep) + "0" + strings.Repeat("]", deep-1),
		`["` + strings.Repeat("a", MaxValueBytes-4) + `"`,
	} {
		text += "]"
		if len(text) > MaxValueBytes || !json.Valid([]byte(text)) {
			t.Fatalf("%d bytes %.20s…", len(text), text)
		}
		start := time.Now()
		if r := (&deadletter.Record{Value: []byte(text)}); p.Rule(r).Name != "default" {
			t.Error("a rule matches")
		}
		took := time.Since(start)
		t.Logf("%d paths over %.20s… of %d bytes: %s", len(p.paths), text, len(text), took)
		if took > 30*time.Second { // about half a second
			t.Errorf("a look took %s", took)
		}
	}
}

func TestAValueThatIsTooLargeIsNotLookedInto(t *testing.T) {
	p := mustNew(t, refine(Match{Value: []ValueMatch{{"$.a", ""}}}), balanced())
	value := func(n int) []byte { return fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat("x", n-8)) }
	for n, want := range map[int]string{MaxValueBytes: "refined", MaxValueBytes + 1: "default"} {
		r := &deadletter.Record{Value: value(n)}
		if len(r.Value) != n || p.Rule(r).Name != want {
			t.Errorf("%d bytes: rule %s, want %s", len(r.Value), p.Rule(r).Name, want)
		}
	}
}

// FuzzPath: a path that is taken evaluates without a panic, whatever the value.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"$.context.currency", "$[?@.a > 1 && @.b == 'x']", "$.a[*].b[1:2]", "$[?@ == null]", "$[?!(@.a)]"} {
		f.Add(s, []byte(`{"a":[{"b":[1,2.5,"x",null]}],"context":{"currency":"EUR"}}`))
	}
	f.Fuzz(func(t *testing.T, path string, value []byte) {
		p, err := New(Options{Rules: []Rule{refine(Match{Value: []ValueMatch{{path, ""}, {path, "*"}}}), balanced()}})
		if err != nil {
			return
		}
		p.Rule(&deadletter.Record{Value: value})
	})
}

func TestAPathOfPlainNamesSelectsTheField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		path := `$[` + string(quoted) + `]`
		if len(path) > MaxPathBytes || strings.ContainsRune(name, '\uFFFD') {
			t.Skip()
		}
		p, err := New(Options{Rules: []Rule{refine(Match{Value: []ValueMatch{{path, "v"}}}), balanced()}})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Rule(&deadletter.Record{Value: fmt.Appendf(nil, `{%s:"v"}`, quoted)}).Name; got != "refined" {
			t.Fatalf("%s selects nothing", path)
		}
	})
}

package main

import (
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// touched are the packages that a patch changes.
func touched(t *testing.T, m mutant) (packages []string) {
	t.Helper()
	for _, f := range regexp.MustCompile(`(?m)^\+\+\+ b/(\S+)`).FindAllStringSubmatch(string(m.patch), -1) {
		file := f[1]
		if strings.HasPrefix(file, "test/") || strings.HasSuffix(file, "_test.go") {
			t.Errorf("%s changes %s: a mutant breaks the product, not its tests", m.name, file)
		}
		packages = append(packages, "./"+path.Dir(file))
	}
	if len(packages) == 0 {
		t.Errorf("%s changes no file", m.name)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

func TestEveryMutantStillAppliesCompilesAndSaysInASentenceWhatItBreaks(t *testing.T) {
	ms, err := all()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := copyTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.remove)
	for _, m := range ms {
		if len(m.breaks) < 20 || !strings.HasSuffix(m.breaks, ".") {
			t.Errorf("%s: %q is no sentence", m.name, m.breaks)
		}
		if err := tree.apply(t.Context(), m); err != nil {
			t.Error(err)
			continue
		}
		if !testing.Short() {
			if err := tree.tool(t.Context(), append([]string{"build", "-trimpath"}, touched(t, m)...)...); err != nil {
				t.Errorf("%s does not compile: %v", m.name, err)
			}
		}
		if err := tree.revert(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

func TestACopyOfTheTreeHasWhatIsInIt(t *testing.T) {
	tree, err := copyTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.remove)
	for _, name := range []string{"go.mod", "consumer/lane.go", "test/mutants/mutants_test.go", "deadletter/testdata/fuzz/FuzzValue/cut"} {
		if found, err := filepath.Glob(filepath.Join(tree.dir, name)); err != nil || len(found) != 1 {
			t.Errorf("%s is not in the copy: %v", name, err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(tree.dir, ".git")); err != nil || len(found) != 0 {
		t.Errorf("the copy is a repository of its own: %v %v", found, err)
	}
}

func TestAPatchThatNoLongerAppliesIsAFailureThatNamesIt(t *testing.T) {
	tree, err := copyTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.remove)
	m := mutant{name: "of-long-ago", patch: []byte("# Breaks what is not there.\n--- a/go.mod\n+++ b/go.mod\n@@ -1,1 +1,1 @@\n-module example.com/other\n+module example.com/another\n")}
	r := tree.try(t.Context(), m, "")
	if r.err == nil || !strings.Contains(r.String(), "test/mutants/of-long-ago.patch no longer applies") {
		t.Errorf("the result is %q", r)
	}
}

func TestTheFirstFailureIsFoundInWhatATestBinaryPrints(t *testing.T) {
	for name, c := range map[string]struct{ printed, want string }{
		"all passed":       {"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n", ""},
		"nothing":          {"", ""},
		"a test":           {"=== RUN   TestA\n    a_test.go:1: no\n--- FAIL: TestA (0.00s)\n--- FAIL: TestB (0.00s)\nFAIL\n", "TestA"},
		"a test, streamed": {"\x16=== RUN   TestA/x\n\x16--- FAIL: TestA/x (0.00s)\n\x16--- FAIL: TestA (0.00s)\n", "TestA/x"},
		"a part of a test": {"    --- FAIL: TestA/x (0.00s)\n", "TestA/x"},
		"a panic":          {"=== RUN   TestA\npanic: test timed out after 1s\n\tgoroutine 1\n", "TestA"},
		"a panic before":   {"panic: no\n", "panic: no"},
		"the runtime":      {"fatal error: all goroutines are asleep - deadlock!\n", "fatal error: all goroutines are asleep - deadlock!"},
		"without an end":   {"--- FAIL: TestA", "TestA"},
	} {
		if got := firstFailure(strings.NewReader(c.printed)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAMutantThatDoesNotExistIsAnErrorOfUsage(t *testing.T) {
	var said strings.Builder
	if code := mutantsMain(t.Context(), []string{"no-such-mutant"}, io.Discard, &said); code != 2 || !strings.Contains(said.String(), `"no-such-mutant"`) {
		t.Errorf("exit code %d, %q", code, said.String())
	}
}

func TestATestIsFoundAgainByItsNameAlone(t *testing.T) {
	for name, c := range map[string]struct {
		names []string
		want  string
	}{
		"none":          {nil, ""},
		"one":           {[]string{"TestA"}, "^TestA$"},
		"a part":        {[]string{"TestA/a_(b)"}, `^TestA$/^a_\(b\)$`},
		"more than one": {[]string{"TestA", "TestB/c"}, "^TestA$|^TestB$/^c$"},
	} {
		if got := patterns(c.names); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

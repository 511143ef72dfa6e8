// Package lint holds the import directions to the code. The table is the
// depguard section of .golangci.yml: this package reads it, so that a wrong
// import fails with the tests and not only where the linter runs.
package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	module = "github.com/recon-dlq/recon-dlq"
	root   = "../.."
)

// rule is one depguard rule.
type rule struct {
	Name  string
	Mode  string   `yaml:"list-mode"`
	Files []string `yaml:"files"`
	Allow []string `yaml:"allow"`
	Deny  []struct {
		Pkg string `yaml:"pkg"`
	} `yaml:"deny"`
}

func readRules(t *testing.T) []rule {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]rule `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for name, r := range file.Linters.Settings.Depguard.Rules {
		if r.Mode != "strict" && r.Mode != "lax" {
			t.Fatalf(".golangci.yml: rule %s: list-mode %q: want strict or lax", name, r.Mode)
		}
		r.Name = name
		rules = append(rules, r)
	}
	if len(rules) == 0 {
		t.Fatal(".golangci.yml: no depguard rules")
	}
	slices.SortFunc(rules, func(a, b rule) int { return strings.Compare(a.Name, b.Name) })
	return rules
}

// covers reports whether the rule is about the file, a slash-separated path
// from the module's root.
func (r rule) covers(file string) bool {
	in := false
	for _, pattern := range r.Files {
		pattern, negated := strings.CutPrefix(pattern, "!")
		if !globMatch(pattern, file) {
			continue
		}
		if negated {
			return false
		}
		in = true
	}
	return in
}

func globMatch(pattern, file string) bool {
	if pattern == "$test" {
		return strings.HasSuffix(file, "_test.go")
	}
	pattern = strings.TrimPrefix(pattern, "${config-path}/")
	pattern = regexp.QuoteMeta(pattern)
	pattern = strings.ReplaceAll(pattern, `\*\*`, `.*`)
	pattern = strings.ReplaceAll(pattern, `\*`, `[^/]*`)
	return regexp.MustCompile("^" + pattern + "$").MatchString(file)
}

// refuses reports whether the rule forbids the import. The longer of two
// entries that match wins, as in depguard.
func (r rule) refuses(imp string) bool {
	allowed := 0
	for _, entry := range r.Allow {
		if entryMatches(entry, imp) {
			allowed = max(allowed, len(entry))
		}
	}
	denied := 0
	for _, entry := range r.Deny {
		if entryMatches(entry.Pkg, imp) {
			denied = max(denied, len(entry.Pkg))
		}
	}
	if r.Mode == "strict" {
		return allowed == 0 || denied >= allowed
	}
	return denied > 0 && denied >= allowed
}

func entryMatches(entry, imp string) bool {
	if entry == "$gostd" {
		first, _, _ := strings.Cut(imp, "/")
		return !strings.Contains(first, ".")
	}
	if exact, ok := strings.CutSuffix(entry, "$"); ok {
		return imp == exact
	}
	return imp == entry || strings.HasPrefix(imp, entry+"/")
}

// eachGoFile calls fn with every Go file of the module, by its slash-separated path from the root.
func eachGoFile(t *testing.T, fn func(file string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryImportGoesTheAllowedWay(t *testing.T) {
	rules := readRules(t)
	checked := 0
	eachGoFile(t, func(file string) {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Errorf("%s: import %s: %v", file, spec.Path.Value, err)
				continue
			}
			for _, r := range rules {
				if !r.covers(file) {
					continue
				}
				checked++
				if r.refuses(imp) {
					t.Errorf("%s imports %s: rule %s of .golangci.yml refuses it", file, imp, r.Name)
				}
			}
		}
	})
	if checked == 0 {
		t.Fatal("no import was checked: the patterns of .golangci.yml match no file")
	}
}

// TestEveryPackageHasARule keeps a new package from having no direction.
func TestEveryPackageHasARule(t *testing.T) {
	rules := readRules(t)
	// What may import anything; the third parties' rules hold it all the same.
	free := regexp.MustCompile(`^(test|internal/cli|internal/demo)(/|$)`)
	eachGoFile(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") || free.MatchString(file) {
			return
		}
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.Mode == "strict" && r.covers(file) }) {
			t.Errorf("%s: no strict depguard rule of .golangci.yml covers this package: write down what it may import", file)
		}
	})
}

// plant is an import put where it does not belong. An empty rule: it belongs
// there. Together the plants make no import cycle: the linter would stop at it.
type plant struct{ file, imp, rule string }

var plants = []plant{
	{"deadletter/planted.go", "github.com/twmb/franz-go/pkg/kgo", "deadletter"},
	{"policy/planted.go", module + "/audit", "policy"},
	{"remedy/planted.go", module + "/policy", "remedy"},
	{"audit/planted.go", "github.com/twmb/franz-go/pkg/kgo", "audit"},
	{"consumer/progress/planted.go", module + "/deadletter", "consumer-progress"},
	{"consumer/planted.go", module + "/config", "consumer"},
	{"consumer/planted_escalation.go", module + "/escalation", "consumer"},
	{"escalation/planted.go", module + "/policy", "escalation"},
	{"config/planted.go", module + "/worker", "config"},
	{"worker/planted.go", "github.com/spf13/pflag", "worker"},
	{"internal/kafka/planted.go", module + "/audit", "internal-kafka"},
	{"cmd/recon-dlq/planted.go", module + "/worker", "cmd"},
	{"internal/cli/planted.go", module + "/test/brokers", "test-only"},
	{"internal/cli/planted_invariants.go", module + "/test/invariants", "invariants-only"},
	{"consumer/planted_counter.go", "github.com/prometheus/client_golang/prometheus", "client-golang-only"},
	{"internal/cli/planted_viper.go", "github.com/spf13/viper", "viper-only"},
	{"internal/demo/planted_cobra.go", "github.com/spf13/cobra", "cobra-only"},
	{"internal/cli/planted_kfake.go", "github.com/twmb/franz-go/pkg/kfake", "kfake-only"},
	{"internal/cli/planted_sqlite.go", "modernc.org/sqlite", "demo-only"},
	{"worker/planted_pgx.go", "github.com/jackc/pgx/v5", "pgx-only"},
	{"internal/demo/planted_containers.go", "github.com/testcontainers/testcontainers-go", "containers-only"},

	{"policy/planted_leaf.go", module + "/deadletter", ""},
	{"consumer/metrics.go", "github.com/prometheus/client_golang/prometheus", ""},
	{"consumer/planted_test.go", "github.com/twmb/franz-go/pkg/kfake", ""},
	{"config/planted_viper.go", "github.com/spf13/viper", ""},
	{"internal/demo/planted_sqlite.go", "modernc.org/sqlite", ""},
	{"remedy/planted_pgx.go", "github.com/jackc/pgx/v5/pgxpool", ""},
	{"internal/demo/planted_invariants.go", module + "/test/invariants", ""},
	{"test/planted/planted.go", "github.com/twmb/franz-go/pkg/kfake", ""},
}

func TestAPlantedForbiddenImportIsRefusedByItsRule(t *testing.T) {
	rules := readRules(t)
	planted := map[string]bool{}
	for _, p := range plants {
		planted[p.rule] = true
		var refusedBy []string
		for _, r := range rules {
			if r.covers(p.file) && r.refuses(p.imp) {
				refusedBy = append(refusedBy, r.Name)
			}
		}
		switch {
		case p.rule == "" && len(refusedBy) > 0:
			t.Errorf("%s may import %s, but %v refuse it", p.file, p.imp, refusedBy)
		case p.rule != "" && !slices.Contains(refusedBy, p.rule):
			t.Errorf("%s imports %s: rule %s let it pass", p.file, p.imp, p.rule)
		}
	}
	for _, r := range rules {
		if !planted[r.Name] {
			t.Errorf("rule %s of .golangci.yml has no planted import here: nobody has seen it refuse anything", r.Name)
		}
	}
}

// TestTheLinterRefusesAPlantedImport runs the real linter on a module that has
// our configuration, our go.mod and one file a plant.
func TestTheLinterRefusesAPlantedImport(t *testing.T) {
	linter := os.Getenv("GOLANGCI_LINT")
	if linter == "" {
		t.Skip("GOLANGCI_LINT names no golangci-lint: `make lint` builds it and runs this test")
	}
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", ".golangci.yml"} {
		raw, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(raw))
	}
	for _, p := range plants {
		write(t, filepath.Join(dir, p.file), fmt.Sprintf("package planted\n\nimport _ %q\n", p.imp))
		if pkg, ours := strings.CutPrefix(p.imp, module+"/"); ours { // it must exist to be imported
			write(t, filepath.Join(dir, pkg, "doc.go"), "package planted\n")
		}
	}

	cmd := exec.CommandContext(t.Context(), linter, "run", "--allow-parallel-runners", "--enable-only", "depguard", "--output.json.path", "stdout", "--output.text.path", "stderr", "--show-stats=false", "./...")
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", linter, err)
	}
	var report struct {
		Issues []struct {
			FromLinter string
			Text       string
			Pos        struct{ Filename string }
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("the linter's report is not JSON: %v\n%s\n%s", err, out, stderr.String())
	}
	refused := func(p plant) bool {
		for _, issue := range report.Issues {
			if issue.FromLinter == "depguard" && issue.Pos.Filename == p.file && strings.Contains(issue.Text, p.imp) &&
				(p.rule == "" || strings.Contains(issue.Text, "'"+p.rule+"'")) {
				return true
			}
		}
		return false
	}
	for _, p := range plants {
		if want := p.rule != ""; refused(p) != want {
			t.Errorf("%s imports %s (rule %q): refused %t, want %t", p.file, p.imp, p.rule, !want, want)
		}
	}
	if t.Failed() {
		t.Logf("the linter said:\n%s", stderr.String())
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

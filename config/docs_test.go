package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// rows gives the lines of the reference's tables by the keys they name.
func rows(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	name := regexp.MustCompile("`([a-z_.\\[\\]]+)`")
	for line := range strings.Lines(string(data)) {
		cells := strings.SplitN(line, "|", 4)
		if len(cells) < 4 {
			continue
		}
		for _, found := range name.FindAllStringSubmatch(cells[1], -1) {
			m[found[1]] = cells[2] + "|" + cells[3]
		}
	}
	return m
}

func TestTheReferenceHasEveryKeyWithItsDefault(t *testing.T) {
	doc := rows(t)
	schema.each("", func(path string, k *key) {
		if len(k.keys) > 0 {
			return
		}
		row, ok := doc[path]
		if !ok {
			t.Errorf("docs/configuration.md has no row for %s", path)
			return
		}
		if k.def != "" && !strings.Contains(row, k.def) {
			t.Errorf("docs/configuration.md: the row of %s does not give its default %s: %s", path, k.def, row)
		}
		if (k.kind == later) != strings.Contains(row, "| not supported yet") {
			t.Errorf("docs/configuration.md: the row of %s is wrong about whether it is supported: %s", path, row)
		}
	})
}

func TestTheReferenceHasNoKeyThatDoesNotExist(t *testing.T) {
	known := make(map[string]bool)
	schema.each("", func(path string, _ *key) { known[path] = true })
	for _, name := range presets {
		known[name] = true
	}
	for path := range rows(t) {
		if !known[path] {
			t.Errorf("docs/configuration.md has a row for %s, which is no key", path)
		}
	}
}

func TestTheExampleHasEveryKeyThatWorks(t *testing.T) {
	tree := newTree("../deploy/recon-dlq.yaml")
	tree.read()
	written := make(map[string]bool)
	brackets := regexp.MustCompile(`\[[0-9]+\]`)
	for path := range tree.lines {
		written[brackets.ReplaceAllString(path, "[]")] = true
	}
	data, err := os.ReadFile("../deploy/recon-dlq.yaml")
	if err != nil {
		t.Fatal(err)
	}
	schema.each("", func(path string, k *key) {
		if k.kind == later || k.kind == secret || written[path] {
			return
		}
		if !regexp.MustCompile("# +" + regexp.QuoteMeta(k.name) + ":").Match(data) { // or commented out
			t.Errorf("deploy/recon-dlq.yaml does not show %s", path)
		}
	})
	if _, err := Load("../deploy/recon-dlq.yaml", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestEveryFlagIsInTheReferenceAndSetsAKey(t *testing.T) {
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	schema.each("", func(path string, _ *key) { known[path] = true })
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(string(data), "`--"+f.Name+"`") {
			t.Errorf("docs/configuration.md does not name --%s", f.Name)
		}
		if f.Name != flagFirstStart && !known[flagKeys[f.Name]] {
			t.Errorf("--%s sets no key", f.Name)
		}
	})
}

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const guide = "../../docs/policy.md"

// blocks are the fenced blocks of the policy guide, without their fences.
func blocks(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllStringSubmatch(string(data), -1) {
		found = append(found, m[1])
	}
	return found
}

func TestTheGuidesCommandsPrintWhatItShows(t *testing.T) {
	all := blocks(t)
	t.Chdir("../../docs/policy")
	explained := 0
	for _, b := range all {
		line, want, _ := strings.Cut(b, "\n")
		args, ok := strings.CutPrefix(line, "$ recon-dlq ")
		if !ok {
			continue
		}
		if strings.HasPrefix(args, "explain ") {
			explained++
		}
		t.Run(args, func(t *testing.T) {
			code, out, stderr := run(t, strings.Fields(args)...)
			if code != ExitOK || stderr != "" || out != want {
				t.Errorf("exit code %d, %s%s\nthe guide shows\n%s", code, stderr, out, want)
			}
		})
	}
	if records, err := filepath.Glob("records/*.json"); err != nil || explained < 5 || len(records) != explained {
		t.Errorf("%d of %d records are explained, %v", explained, len(records), err)
	}
}

func TestTheGuideShowsItsFilesAsTheyAre(t *testing.T) {
	shown := 0
	for _, b := range blocks(t) {
		name, want, _ := strings.Cut(b, "\n")
		name, ok := strings.CutPrefix(name, "# ")
		if !ok {
			continue
		}
		shown++
		data, err := os.ReadFile(filepath.Join("../../docs/policy", name))
		if err != nil {
			t.Error(err)
		} else if string(data) != want {
			t.Errorf("the guide shows another %s than there is:\n%s", name, want)
		}
	}
	if shown < 4 {
		t.Errorf("%d files are shown", shown)
	}
}

func TestEveryShippedPolicyPassesItsTests(t *testing.T) {
	files, err := filepath.Glob("../../docs/policy/*_test.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		code, out, stderr := run(t, "policy", "test", "-c", strings.TrimSuffix(file, "_test.yaml")+".yaml", file)
		if code != ExitOK || !strings.HasSuffix(out, " passed, 0 failed\n") || stderr != "" {
			t.Errorf("%s: exit code %d, %s%s", file, code, out, stderr)
		}
	}
	data, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.Contains(string(data), filepath.Base(file)) {
			t.Errorf("the guide does not name %s", file)
		}
	}
}

// Each rule of what others document is named beside what it stands for.
func TestTheGuideNamesEachRuleOfOtherPeoplesPolicies(t *testing.T) {
	data, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^ +- \{?name: ([a-z-]+)`)
	for _, file := range []string{"spring.yaml", "cronsumer.yaml"} {
		rules, err := os.ReadFile(filepath.Join("../../docs/policy", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range names.FindAllStringSubmatch(string(rules), -1) {
			if m[1] != "default" && !regexp.MustCompile(`(?m)^\|.*\|.*`+"`"+m[1]+"`").MatchString(string(data)) {
				t.Errorf("no row of the guide names rule %s of %s", m[1], file)
			}
		}
	}
}

// Package compose holds docker-compose.yml to the program: what it mounts is
// there, what it calls is a command, and the configuration it mounts runs.
// Docker is not needed: the services run as processes, see run_test.go.
package compose

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

const root = "../.."

func TestMain(m *testing.M) {
	code := brokers.Main(m)
	if dir := builtIn; dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// builtIn is the directory of the built program, for TestMain to remove.
var builtIn string

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "recon-dlq-compose-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "recon-dlq")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/recon-dlq")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// binary is the path of the program, built once.
func binary(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithDiscardEnvFile)
	if err != nil {
		t.Fatal(err)
	}
	project, err := opts.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeHasTheWholeJob(t *testing.T) {
	project := load(t)
	for _, name := range []string{"kafka", "topics-init", "worker", "target", "classifier", "prometheus"} {
		if _, ok := project.Services[name]; !ok {
			t.Errorf("docker-compose.yml has no service %s", name)
		}
	}
	for _, name := range []string{"kafka", "prometheus"} {
		if check := project.Services[name].HealthCheck; check == nil || len(check.Test) < 2 {
			t.Errorf("service %s has no health check", name)
		}
	}
	// The drain of running calls takes up to 25 s, the last transaction comes after it.
	grace := project.Services["worker"].StopGracePeriod
	if grace == nil || time.Duration(*grace) < 40*time.Second {
		t.Errorf("service worker: stop_grace_period is %v, want 40s or more", grace)
	}
	for _, name := range []string{"worker", "classifier"} {
		if got := project.Services[name].DependsOn["topics-init"].Condition; got != types.ServiceConditionCompletedSuccessfully {
			t.Errorf("service %s starts when topics-init is %q, want %q", name, got, types.ServiceConditionCompletedSuccessfully)
		}
	}
}

func TestEveryMountedFileIsInTheRepository(t *testing.T) {
	mounts := 0
	for name, service := range load(t).Services {
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			mounts++
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("service %s: %v", name, err)
			}
			if !volume.ReadOnly {
				t.Errorf("service %s: %s is mounted writable", name, volume.Source)
			}
			if !filepath.IsAbs(volume.Source) || strings.HasPrefix(mustRel(t, volume.Source), "..") {
				t.Errorf("service %s: %s lies outside the repository", name, volume.Source)
			}
		}
	}
	if mounts == 0 {
		t.Fatal("docker-compose.yml mounts no file")
	}
}

func mustRel(t *testing.T, path string) string {
	t.Helper()
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(base, path)
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

var fromLine = regexp.MustCompile(`(?m)^FROM (\S+)`)

func TestEveryImageIsPinnedToATag(t *testing.T) {
	images := map[string]string{}
	for name, service := range load(t).Services {
		images["service "+name] = service.Image
	}
	dockerfile := read(t, "Dockerfile")
	for _, from := range fromLine.FindAllStringSubmatch(dockerfile, -1) {
		images["Dockerfile FROM "+from[1]] = from[1]
	}
	for where, image := range images {
		_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
		if tag == "" || tag == "latest" {
			t.Errorf("%s: image %q is not pinned to a tag", where, image)
		}
	}
}

func TestTheImageIsBuiltWithTheModulesGo(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	if version == nil {
		t.Fatal("go.mod names no version of Go")
	}
	if want := "FROM golang:" + version[1] + "-"; !strings.Contains(read(t, "Dockerfile"), want) {
		t.Errorf("Dockerfile: want %q…, as in go.mod", want)
	}
}

func TestEveryCommandIsOneOfTheProgram(t *testing.T) {
	bin := binary(t)
	called := 0
	for name, service := range load(t).Services {
		if service.Build == nil {
			continue
		}
		called++
		// The help of the command, with its flags: a flag that does not exist is
		// refused before the help, a command that does not exist shows another's help.
		args := append(append([]string{}, service.Command...), "--help")
		var path []string
		for _, arg := range service.Command {
			if strings.HasPrefix(arg, "-") || strings.Contains(arg, "/") {
				break
			}
			path = append(path, arg)
		}
		out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
		if err != nil {
			t.Errorf("service %s: recon-dlq %s: %v\n%s", name, strings.Join(args, " "), err, out)
			continue
		}
		if want := "recon-dlq " + strings.Join(path, " "); !regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(want) + `( |$)`).Match(out) {
			t.Errorf("service %s: the help shows no command %q\n%s", name, want, out)
		}
	}
	if called == 0 {
		t.Fatal("docker-compose.yml runs no service from this repository")
	}
}

func TestTheMountedWorkerConfigurationIsRight(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), binary(t), "config", "check", "--config", filepath.Join(root, "deploy/compose/recon-dlq.yaml"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("recon-dlq config check: %v\n%s", err, out)
	}
}

func TestTheSampleDiscrepanciesAreRecords(t *testing.T) {
	scanner := bufio.NewScanner(strings.NewReader(read(t, "deploy/compose/discrepancies.jsonl")))
	lines, ids := 0, map[string]bool{}
	for scanner.Scan() {
		lines++
		record, err := deadletter.Read(
			deadletter.Message{Place: deadletter.Place{Topic: "recon.dlq", Offset: int64(lines)}, Value: scanner.Bytes()},
			deadletter.ReadOptions{Kind: deadletter.Source, Now: time.Now()},
		)
		if err != nil {
			t.Errorf("deploy/compose/discrepancies.jsonl:%d: %v", lines, err)
			continue
		}
		if ids[record.DiscrepancyID] {
			t.Errorf("deploy/compose/discrepancies.jsonl:%d: discrepancy_id %s appears twice", lines, record.DiscrepancyID)
		}
		ids[record.DiscrepancyID] = true
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	if lines < 30 {
		t.Errorf("deploy/compose/discrepancies.jsonl has %d records, want 30 or more", lines)
	}
}

func TestEveryAlertHasARunbookThatStartsWithACommand(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/rules/recon-dlq.yml")), &file); err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			alerts++
			_, path, found := strings.Cut(rule.Annotations["runbook_url"], "/blob/main/")
			if !found {
				t.Errorf("alert %s: runbook_url %q does not lead into this repository", rule.Alert, rule.Annotations["runbook_url"])
				continue
			}
			paragraphs := strings.Split(read(t, path), "\n\n")
			if len(paragraphs) < 3 || !strings.HasPrefix(paragraphs[1], "Type this first") || !strings.HasPrefix(paragraphs[2], "    ") {
				t.Errorf("%s does not start with the command to type", path)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("alert %s has no summary or no description", rule.Alert)
			}
		}
	}
	if alerts == 0 {
		t.Fatal("deploy/prometheus/rules/recon-dlq.yml has no alert")
	}
}

// TestEveryConsumerSnippetReadsCommittedRecords: a reader that is not
// read-committed sees copies of aborted transactions.
func TestEveryConsumerSnippetReadsCommittedRecords(t *testing.T) {
	snippets := 0
	check := func(path string, text string) {
		for at, line := range joinedLines(text) {
			if !strings.Contains(line, "kafka-console-consumer") && !strings.Contains(line, "kcat -C") {
				continue
			}
			snippets++
			if !strings.Contains(line, "read_committed") {
				t.Errorf("%s: snippet %d reads what was never committed: %s", path, at+1, line)
			}
		}
	}
	check("docker-compose.yml", read(t, "docker-compose.yml"))
	for _, dir := range []string{".", "docs", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				if dir == "." && path != filepath.Join(root, dir) {
					return filepath.SkipDir
				}
				return nil
			}
			if filepath.Ext(path) == ".md" || filepath.Ext(path) == ".yaml" {
				raw, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				check(path, string(raw))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if snippets == 0 {
		t.Fatal("no snippet was found: this test looks for the wrong words")
	}
}

// joinedLines joins the lines of a shell command that ends in backslashes.
func joinedLines(text string) []string {
	text = regexp.MustCompile(`\\\n#?\s*`).ReplaceAllString(text, "")
	return strings.Split(text, "\n")
}

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// run runs the program to its end with the given input and returns what it wrote.
func run(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("recon-dlq %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

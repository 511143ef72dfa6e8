package brokers

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const childVariable = "RECON_DLQ_TEST_CHILD"

func TestABrokerDiesWithATestBinaryThatIsKilled(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		p, err := start(filepath.Join(t.TempDir(), "out"), "sleep", "600")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("child", p.cmd.Process.Pid)
		<-p.done
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills the children of a process that dies")
	}
	binary := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	binary.Env = append(os.Environ(), childVariable+"=1")
	out, err := binary.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := binary.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "child "); ok {
			pid, _ = strconv.Atoi(text)
		}
	}
	_ = binary.Process.Kill()
	_ = binary.Wait()
	if pid == 0 {
		t.Fatal("the test binary did not start its child")
	}
	deadline := time.After(10 * time.Second)
	for alive(pid) {
		select {
		case <-deadline:
			t.Fatalf("process %d outlives the test binary that started it", pid)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// alive says whether a process runs; one that has ended and that nobody waits for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestDataOfAKilledTestBinaryIsRemovedAndThatOfARunningOneIsNot(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"cluster-dead", "cluster-alive"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		unlock, err := lock(filepath.Join(root, name, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		if name == "cluster-dead" {
			unlock()
		} else {
			defer unlock()
		}
	}
	removeStale(root)
	left, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "cluster-alive" {
		t.Errorf("left are %v (%v), want cluster-alive only", left, err)
	}
}

func TestWhatIsMissingIsNamedWithItsPackage(t *testing.T) {
	empty := t.TempDir()
	t.Run("java", func(t *testing.T) {
		t.Setenv("JAVA_HOME", empty)
		if _, err := findJava(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "openjdk-17-jre-headless") {
			t.Errorf("without java: %v, want ErrUnavailable that names openjdk-17-jre-headless", err)
		}
	})
	t.Run("too old a java", func(t *testing.T) {
		home := t.TempDir()
		fakeProgram(t, filepath.Join(home, "bin", "java"), `echo 'openjdk version "11.0.2" 2019-01-15' >&2`)
		t.Setenv("JAVA_HOME", home)
		if _, err := findJava(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "is Java 11") {
			t.Errorf("with Java 11: %v, want ErrUnavailable that says so", err)
		}
	})
	t.Run("maven", func(t *testing.T) {
		t.Setenv("PATH", empty)
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		t.Setenv("HOME", t.TempDir())
		if _, err := jars(KafkaVersion); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install maven") {
			t.Errorf("without maven: %v, want ErrUnavailable that names maven", err)
		}
	})
	t.Run("network", func(t *testing.T) {
		bin := t.TempDir()
		fakeProgram(t, filepath.Join(bin, "mvn"), `echo 'Could not transfer artifact'; exit 1`)
		cache := t.TempDir()
		t.Setenv("PATH", bin+":/bin:/usr/bin")
		t.Setenv("XDG_CACHE_HOME", cache)
		t.Setenv("HOME", cache)
		if _, err := jars(KafkaVersion); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "Could not transfer artifact") {
			t.Errorf("when maven fails: %v, want ErrUnavailable with what it says", err)
		}
		left, _ := filepath.Glob(filepath.Join(cache, "*", "*"))
		if len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
			t.Errorf("left in the cache: %v, want the lock only", left)
		}
	})
}

func fakeProgram(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// spy is a test that notes how it ended instead of ending.
type spy struct {
	testing.TB
	skipped, failed bool
}

func (s *spy) Helper()               {}
func (s *spy) Skip(...any)           { s.skipped = true }
func (s *spy) Fatal(...any)          { s.failed = true }
func (s *spy) Fatalf(string, ...any) { s.failed = true }

func TestAMissingKafkaSkipsUnlessItIsRequired(t *testing.T) {
	missing := fmt.Errorf("apache kafka %w", ErrUnavailable)
	tests := []struct {
		name     string
		require  string
		required bool
		err      error
		failed   bool
	}{
		{name: "on a developer's machine", require: "", required: true, err: missing},
		{name: "where it is required", require: "1", required: true, err: missing, failed: true},
		{name: "a container is never required", require: "1", required: false, err: missing},
		{name: "a broker that does not start is a fault", require: "", required: true, err: syscall.EIO, failed: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(RequireKafka, tt.require)
			s := &spy{TB: t}
			unavailable(s, tt.required, tt.err)
			if s.failed != tt.failed || !s.failed && !s.skipped {
				t.Errorf("failed %t, skipped %t, want failed %t", s.failed, s.skipped, tt.failed)
			}
		})
	}
}

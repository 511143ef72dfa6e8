package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// The test binary is the program itself when this is set.
const asProgram = "BE_RECON_DLQ"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestTheProgramHandsItsExitCodeToTheShell(t *testing.T) {
	for args, want := range map[string]int{"version": 0, "nonsense": 2} {
		cmd := exec.Command(os.Args[0], args)
		cmd.Env = []string{asProgram + "=1"}
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit code %d (%v), want %d\n%s", args, got, err, want, out)
		}
	}
}

// hanging starts the program so that it waits for its configuration, which is a
// pipe. When hanging returns the program is reading, so its signals are set up.
func hanging(t *testing.T) (*exec.Cmd, *os.File) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "c.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "config", "check", "--config", pipe)
	cmd.Env = []string{asProgram + "=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	config, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the program opens its end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = config.Close() })
	return cmd, config
}

func TestTheFirstSignalDoesNotKill(t *testing.T) {
	cmd, config := hanging(t)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, err := config.WriteString("kafka: {brokers: [a:1]}\ntargets: [{name: a, http: {unix: /x}}]\n"); err != nil {
		t.Fatal(err)
	}
	if err := config.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("config check did not end in order after one signal: %v", err)
	}
}

func TestASecondSignalKillsAtOnce(t *testing.T) {
	cmd, _ := hanging(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	// When the first has been taken cannot be seen from outside: signal until the program is gone.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for signals := 0; ; signals++ {
		select {
		case <-done:
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || !status.Signaled() || status.Signal() != syscall.SIGINT || signals < 2 {
				t.Errorf("after %d signals: %v, want killed by the second interrupt or later", signals, cmd.ProcessState)
			}
			return
		case <-tick.C:
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
}

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestOnlyAWorkerThatHasNotBegunToWorkMayEndByItself(t *testing.T) {
	for words, want := range map[string]bool{
		`recon-dlq: kafka.brokers: cannot reach 127.0.0.1:1: connection refused`: true,
		`recon-dlq: topic "recon.dlq": LEADER_NOT_AVAILABLE`:                     true,
		"recon-dlq: group \"a\": NOT_COORDINATOR\ngroup \"b\": NOT_COORDINATOR":  true,
		`recon-dlq: worker: another worker runs under this name`:                 false,
		`recon-dlq: escalation: no right to READ topic "recon.dlq.poison"`:       false,
		`panic: runtime error`: false,
		``:                     false,
	} {
		p, err := startChild(exec.Command("sh", "-c", `echo begun; printf '%s\n' "$1" >&2; exit 1`, "sh", words), filepath.Join(t.TempDir(), "w1.log"))
		if err != nil {
			t.Fatal(err)
		}
		<-p.done
		if got := gaveUp(p); got != want {
			t.Errorf("%q: gave up %t, want %t (last words %q)", words, got, want, p.lastWords())
		}
	}
}

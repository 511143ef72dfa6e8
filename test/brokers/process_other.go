//go:build !linux

package brokers

import (
	"fmt"
	"os/exec"
)

// dieWithUs can do nothing here: a test binary that is killed leaves its broker behind.
func dieWithUs(*exec.Cmd) {}

func mountDisk(string, int64) error {
	return fmt.Errorf("a disk of its own for a broker is %w: it is mounted on Linux only", ErrUnavailable)
}

func unmountDisk(string) {}

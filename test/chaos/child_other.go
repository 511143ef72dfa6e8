//go:build !linux

package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs keeps a terminal's interrupt from the process: it is stopped in our
// order. If we are killed, it stays: only Linux can help that.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

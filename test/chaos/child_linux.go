package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs makes the kernel kill the process when the thread that started it
// ends, and keeps a terminal's interrupt from it: it is stopped in our order.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

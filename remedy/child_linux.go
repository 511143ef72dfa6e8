package remedy

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the child the leader of a process group, and the kernel kill it when
// the thread that starts it ends.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills the child and what it has started, but for what has left its group.
// The child has not been waited for.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // an error: nobody is left

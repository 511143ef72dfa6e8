package brokers

import (
	"os/exec"
	"syscall"
)

// dieWithUs makes the kernel kill the process when the thread that started it
// ends, which is when this process dies, however it dies: see process.start.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

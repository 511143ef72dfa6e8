package brokers

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// dieWithUs makes the kernel kill the process when the thread that started it
// ends, which is when this process dies, however it dies: see process.start.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// mountDisk makes a directory that is a disk of that size, in memory.
func mountDisk(dir string, size int64) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return fmt.Errorf("a disk of its own for a broker is %w: mount: %w", ErrUnavailable, err)
	}
	return nil
}

// unmountDisk unmounts what mountDisk has mounted; an error says that it was not.
func unmountDisk(dir string) { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }

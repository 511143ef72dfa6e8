package brokers

import (
	"os"
	"syscall"
)

// lock takes an exclusive lock on a file that other processes of this machine
// respect, and waits for it. The kernel gives it back if we die.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

package postgres

import "syscall"

// dieWithUs makes the kernel end the server when the thread that started it ends.
func dieWithUs(account *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: account, Pdeathsig: syscall.SIGQUIT}
}

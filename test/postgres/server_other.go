//go:build !linux

package postgres

import "syscall"

// dieWithUs can do nothing here: a test binary that is killed leaves its server behind.
func dieWithUs(account *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: account}
}

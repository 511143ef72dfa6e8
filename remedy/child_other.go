//go:build !linux

package remedy

import "os/exec"

// ownGroup does nothing: only Linux is served with process groups.
func ownGroup(*exec.Cmd) {}

// killGroup kills the child only.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // an error: it has ended

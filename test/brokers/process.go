package brokers

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that does not outlive us.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
}

// start runs a command with its output going to the file out.
func start(out, name string, args ...string) (*process, error) {
	file, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", name, err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	dieWithUs(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is tied to the starting thread, not to the process:
		// this thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer file.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how a broker ends is of no interest, only that it has
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// kill ends the process as kill -9 does and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has already ended
	<-p.done
}

// signal sends a signal, for tests that stop and continue a broker.
func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

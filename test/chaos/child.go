package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// child is a process that does not outlive us.
type child struct {
	cmd      *exec.Cmd
	out      *capped
	expected atomic.Bool   // that it ends is our doing
	done     chan struct{} // closed when it has ended and was waited for
	err      error         // how it ended; set before done is closed
}

// startChild starts cmd with its output appended to the file log, up to maxLog bytes.
func startChild(cmd *exec.Cmd, log string) (*child, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", cmd.Path, err)
	}
	out := &capped{w: file, left: maxLog}
	if info, err := file.Stat(); err == nil {
		out.left -= info.Size()
	}
	cmd.Stdout, cmd.Stderr = out, out
	dieWithUs(cmd)
	p := &child{cmd: cmd, out: out, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that starts the process: it
		// must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer file.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// kill ends the process as kill -9 does and waits for its end.
func (p *child) kill() {
	p.expected.Store(true)
	_ = p.cmd.Process.Kill() // an error says that it has already ended
	<-p.done
}

// terminate asks the process to end and waits; after the grace it is killed.
// The error says that it did not end in order.
func (p *child) terminate(grace time.Duration) error {
	p.expected.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error says that it has already ended
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.err
	case <-timer.C:
		p.kill()
		return fmt.Errorf("still there %s after SIGTERM: killed", grace)
	}
}

// lastWords are what the process wrote last, as far as it was written at once.
// It has ended.
func (p *child) lastWords() string { return string(p.out.last) }

// maxLog bounds the log of a process, in bytes.
const maxLog = 32 << 20

// capped passes on what fits and drops the rest: a process that runs wild stops
// neither at a full disk nor at a full pipe.
type capped struct {
	w    io.Writer
	left int64
	last []byte // written
}

func (c *capped) Write(b []byte) (int, error) {
	c.last = append(c.last[:0], b...)
	n := min(int64(len(b)), max(c.left, 0))
	c.left -= n
	if n > 0 {
		if _, err := c.w.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

package remedy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// child is a process of an exec target. One goroutine starts it, reads its output,
// kills its group and waits for it, in this order: the group's number can belong to
// others only once its leader has been waited for. Everything else asks that
// goroutine to end.
type child struct {
	cmd    *exec.Cmd
	began  time.Time
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr tail
	lines  chan []byte   // each with its end, but one that is too long
	quit   chan struct{} // closed by end
	done   chan struct{} // closed when it has been waited for
	state  string        // how it ended; set before done is closed
	ending sync.Once

	// Of the call that has the child, or of Exec while it is idle.
	proven bool // it has answered
	timer  *time.Timer
}

func newChild(path string, command, env []string, now time.Time) *child {
	c := &child{
		cmd: &exec.Cmd{Path: path, Args: command, Env: env, WaitDelay: time.Second}, began: now,
		lines: make(chan []byte), quit: make(chan struct{}), done: make(chan struct{}),
	}
	c.cmd.Stderr = &c.stderr
	ownGroup(c.cmd)
	return c
}

// startError says that the program cannot be started.
type startError struct{ err error }

func (e *startError) Error() string { return "the program cannot be started: " + e.err.Error() }

func (c *child) start(all *sync.WaitGroup) error {
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return &startError{err}
	}
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		_ = c.stdin.Close()
		return &startError{err}
	}
	started := make(chan error)
	all.Go(func() { c.live(started) })
	return <-started
}

func (c *child) live(started chan<- error) {
	defer close(c.done)
	// Linux sends the signal of death when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.cmd.Start(); err != nil {
		started <- &startError{err}
		return
	}
	started <- nil
	c.read()
	killGroup(c.cmd)
	if err := c.cmd.Wait(); c.cmd.ProcessState == nil {
		c.state = err.Error()
	} else {
		c.state = c.cmd.ProcessState.String()
	}
}

// read hands the output on, line by line, until it or the child is to end.
func (c *child) read() {
	r := bufio.NewReaderSize(c.stdout, maxBodyBytes)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		select {
		case c.lines <- bytes.Clone(line):
		case <-c.quit:
			return
		}
	}
}

// end makes the child's group be killed. It does not wait, see done.
func (c *child) end() {
	c.ending.Do(func() {
		close(c.quit)
		_ = c.stdout.Close() // ends a Read, even if a process outside of the group holds the other end
	})
}

// close lets the child end by itself, and kills it after the grace.
func (c *child) close(grace time.Duration) {
	_ = c.stdin.Close()
	timer := time.AfterFunc(grace, c.end)
	defer timer.Stop()
	for {
		select {
		case <-c.lines: // nobody has asked
		case <-c.done:
			return
		}
	}
}

// idled says what is wrong with a child that was idle.
func (c *child) idled() error {
	select {
	case <-c.done:
		return fmt.Errorf("%w: %s", errEnded, c.state)
	case <-c.lines:
		return errors.New("the program wrote a line that was no answer")
	default:
		return nil
	}
}

// exchange writes a request and reads a line. The caller ends the child when ctx
// does, which ends a Write, too.
func (c *child) exchange(ctx context.Context, request []byte) ([]byte, error) {
	if c.proven {
		c.stderr.clear() // what it wrote about another record belongs to no message about this one
	}
	if _, err := c.stdin.Write(request); err != nil {
		return nil, errEnded
	}
	select {
	case line := <-c.lines:
		return line, nil
	case <-c.done:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// withStderr is text and the end of what the child has written to its standard error
// during the call, its first one since its start, together at most deadletter.MaxErrorBytes.
func (c *child) withStderr(text string) string {
	if s := c.stderr.last(deadletter.MaxErrorBytes - len(text) - len(": ")); s != "" {
		return text + ": " + s
	}
	return text
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(len(p)-deadletter.MaxErrorBytes, 0):]...)
	t.buf = append(t.buf[:0], t.buf[max(len(t.buf)-deadletter.MaxErrorBytes, 0):]...)
	return len(p), nil
}

func (t *tail) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = t.buf[:0]
}

// last is at most n bytes of the end.
func (t *tail) last(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(bytes.ToValidUTF8(t.buf[len(t.buf)-min(max(n, 0), len(t.buf)):], nil)))
}

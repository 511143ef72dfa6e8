package remedy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

const (
	// A program that ends too early, or writes what is no answer, is started again
	// after restartMin, doubling up to restartMax; an answer begins anew.
	restartMin = 100 * time.Millisecond
	restartMax = 30 * time.Second

	// execGrace is how long a child may take to end after its input has.
	execGrace = 5 * time.Second
)

// errEnded says that a child ended, or closed its output, without an answer.
var errEnded = errors.New("the program ended without an answer")

// ExecOptions configure an exec target.
type ExecOptions struct {
	// Command is the program, by its path or its name in PATH, and its arguments.
	// There is no shell in between.
	Command []string
	// Env is the program's environment, in the form of os.Environ; nil: this process's.
	Env []string
	// Timeout bounds one call, starting the program included; > 0.
	Timeout time.Duration
	// Logger tells of programs that end and why, never what they write. nil: nobody is told.
	Logger *slog.Logger
	// Now is the clock of restarts. nil: time.Now.
	Now func() time.Time
}

// Exec is a target that is a program. It is started as a child process, reads one
// line of JSON per record from its standard input, and answers with one on its
// standard output; docs/handlers.md has both.
//
// Every call has a child of its own, which waits for the next one after its answer.
// One child for all calls would need a program that is concurrent itself, and a call
// that times out or crashes would take all the others with it; so a program is a
// plain loop, and what a child was working on when it ended is known. There are as
// many children as there are calls at a time.
//
// A child is the leader of a process group of its own, which is killed with it. On
// Linux the kernel kills the child, too, when this process is killed.
type Exec struct {
	path    string
	command []string
	env     []string
	timeout time.Duration
	log     *slog.Logger
	now     func() time.Time
	after   func(time.Duration) <-chan time.Time
	idleFor time.Duration // then an idle child is ended
	grace   time.Duration
	all     sync.WaitGroup // children that have not been waited for

	mu     sync.Mutex
	idle   []*child // the one used last at the end; guarded by mu
	wait   time.Duration
	next   time.Time // no start before; guarded by mu, as is wait
	closed bool      // guarded by mu
}

var _ Handler = (*Exec)(nil)

// NewExec returns the handler of an exec target. It starts nothing yet, but the
// program must be there. The error names every fault of the options at once.
func NewExec(o ExecOptions) (*Exec, error) {
	var faults []error
	var path string
	if len(o.Command) == 0 || o.Command[0] == "" {
		faults = append(faults, errors.New("command: empty: name a program and its arguments, such as [python3, fix.py]"))
	} else {
		var err error
		if path, err = exec.LookPath(o.Command[0]); err != nil {
			faults = append(faults, fmt.Errorf("command: %w: install it, or give its path", err))
		}
	}
	if slices.ContainsFunc(o.Command, func(s string) bool { return strings.Contains(s, "\x00") }) {
		faults = append(faults, errors.New("command: must not contain a zero byte"))
	}
	if o.Timeout <= 0 {
		faults = append(faults, errors.New("timeout: must be longer than 0"))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("exec target: %w", errors.Join(faults...))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Exec{
		path: path, command: o.Command, env: o.Env, timeout: o.Timeout, log: o.Logger, now: o.Now,
		after: time.After, idleFor: idleTimeout, grace: execGrace,
	}, nil
}

// Close ends all children: their input ends, and after a grace they are killed. It
// waits for them, and for calls that are still under way.
func (e *Exec) Close() {
	e.mu.Lock()
	e.closed = true
	idle := e.idle
	e.idle = nil
	e.mu.Unlock()
	for _, c := range idle {
		c.timer.Stop()
		go c.close(e.grace)
	}
	e.all.Wait()
}

// Remediate writes the record to a child and reads its answer. A context that is
// cancelled gives Stopped, one past its deadline a timeout; either kills the child,
// for nobody would know what a later answer of it belongs to.
func (e *Exec) Remediate(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
	if ctx.Err() != nil && !timedOut(ctx) {
		return stopped()
	}
	callCtx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()

	c, err := e.take(callCtx)
	switch {
	case err == nil:
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	default:
		return unavailable(CauseStart, err.Error())
	}
	release := context.AfterFunc(callCtx, c.end)
	line, err := c.exchange(callCtx, request(r))
	var o deadletter.Outcome
	if err == nil {
		o, err = said(line, r.ID)
	}
	if err == nil {
		e.answered(c)
		if release() {
			e.giveBack(c)
		}
		return o
	}
	c.end()
	ended := errors.Is(err, errEnded)
	if ended { // its group is killed, so this does not take long
		<-c.done
		err = fmt.Errorf("%w: %s", err, c.state)
	}
	switch {
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	case callCtx.Err() != nil:
		return suspect(CauseTimeout, c.withStderr("no answer in time"))
	}
	e.failed(c, err)
	switch {
	case !ended:
		return suspect(CauseProtocol, c.withStderr(err.Error()))
	case !c.proven: // it may never have worked at all: the record is not blamed
		return unavailable(CauseCrashed, c.withStderr(err.Error()))
	default:
		return suspect(CauseCrashed, c.withStderr(err.Error()))
	}
}

// take gives an idle child, or starts one.
func (e *Exec) take(ctx context.Context) (*child, error) {
	for {
		e.mu.Lock()
		if n := len(e.idle); n > 0 {
			c := e.idle[n-1]
			e.idle = e.idle[:n-1]
			e.mu.Unlock()
			c.timer.Stop()
			if err := c.idled(); err != nil {
				c.end()
				e.failed(c, err)
				continue
			}
			return c, nil
		}
		wait, closed := e.next.Sub(e.now()), e.closed
		e.mu.Unlock()
		switch {
		case closed:
			return nil, errors.New("the handler is closed")
		case wait <= 0:
			return e.start()
		case wait >= e.timeout:
			return nil, fmt.Errorf("the program ended again and again: it is not started for another %s", wait.Round(time.Millisecond))
		}
		select {
		case <-e.after(wait):
		case <-ctx.Done():
			return nil, errors.New("the program ended again and again: it was not started in time")
		}
	}
}

func (e *Exec) start() (*child, error) {
	c := newChild(e.path, e.command, e.env, e.now())
	if err := c.start(&e.all); err != nil {
		e.failed(c, err)
		return nil, err
	}
	return c, nil
}

// failed puts the next start off, and tells of it. Children that were started before
// the last failure share it: many that end at once are one event.
func (e *Exec) failed(c *child, why error) {
	e.mu.Lock()
	if c.began.Before(e.next) {
		e.mu.Unlock()
		return
	}
	e.wait = min(max(2*e.wait, restartMin), restartMax)
	e.next = e.now().Add(e.wait)
	wait := e.wait
	e.mu.Unlock()
	// What the program has written can be the payload: neither it nor what is wrong with it is logged.
	e.log.Warn("an exec handler failed", "program", e.path, "error", failureName(why), "restart_after", wait)
}

// failureName is what may be logged of why a child failed.
func failureName(err error) string {
	var start *startError
	switch {
	case errors.As(err, &start):
		return start.Error()
	case errors.Is(err, errEnded):
		return err.Error()
	default:
		return CauseProtocol
	}
}

// answered ends the wait for restarts.
func (e *Exec) answered(c *child) {
	c.proven = true
	e.mu.Lock()
	e.wait, e.next = 0, time.Time{}
	e.mu.Unlock()
}

// giveBack keeps a child for the next call.
func (e *Exec) giveBack(c *child) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		go c.close(e.grace)
		return
	}
	c.timer = time.AfterFunc(e.idleFor, func() { e.retire(c) })
	e.idle = append(e.idle, c)
}

// retire ends a child that has been idle for long.
func (e *Exec) retire(c *child) {
	e.mu.Lock()
	i := slices.Index(e.idle, c)
	if i >= 0 {
		e.idle = slices.Delete(e.idle, i, i+1)
	}
	e.mu.Unlock()
	if i >= 0 {
		c.close(e.grace)
	}
}

// request is the line that a child gets for r: its value as it is, but for white
// space between tokens; one that is no JSON is encoded.
func request(r *deadletter.Record) []byte {
	line := struct {
		ID       string          `json:"id"`
		Attempt  int             `json:"attempt"`
		Enqueued int64           `json:"enqueued_ms,omitempty"`
		Value    json.RawMessage `json:"value,omitempty"`
		Base64   []byte          `json:"value_base64,omitempty"`
	}{ID: r.ID, Attempt: r.Attempt, Enqueued: r.Enqueued}
	if json.Valid(r.Value) {
		line.Value = r.Value
	} else {
		line.Base64 = r.Value
	}
	var b bytes.Buffer
	b.Grow(len(r.Value) + 256)
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(line) // cannot fail: the value is valid, the rest are plain fields
	return b.Bytes()
}

// said makes the outcome of a child's answer to the record id. The error says why it
// is none; it quotes nothing of the answer. A status that does not exist is an
// outcome: the child keeps the protocol otherwise.
func said(line []byte, id string) (deadletter.Outcome, error) {
	var answer struct {
		ID         string  `json:"id"`
		Status     string  `json:"status"`
		Message    string  `json:"message"`
		RetryAfter float64 `json:"retry_after"` // seconds
	}
	switch err := json.Unmarshal(line, &answer); {
	case !bytes.HasSuffix(line, []byte("\n")):
		return deadletter.Outcome{}, fmt.Errorf("the answer is longer than %d bytes", maxBodyBytes)
	case err != nil:
		return deadletter.Outcome{}, errors.New("the answer is not a line of JSON as it should be")
	case answer.ID != id:
		return deadletter.Outcome{}, errors.New("the answer has not the id of the record")
	}
	o := deadletter.Outcome{Message: deadletter.CutError(answer.Message)}
	switch strings.ToLower(answer.Status) {
	case "ok":
		return deadletter.Outcome{Class: deadletter.Resolved}, nil
	case "permanent":
		o.Class, o.Cause = deadletter.Permanent, CauseRejected
	case "failed":
		o.Class, o.Cause = deadletter.Suspect, CauseFailed
	case "retry":
		o.Class, o.Cause = deadletter.InProgress, CauseInProgress
	case "busy":
		o.Class, o.Cause = deadletter.Busy, CauseBusy
		o.RetryAfter = time.Duration(min(max(answer.RetryAfter, 0), maxRetryAfter.Seconds()) * float64(time.Second))
	case "unavailable":
		o.Class, o.Cause = deadletter.Unavailable, CauseUnavailable
	default:
		return suspect(CauseProtocol, fmt.Sprintf("the answer has no status that exists, but %q", answer.Status)), nil
	}
	return o, nil
}

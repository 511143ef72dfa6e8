package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// childCommand makes the program a child of itself: an engine in a process of
// its own, whose memory can be measured and which can be killed.
const childCommand = "engine"

// childWork is what a child is told, as JSON in its argument.
type childWork struct {
	Brokers []string
	Cluster string
	Work    work
	Handler time.Duration // what a call takes before its record is resolved; 0: it does nothing, see inProgress
}

// childResult is what a child that ends its work prints.
type childResult struct {
	Mallocs uint64 // heap objects allocated since the first call
}

type child struct {
	cmd   *exec.Cmd
	stdin io.Closer // the child ends when it is closed, by us or by our end
	out   bytes.Buffer
}

func (b *bench) startChild(w work, handler time.Duration) (*child, error) {
	arg, err := json.Marshal(childWork{b.kafka.Addrs(), b.cluster, w, handler})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(program, childCommand, string(arg))}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, os.Stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	return c, nil
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // an error says that it has already ended
	_ = c.cmd.Wait()         // killed, as it says
}

// result waits for the child's end.
func (c *child) result(ctx context.Context) (r childResult, err error) {
	defer context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })() // an error says that it has already ended
	if err := c.cmd.Wait(); err != nil {
		return r, fmt.Errorf("an engine in a process of its own: %w", err)
	}
	return r, json.Unmarshal(c.out.Bytes(), &r)
}

// childMain is the child: it works until it is done, or its parent is gone.
func childMain(arg string) int {
	var w childWork
	if err := json.Unmarshal([]byte(arg), &w); err != nil {
		fmt.Fprintf(os.Stderr, "bench engine: %v\n", err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end, however it comes, is all that is waited for
		os.Exit(1)
	}()
	var once sync.Once
	var before, after runtime.MemStats
	_, err := runEngine(context.Background(), []kgo.Opt{kgo.SeedBrokers(w.Brokers...)}, w.Cluster, w.Work, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		once.Do(func() { runtime.ReadMemStats(&before) })
		if w.Handler == 0 {
			return inProgress(ctx, r)
		}
		wait(ctx, w.Handler)
		return deadletter.Outcome{Class: deadletter.Resolved}
	})
	if err == nil {
		runtime.ReadMemStats(&after)
		err = json.NewEncoder(os.Stdout).Encode(childResult{after.Mallocs - before.Mallocs})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench engine: %v\n", err)
		return 1
	}
	return 0
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// fault is one way to hurt a worker or a node of the cluster. Another one is
// another value of this type.
type fault struct {
	name        string
	weight      int           // how often it comes, against the others of a plan
	least, most time.Duration // how long it lasts
	// One of these hurts its victim for the length of pause and heals it again,
	// also when ctx ends. It has the victim for itself.
	worker func(ctx context.Context, w *worker, pause time.Duration) error
	node   func(ctx context.Context, x *arena, node int, pause time.Duration) error // nodes count from 1
}

// killed is kill -9 and, after the pause, a new process.
var killed = fault{name: "kill -9", weight: 4, most: 3 * time.Second, worker: func(ctx context.Context, w *worker, pause time.Duration) error {
	w.proc.kill()
	if err := rest(ctx, pause); err != nil {
		return err
	}
	return w.start()
}}

// workerFaults is what happens to workers. Those that are stopped or cut off
// for long pass their session (10 s) and transaction timeout (10 s) and a scan
// of the coordinator (10 s): they come back as zombies.
var workerFaults = []fault{
	killed,
	{name: "terminate", weight: 3, most: 3 * time.Second, worker: terminated},
	{name: "stop", weight: 3, least: 100 * time.Millisecond, most: 5 * time.Second, worker: stopped},
	{name: "stop, zombie", weight: 2, least: 12 * time.Second, most: 30 * time.Second, worker: stopped},
	{name: "cut off", weight: 3, least: 500 * time.Millisecond, most: 8 * time.Second, worker: cutOff(true, true)},
	{name: "cut off, zombie", weight: 1, least: 12 * time.Second, most: 30 * time.Second, worker: cutOff(true, true)},
	{name: "answers lost", weight: 3, least: 200 * time.Millisecond, most: 6 * time.Second, worker: cutOff(false, true)},
	{name: "connections reset", weight: 3, least: 10 * time.Millisecond, most: 500 * time.Millisecond, worker: reset},
	{name: "connections refused", weight: 2, least: 100 * time.Millisecond, most: 5 * time.Second, worker: refused},
}

// nodeFaults is what happens to nodes, one at a time, where topics have replicas.
var nodeFaults = []fault{
	{name: "node kill -9", weight: 3, most: 5 * time.Second, node: nodeKilled},
	{name: "node stop", weight: 3, least: 500 * time.Millisecond, most: 15 * time.Second, node: nodeStopped},
}

// terminated is SIGTERM, which must end the process in order and in time, and
// after the pause a new process.
func terminated(ctx context.Context, w *worker, pause time.Duration) error {
	if err := w.terminate(); err != nil {
		return err
	}
	if err := rest(ctx, pause); err != nil {
		return err
	}
	return w.start()
}

// stopped is SIGSTOP and, after the pause, SIGCONT.
func stopped(ctx context.Context, w *worker, pause time.Duration) error {
	err := w.proc.cmd.Process.Signal(syscall.SIGSTOP)
	if err == nil {
		err = errors.Join(rest(ctx, pause), w.proc.cmd.Process.Signal(syscall.SIGCONT))
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil // it was just ending, and why is looked at elsewhere
	}
	return err
}

// cutOff lets nothing pass to the cluster, or from it. Connections stay as they
// are and new ones are accepted; when it is over they close, for what they lost
// is not made up for. If only answers are lost, requests have their effect and
// the worker cannot know.
func cutOff(requests, answers bool) func(context.Context, *worker, time.Duration) error {
	return func(ctx context.Context, w *worker, pause time.Duration) error {
		return w.path.with(ctx, "timeout", requests, answers, pause)
	}
}

// reset closes connections once something comes over them, new ones with a TCP reset.
func reset(ctx context.Context, w *worker, pause time.Duration) error {
	return w.path.with(ctx, "reset_peer", true, true, pause)
}

// refused closes all connections at once and refuses new ones.
func refused(ctx context.Context, w *worker, pause time.Duration) error {
	w.path.shut()
	err := rest(ctx, pause)
	return errors.Join(err, w.path.open())
}

// nodeKilled is kill -9 and, after the pause, a new process on the same data.
func nodeKilled(ctx context.Context, x *arena, node int, pause time.Duration) error {
	x.kafka.Kill(node)
	if err := x.reach(node, false); err != nil {
		return err
	}
	if err := rest(ctx, pause); err != nil {
		return err
	}
	if err := x.kafka.Start(node); err != nil {
		return err
	}
	// The others know it as there for some seconds yet: ask the node itself.
	if err := answers(ctx, x.kafka.Addrs()[node-1]); err != nil {
		return err
	}
	if err := x.kafka.Ready(ctx); err != nil {
		return err
	}
	return x.reach(node, true)
}

// answers waits until somebody listens at addr.
func answers(ctx context.Context, addr string) error {
	for {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if err := rest(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s: %w", addr, err)
		}
	}
}

// nodeStopped is SIGSTOP and, after the pause, SIGCONT. Above 9 s the
// controllers think it dead.
func nodeStopped(ctx context.Context, x *arena, node int, pause time.Duration) error {
	if err := x.kafka.Pause(node); err != nil {
		return fmt.Errorf("stop node %d: %w", node, err)
	}
	err := rest(ctx, pause)
	return errors.Join(err, x.kafka.Continue(node))
}

// rest waits for d, or returns why ctx ended.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

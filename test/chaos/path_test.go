package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// echo is a service that answers what it is asked, and tells of what reached it.
func echo(t *testing.T) (addr string, heard <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	lines := make(chan string, 10)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					lines <- string(buf[:n])
					if _, err := conn.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String(), lines
}

// pathTo makes a path to addr and returns it with the address of its near end.
func pathTo(t *testing.T, addr string) (*path, string) {
	t.Helper()
	p, err := newPath([]brokers.Door{{Proxy: "127.0.0.1:0", Listen: addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.shut)
	return p, p.proxies[0].Listen
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a word and returns the answer, or why none came in time.
func ask(conn net.Conn, word string, wait time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(word)); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

const (
	soon  = 10 * time.Second // nobody waits so long
	never = 100 * time.Millisecond
)

// during runs f while a fault is at work, and returns when the fault has healed.
func during(t *testing.T, hurt func(context.Context, *worker, time.Duration) error, p *path, ready func() bool, f func()) {
	t.Helper()
	ctx, heal := context.WithCancel(t.Context())
	healed := make(chan error, 1)
	go func() { healed <- hurt(ctx, &worker{path: p}, time.Hour) }()
	for !ready() {
		if ctx.Err() != nil {
			t.Fatal("the fault did not begin")
		}
	}
	f()
	heal()
	if err := <-healed; !errors.Is(err, context.Canceled) {
		t.Errorf("healed with %v, want nothing but the end of the fault", err)
	}
}

// poisoned says when a path has toxics on so many of its two directions.
func poisoned(p *path, n int) func() bool {
	return func() bool { return len(p.proxies[0].Toxics.GetToxicArray()) == n }
}

func TestNothingPassesAPathThatIsCutOffUntilItIsHealed(t *testing.T) {
	addr, heard := echo(t)
	p, near := pathTo(t, addr)
	old := dial(t, near)
	if answer, err := ask(old, "before", soon); err != nil || answer != "before" || <-heard != "before" {
		t.Fatalf("a path that is whole answers %q (%v)", answer, err)
	}
	during(t, cutOff(true, true), p, poisoned(p, 2), func() {
		for name, conn := range map[string]net.Conn{"old": old, "new": dial(t, near)} {
			if answer, err := ask(conn, "cut", never); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the %s connection answers %q (%v), want nothing", name, answer, err)
			}
		}
	})
	if answer, err := ask(old, "again", soon); err == nil {
		t.Errorf("a connection that lost bytes goes on with %q, want it closed", answer)
	}
	if answer, err := ask(dial(t, near), "after", soon); err != nil || answer != "after" {
		t.Errorf("a path that is healed answers %q (%v)", answer, err)
	}
	if word := <-heard; word != "after" {
		t.Errorf("%q has passed, want only what was asked after the path was healed", word)
	}
}

func TestRequestsPassAPathThatLosesAnswers(t *testing.T) {
	addr, heard := echo(t)
	p, near := pathTo(t, addr)
	during(t, cutOff(false, true), p, poisoned(p, 1), func() {
		if answer, err := ask(dial(t, near), "commit", never); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answered %q (%v), want nothing", answer, err)
		}
		if word := <-heard; word != "commit" {
			t.Errorf("%q has passed, want the request", word)
		}
	})
}

func TestConnectionsAreClosedByAPathThatResetsOrRefuses(t *testing.T) {
	addr, _ := echo(t)
	p, near := pathTo(t, addr)
	old := dial(t, near)
	if _, err := ask(old, "before", soon); err != nil {
		t.Fatal(err)
	}
	during(t, reset, p, poisoned(p, 2), func() {
		if answer, err := ask(old, "reset", soon); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a reset connection answers %q (%v), want it closed", answer, err)
		}
	})
	old = dial(t, near)
	if _, err := ask(old, "between", soon); err != nil {
		t.Fatal(err)
	}
	closed := func() bool {
		conn, err := net.Dial("tcp4", near)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}
	during(t, refused, p, closed, func() {
		if err := old.SetReadDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		if _, err := old.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the old connection: %v, want it closed", err)
		}
	})
	if answer, err := ask(dial(t, near), "after", soon); err != nil || answer != "after" {
		t.Errorf("a path that is healed answers %q (%v)", answer, err)
	}
}

func TestAPathThatIsOpenedStaysShutToANodeThatIsAway(t *testing.T) {
	addr, _ := echo(t)
	p, near := pathTo(t, addr)
	if err := p.node(0, false); err != nil {
		t.Fatal(err)
	}
	p.shut()
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp4", near); err == nil {
		conn.Close()
		t.Error("the node is away and its proxy accepts a connection")
	}
	if err := p.node(0, true); err != nil {
		t.Fatal(err)
	}
	if answer, err := ask(dial(t, near), "back", soon); err != nil || answer != "back" {
		t.Errorf("a node that is back answers %q (%v)", answer, err)
	}
}

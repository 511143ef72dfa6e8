// Package postgres starts a PostgreSQL server of its own from the machine's package,
// for tests of targets that are a database.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Require is the environment variable that turns "PostgreSQL cannot run here" from a
// skipped test into a failed one. Continuous integration sets it to 1.
const Require = "REQUIRE_POSTGRES"

// ErrUnavailable says that PostgreSQL cannot run on this machine. The message names
// what is missing.
var ErrUnavailable = errors.New("postgresql is not available on this machine")

const (
	upTimeout   = time.Minute // machines of continuous integration are slow
	downTimeout = 30 * time.Second
	superUser   = "recon"
)

// Server is a server on loopback with its data in a directory of its own. It writes
// as durably as it does by default: what it has committed outlives Kill.
type Server struct {
	dir      string
	bin      string
	port     int
	password string
	account  *syscall.Credential // whom it runs as; nil: us
	done     chan struct{}       // closed when the process has ended
	proc     *os.Process
}

// New starts a server for one test, or for the tests of one binary if tb is of
// TestMain's making, and removes it at the end. It skips the test where there is no
// PostgreSQL, see Require, and with -short.
func New(tb testing.TB) *Server {
	tb.Helper()
	if testing.Short() {
		tb.Skip("postgresql is left out by -short")
	}
	s, err := Start()
	if errors.Is(err, ErrUnavailable) && os.Getenv(Require) != "1" {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(s.log())
		}
		s.Remove()
	})
	return s
}

// Start makes a server and starts it. Call Remove at the end.
func Start() (*Server, error) {
	s := &Server{password: rand.Text()}
	var err error
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.account, err = account(); err != nil {
		return nil, err
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "recon-dlq-postgres-"); err != nil {
		return nil, err
	}
	if err := errors.Join(s.init(), s.Up()); err != nil {
		err = fmt.Errorf("start postgresql: %w\n%s", err, s.log())
		s.Remove()
		return nil, err
	}
	return s, nil
}

func (s *Server) init() error {
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte(s.password), 0o600); err != nil {
		return err
	}
	if s.account != nil {
		for _, path := range []string{s.dir, password} {
			if err := os.Chown(path, int(s.account.Uid), int(s.account.Gid)); err != nil {
				return err
			}
		}
	}
	cmd := exec.Command(filepath.Join(s.bin, "initdb"), "--pgdata", s.data(), "--username", superUser, "--pwfile", password,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	cmd.Dir = s.dir
	if s.account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Up starts the server on its data and waits until it answers.
func (s *Server) Up() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+s.dir, "-c", "shared_buffers=16MB", "-c", "max_connections=60")
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = dieWithUs(s.account)
	s.done = make(chan struct{})
	started := make(chan error)
	go func(done chan<- struct{}) {
		defer log.Close()
		// The death signal is tied to the thread that starts the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ends is of no interest, only that it has
		}
		close(done)
	}(s.done)
	if err := <-started; err != nil {
		return err
	}
	s.proc = cmd.Process
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-s.done:
			return errors.New("it has ended")
		case <-ctx.Done():
			return fmt.Errorf("it did not answer in time: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// DSN is the connection string of a super user.
func (s *Server) DSN() string {
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/postgres?sslmode=disable", superUser, s.password, s.port)
}

// Down stops the server in order; clients are thrown out.
func (s *Server) Down() { s.end(syscall.SIGINT) }

// Kill ends the server at once: all of its processes end without a word.
func (s *Server) Kill() { s.end(syscall.SIGQUIT) }

func (s *Server) end(signal syscall.Signal) {
	if s.proc == nil {
		return
	}
	_ = s.proc.Signal(signal) // an error: it has ended
	select {
	case <-s.done:
	case <-time.After(downTimeout):
		_ = s.proc.Kill()
		<-s.done
	}
	s.proc = nil
}

// Remove ends the server and removes its data.
func (s *Server) Remove() {
	s.Kill()
	os.RemoveAll(s.dir)
}

// log is the end of what the server has written.
func (s *Server) log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(text[max(0, len(text)-4096):])
}

// binaries is the directory of the newest PostgreSQL that the machine has: Debian's
// package keeps it out of PATH.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", fmt.Errorf("%w: install it (Debian: apt-get install postgresql)", ErrUnavailable)
}

// account is whom the server runs as: it refuses to be root.
func account() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("%w: it does not run as root, and there is no user postgres or nobody", ErrUnavailable)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// target is the service that fixes discrepancies. It answers by a record's fate
// and remembers every call.
type target struct {
	now  func() time.Time
	most int // calls it remembers. Past that it refuses to answer, and the run stands still and fails: a loop was found

	mu     sync.Mutex
	calls  []call       // guarded by mu
	called map[int]bool // records that have been called; guarded by mu
}

// call is one call as the target saw it.
type call struct {
	record  string // recon-id
	number  int    // which record of the run it is
	attempt int
	at      time.Time
}

func (t *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		t.tell(w)
		return
	}
	at := t.now()
	attempt, err := strconv.Atoi(r.Header.Get("ce-reconattempt"))
	var n int
	if _, scanErr := fmt.Sscanf(r.Header.Get("ce-subject"), idFormat, &n); err != nil || scanErr != nil {
		http.Error(w, "not a record of this run", http.StatusTeapot)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // so that the connection is reused
	t.mu.Lock()
	full, again := len(t.calls) >= t.most, t.called[n]
	if !full {
		t.calls = append(t.calls, call{record: r.Header.Get("Idempotency-Key"), number: n, attempt: attempt, at: at})
		t.called[n] = true
	}
	t.mu.Unlock()
	if full {
		http.Error(w, "too many calls to remember", http.StatusServiceUnavailable)
		return
	}
	if rest(r.Context(), time.Duration(n%10)*time.Millisecond) != nil {
		return // nobody listens any more
	}
	switch f := fateOf(n); {
	case f == permanent:
		http.Error(w, "the account is closed", http.StatusUnprocessableEntity)
	case f == failsOnce && !again:
		http.Error(w, "the database is locked", http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// tell writes all calls so far, one a line.
func (t *target) tell(w io.Writer) {
	t.mu.Lock()
	calls := t.calls[:len(t.calls):len(t.calls)]
	t.mu.Unlock()
	b := bufio.NewWriter(w)
	for _, c := range calls {
		fmt.Fprintf(b, "%s %d %d %d\n", c.record, c.number, c.attempt, c.at.UnixNano())
	}
	_ = b.Flush() // who asked sees that it is cut
}

// targetMain is the target's process. It serves on the listener it was given as
// file 3, until it is told to end. The child variable says how many calls it remembers.
func targetMain() int {
	most, err := strconv.Atoi(os.Getenv(childVariable))
	if err != nil {
		fmt.Fprintf(os.Stderr, "target: %s: %v\n", childVariable, err)
		return 1
	}
	ln, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "target: %v\n", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	srv := &http.Server{Handler: &target{now: time.Now, most: most, called: map[int]bool{}}, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintf(os.Stderr, "target: %v\n", err)
		return 1
	}
	return 0
}

// startTarget starts the target's process, which is this program again, and
// returns its URL.
func startTarget(log string, records int) (p *child, url string, err error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	defer ln.Close()
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+strconv.Itoa(10*records+10_000))
	cmd.ExtraFiles = []*os.File{file}
	if p, err = startChild(cmd, log); err != nil {
		return nil, "", err
	}
	return p, "http://" + ln.Addr().String() + "/remediate", nil
}

// told asks the target for its calls, one a line.
func told(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the target for its calls: %w", err)
	}
	return resp.Body, nil
}

// saveCalls writes the target's calls to a file.
func saveCalls(url, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	body, err := told(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, body)
	return errors.Join(err, file.Close())
}

// callsOf asks the target for its calls, by recon-id.
func callsOf(ctx context.Context, url string) (map[string][]invariants.Call, error) {
	body, err := told(ctx, url)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	calls := make(map[string][]invariants.Call)
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		var id string
		var number, attempt int
		var ns int64
		if _, err := fmt.Sscan(lines.Text(), &id, &number, &attempt, &ns); err != nil {
			return nil, fmt.Errorf("read the target's calls: %w", err)
		}
		calls[id] = append(calls[id], invariants.Call{At: time.Unix(0, ns), Attempt: attempt})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the target's calls: %w", err)
	}
	return calls, nil
}

// runAgain counts the calls beyond the first of each attempt.
func runAgain(calls map[string][]invariants.Call) (again int) {
	for _, cs := range calls {
		attempts := make(map[int]bool, 2)
		for _, c := range cs {
			if attempts[c.Attempt] {
				again++
			}
			attempts[c.Attempt] = true
		}
	}
	return again
}

package remedy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// answers is the beginning of a program: say writes an answer to the last request.
const answers = `say() { printf '{"id":"%s","status":"%s","message":"%s"}\n' "$id" "$1" "$2"; }
next() { IFS= read -r line || return 1; id=${line#*'"id":"'}; id=${id%%'"'*}; }
`

// program is an exec target that runs a shell script. It dies with the test.
func program(t *testing.T, script string, change ...func(*ExecOptions)) *Exec {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the programs of this test are shell scripts")
	}
	o := ExecOptions{Command: []string{"sh", "-c", answers + script}, Timeout: patience}
	for _, f := range change {
		f(&o)
	}
	e, err := NewExec(o)
	if err != nil {
		t.Fatal(err)
	}
	e.grace = time.Second
	t.Cleanup(e.Close)
	return e
}

func within(d time.Duration) func(*ExecOptions) { return func(o *ExecOptions) { o.Timeout = d } }

// read gives the words of a file once it has as many.
func read(t *testing.T, file string, words int) []string {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		data, _ := os.ReadFile(file)
		if f := strings.Fields(string(data)); len(f) >= words {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %q, want %d words", file, data, words)
		}
		<-time.After(time.Millisecond)
	}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s is still there: %s", pid, stat)
		}
		<-time.After(time.Millisecond)
	}
}

func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("process groups are for Linux")
	}
}

func TestEachStatusOfAProgramHasItsOutcome(t *testing.T) {
	for line, want := range map[string]deadletter.Outcome{
		`"status":"ok"`:                                    {Class: deadletter.Resolved},
		`"status":"OK","message":"fixed"`:                  {Class: deadletter.Resolved},
		`"status":"permanent","message":"no such account"`: {Class: deadletter.Permanent, Cause: "rejected", Message: "no such account"},
		`"status":"failed","message":"locked"`:             {Class: deadletter.Suspect, Cause: "failed", Message: "locked"},
		`"status":"retry"`:                                 {Class: deadletter.InProgress, Cause: "in_progress"},
		`"status":"busy"`:                                  {Class: deadletter.Busy, Cause: "busy"},
		`"status":"busy","retry_after":1.5`:                {Class: deadletter.Busy, Cause: "busy", RetryAfter: 1500 * time.Millisecond},
		`"status":"busy","retry_after":-1`:                 {Class: deadletter.Busy, Cause: "busy"},
		`"status":"busy","retry_after":1e300`:              {Class: deadletter.Busy, Cause: "busy", RetryAfter: maxRetryAfter},
		`"status":"unavailable"`:                           {Class: deadletter.Unavailable, Cause: "unavailable"},
		`"status":"done"`:                                  {Class: deadletter.Suspect, Cause: "protocol", Message: `the answer has no status that exists, but "done"`},
		`"status":""`:                                      {Class: deadletter.Suspect, Cause: "protocol", Message: `the answer has no status that exists, but ""`},
		`"message":"no status"`:                            {Class: deadletter.Suspect, Cause: "protocol", Message: `the answer has no status that exists, but ""`},
		`"status":"ok","unknown":{"a":[1]}`:                {Class: deadletter.Resolved},
	} {
		t.Run(line, func(t *testing.T) {
			got, err := said([]byte(`{"id":"`+record().ID+`",`+line+"}\n"), record().ID)
			if err != nil || got != want {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestTheMessageOfAProgramIsCut(t *testing.T) {
	answer := `{"id":"a","status":"failed","message":"` + strings.Repeat("é", deadletter.MaxErrorBytes) + `"}`
	o, err := said([]byte(answer+"\n"), "a")
	if err != nil || len(o.Message) != deadletter.MaxErrorBytes {
		t.Errorf("message of %d bytes, %v", len(o.Message), err)
	}
}

func TestAProgramGetsOneLineWithTheValueAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		want  string // behind the attributes
	}{
		"numbers, order and duplicates are kept": {`{"b":1.0,"a":1e2,"a":"\u00e9<&>"}`, `"value":{"b":1.0,"a":1e2,"a":"\u00e9<&>"}`},
		"white space between tokens is not":      {"{\r\n\t\"a\" : \" x \\n\" }\n", `"value":{"a":" x \n"}`},
		"what is no JSON is encoded":             {"\xffraw\n", `"value_base64":"/3Jhdwo="`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "line")
			e := program(t, `while next; do printf '%s\n' "$line" >'`+file+`'; say ok; done`)
			r := record()
			r.Value = []byte(c.value)
			if o := e.Remediate(t.Context(), r); o.Class != deadletter.Resolved {
				t.Fatalf("outcome %+v", o)
			}
			got, err := os.ReadFile(file)
			want := `{"id":"0123456789abcdef0123456789abcdef","attempt":2,"enqueued_ms":1772366400123,` + c.want + "}\n"
			if err != nil || string(got) != want {
				t.Errorf("sent %s%v, want %s", got, err, want)
			}
		})
	}
	if got, want := string(request(&deadletter.Record{ID: "a"})), "{\"id\":\"a\",\"attempt\":0}\n"; got != want {
		t.Errorf("without value and time: %s, want %s", got, want)
	}
}

func TestAChildServesOneCallAfterTheOther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	e := program(t, `echo $$ >>'`+file+`'; while next; do say ok; done`)
	for range 5 {
		if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
			t.Fatalf("outcome %+v", o)
		}
	}
	if pids := read(t, file, 1); len(pids) != 1 {
		t.Errorf("five calls, one after the other, were served by %v", pids)
	}
}

func TestCallsAtATimeHaveChildrenOfTheirOwn(t *testing.T) {
	const calls = 5
	dir := t.TempDir()
	e := program(t, `while next; do touch '`+dir+`'/$$; while [ ! -e '`+dir+`'/go ]; do sleep 0.01; done; say ok; done`)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			r := record()
			r.ID = fmt.Sprint("r", i)
			if o := e.Remediate(t.Context(), r); o.Class != deadletter.Resolved {
				t.Errorf("outcome %+v", o)
			}
		})
	}
	deadline := time.Now().Add(patience)
	for at := 0; at < calls; <-time.After(time.Millisecond) {
		entries, err := os.ReadDir(dir)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of %d children are at work: %v", at, calls, err)
		}
		at = len(entries)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if len(e.idle) != calls {
		t.Errorf("%d children are idle after %d calls", len(e.idle), calls)
	}
}

func TestATimeoutKillsTheChildAndWhatItHasForked(t *testing.T) {
	t.Parallel()
	onLinux(t)
	file := filepath.Join(t.TempDir(), "pids")
	e := program(t, `sleep 600 & (sleep 601 & echo $! >>'`+file+`'); echo $! $$ >>'`+file+`'; echo "still working" >&2; next; wait`, within(time.Second))
	o := e.Remediate(t.Context(), record())
	if o.Class != deadletter.Suspect || o.Cause != CauseTimeout || o.Message != "no answer in time: still working" {
		t.Errorf("got %+v", o)
	}
	for _, pid := range read(t, file, 3) {
		gone(t, pid)
	}
}

func TestWhatACrashedChildHasForkedDiesWithIt(t *testing.T) {
	onLinux(t)
	file := filepath.Join(t.TempDir(), "pid")
	// It holds standard error only, so that the end of the child is seen.
	e := program(t, `next; say ok; sleep 600 >&- <&- & echo $! >'`+file+`'; next; exit 3`)
	e.Remediate(t.Context(), record())
	if o := e.Remediate(t.Context(), record()); o.Cause != CauseCrashed {
		t.Errorf("got %+v", o)
	}
	gone(t, read(t, file, 1)[0])
}

func TestAProcessThatHasLeftTheGroupHoldsNothingUp(t *testing.T) {
	t.Parallel()
	onLinux(t)
	file := filepath.Join(t.TempDir(), "pid")
	e := program(t, `setsid sh -c 'echo $$ >'"'`+file+`'"'; exec sleep 600' & next; wait`, within(500*time.Millisecond))
	began := time.Now()
	o := e.Remediate(t.Context(), record())
	if o.Cause != CauseTimeout {
		t.Errorf("got %+v", o)
	}
	e.Close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	pid, _ := strconv.Atoi(read(t, file, 1)[0])
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

func TestAChildThatEndsWithoutAnAnswerIsTheRecordsFaultOnlyIfItHasWorkedBefore(t *testing.T) {
	const dies = `next || exit; echo "KeyError: 'amount'" >&2; exit 3`
	for name, c := range map[string]struct {
		script  string
		class   deadletter.Class
		message string
	}{
		"it never worked":      {dies, deadletter.Unavailable, "the program ended without an answer: exit status 3: KeyError: 'amount'"},
		"it worked":            {"next; say ok; " + dies, deadletter.Suspect, "the program ended without an answer: exit status 3: KeyError: 'amount'"},
		"it was killed":        {"next; say ok; next; kill -SEGV $$", deadletter.Suspect, "the program ended without an answer: signal: segmentation fault"},
		"it ends by itself":    {"next; say ok; next", deadletter.Suspect, "the program ended without an answer: exit status 0"},
		"it closes its output": {"next; say ok; next; exec >&-; while :; do sleep 600; done", deadletter.Suspect, "the program ended without an answer: signal: killed"},
		"an answer is cut off": {`next; say ok; next; printf '{"id":"%s"' "$id"`, deadletter.Suspect, "the program ended without an answer: exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := program(t, c.script)
			o := e.Remediate(t.Context(), record())
			if c.class == deadletter.Suspect {
				if o.Class != deadletter.Resolved {
					t.Fatalf("the first call: %+v", o)
				}
				o = e.Remediate(t.Context(), record())
			}
			if o.Class != c.class || o.Cause != CauseCrashed || !strings.HasPrefix(o.Message, c.message) {
				t.Errorf("got %+v, want %q", o, c.message)
			}
		})
	}
}

func TestWhatIsNoAnswerIsAProtocolFaultAndTheProgramIsStartedAgain(t *testing.T) {
	for name, script := range map[string]string{
		"a banner":             `echo "ready"; next`,
		"an empty line":        `next; echo`,
		"a traceback":          `next; echo "Traceback (most recent call last):"`,
		"another record's id":  `next; id=x; say ok`,
		"no id":                `next; echo '{"status":"ok"}'`,
		"a list":               `next; echo '[]'`,
		"null":                 `next; echo null`,
		"a number as a status": `next; echo '{"id":"'$id'","status":1}'`,
		"half an object":       `next; echo '{"id":"'$id'","status":"ok"'`,
		"a long line":          `next; head -c 70000 /dev/zero | tr '\0' x; echo`,
		"10 GB without an end": `next; head -c 10000000000 /dev/zero`,
		"10 GB in lines":       `next; yes | head -c 10000000000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pids := filepath.Join(t.TempDir(), "pids")
			e := program(t, `echo $$ >>'`+pids+`'; `+script+`; sleep 600`)
			for i := 1; i <= 2; i++ {
				o := e.Remediate(t.Context(), record())
				if o.Class != deadletter.Suspect || o.Cause != CauseProtocol || o.Message == "" {
					t.Errorf("got %+v", o)
				}
				if got := read(t, pids, i); len(got) != i {
					t.Errorf("%d calls were served by %v", i, got)
				}
			}
		})
	}
}

func TestAStatusThatDoesNotExistEndsNoChild(t *testing.T) {
	e := program(t, `next; say fixed; next; say ok`)
	if o := e.Remediate(t.Context(), record()); o.Cause != CauseProtocol {
		t.Errorf("got %+v", o)
	}
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Errorf("got %+v", o)
	}
}

func TestAChildThatDripsItsAnswerIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	e := program(t, `next; while printf ' '; do sleep 0.02; done`, within(300*time.Millisecond))
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Suspect || o.Cause != CauseTimeout {
		t.Errorf("got %+v", o)
	}
}

func TestAChildThatDoesNotReadIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	e := program(t, `sleep 600`, within(300*time.Millisecond))
	r := record()
	r.Value = []byte(`"` + strings.Repeat("x", 1<<20) + `"`) // more than a pipe takes
	if o := e.Remediate(t.Context(), r); o.Class != deadletter.Suspect || o.Cause != CauseTimeout {
		t.Errorf("got %+v", o)
	}
}

func TestALargeRecordIsServed(t *testing.T) {
	t.Parallel()
	e := program(t, `while next; do say ok; done`)
	r := record()
	r.Value = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	if o := e.Remediate(t.Context(), r); o.Class != deadletter.Resolved {
		t.Errorf("got %+v", o)
	}
}

func TestACallThatTheWorkerGivesUpIsStoppedAndItsChildKilled(t *testing.T) {
	onLinux(t)
	file := filepath.Join(t.TempDir(), "pid")
	e := program(t, `next; echo $$ >'`+file+`'; while :; do sleep 600; done`)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan deadletter.Outcome)
	go func() { got <- e.Remediate(ctx, record()) }()
	pid := read(t, file, 1)[0]
	cancel()
	if o := <-got; o.Class != deadletter.Stopped {
		t.Errorf("got %+v", o)
	}
	gone(t, pid)
	if o := e.Remediate(ctx, record()); o.Class != deadletter.Stopped {
		t.Errorf("a call that had not begun: %+v", o)
	}
}

func TestADeadlineOfTheCallerIsATimeout(t *testing.T) {
	t.Parallel()
	e := program(t, `next; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if o := e.Remediate(ctx, record()); o.Class != deadletter.Suspect || o.Cause != CauseTimeout {
		t.Errorf("got %+v", o)
	}
}

func TestAnIdleChildThatHasEndedCostsNoRecordAnything(t *testing.T) {
	t.Parallel()
	e := program(t, `next; say ok`)
	for range 3 {
		if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
			t.Fatalf("got %+v", o)
		}
		<-e.idle[0].done
	}
}

func TestAnIdleChildThatSpeaksIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	e := program(t, `next; say ok; echo unasked; sleep 600`)
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Fatalf("got %+v", o)
	}
	deadline := time.Now().Add(patience)
	for e.idle[0].idled() == nil { // take asks the same
		if time.Now().After(deadline) {
			t.Fatal("what it says is not noticed")
		}
		<-time.After(time.Millisecond)
	}
}

func TestIdleChildrenAreEndedByTheEndOfTheirInput(t *testing.T) {
	for name, end := range map[string]func(e *Exec){
		"after a while": func(e *Exec) {
			e.mu.Lock()
			c := e.idle[0]
			e.mu.Unlock()
			c.timer.Reset(0)
			<-c.done
		},
		"by Close": (*Exec).Close,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bye")
			e := program(t, `while next; do say ok; done; echo bye >'`+file+`'`)
			if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
				t.Fatalf("got %+v", o)
			}
			end(e)
			if got := read(t, file, 1); got[0] != "bye" {
				t.Errorf("its last words: %v", got)
			}
			if len(e.idle) != 0 {
				t.Errorf("%d children are idle", len(e.idle))
			}
		})
	}
}

func TestAChildThatDoesNotEndWithItsInputIsKilled(t *testing.T) {
	onLinux(t)
	file := filepath.Join(t.TempDir(), "pid")
	e := program(t, `next; echo $$ >'`+file+`'; say ok; while :; do sleep 600; done`)
	e.grace = 50 * time.Millisecond
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Fatalf("got %+v", o)
	}
	e.Close()
	gone(t, read(t, file, 1)[0])
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseStart {
		t.Errorf("a call after Close: %+v", o)
	}
}

// clock is a clock that stands still but for waits, which pass at once and are noted.
type clock struct {
	mu    sync.Mutex
	at    time.Time
	waits []time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) after(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
	c.waits = append(c.waits, d)
	passed := make(chan time.Time)
	close(passed)
	return passed
}

func TestAProgramThatEndsAgainAndAgainIsStartedLessAndLessOften(t *testing.T) {
	c := &clock{at: now}
	good := filepath.Join(t.TempDir(), "good")
	e := program(t, `[ -e '`+good+`' ] && { next; say ok; }; next || exit; exit 1`, func(o *ExecOptions) { o.Now, o.Timeout = c.now, 20*time.Second })
	e.after = c.after
	for range 9 {
		if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseCrashed {
			t.Fatalf("got %+v", o)
		}
	}
	var want []time.Duration
	for d := restartMin; len(want) < 8; d *= 2 {
		want = append(want, d)
	}
	if fmt.Sprint(c.waits) != fmt.Sprint(want) {
		t.Errorf("waited %v, want %v", c.waits, want)
	}
	// The next wait is longer than a call may last: it is not begun.
	o := e.Remediate(t.Context(), record())
	if o.Class != deadletter.Unavailable || o.Cause != CauseStart || !strings.Contains(o.Message, "25.6s") {
		t.Errorf("got %+v", o)
	}
	for range 5 {
		c.after(restartMax)
		e.Remediate(t.Context(), record())
	}
	if e.wait != restartMax {
		t.Errorf("the wait grows to %s, want %s", e.wait, restartMax)
	}

	// An answer begins anew.
	if err := os.WriteFile(good, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.after(restartMax)
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Fatalf("got %+v", o)
	}
	c.waits = nil
	e.Remediate(t.Context(), record()) // its child ends
	if o := e.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Fatalf("got %+v", o)
	}
	if fmt.Sprint(c.waits) != fmt.Sprint([]time.Duration{restartMin}) {
		t.Errorf("after an answer and one failure: waited %v, want %s", c.waits, restartMin)
	}
}

func TestChildrenThatEndTogetherAreOneFailure(t *testing.T) {
	c := &clock{at: now}
	e := program(t, `next; exit 1`, func(o *ExecOptions) { o.Now = c.now })
	e.after = c.after
	var children []*child
	for range 10 {
		c, err := e.start()
		if err != nil {
			t.Fatal(err)
		}
		children = append(children, c)
	}
	for _, c := range children {
		c.end()
		e.failed(c, errEnded)
	}
	if e.wait != restartMin {
		t.Errorf("ten children that were there at the same time: wait %s, want %s", e.wait, restartMin)
	}
}

func TestAProgramThatIsNoLongerThereIsUnavailable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fix.sh")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := program(t, "", func(o *ExecOptions) { o.Command = []string{file} })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	o := e.Remediate(t.Context(), record())
	if o.Class != deadletter.Unavailable || o.Cause != CauseStart || !strings.Contains(o.Message, "no such file") {
		t.Errorf("got %+v", o)
	}
}

func TestStandardErrorIsBoundedAndToldOfItsOwnCallOnly(t *testing.T) {
	e := program(t, `next; echo "first secret" >&2; say ok; next; head -c 1000000 /dev/zero | tr '\0' x >&2; printf 'the \377end' >&2; exit 1`)
	e.Remediate(t.Context(), record())
	o := e.Remediate(t.Context(), record())
	if strings.Contains(o.Message, "first secret") || !strings.HasSuffix(o.Message, "xxxthe end") {
		t.Errorf("message %q", o.Message)
	}
	if len(o.Message) > deadletter.MaxErrorBytes || !utf8.ValidString(o.Message) {
		t.Errorf("message of %d bytes", len(o.Message))
	}
}

func TestWhatAProgramWritesReachesNoLog(t *testing.T) {
	for name, script := range map[string]string{
		"a crash":  `next || exit; echo secret >&2; exit 1`,
		"garbage":  `next || exit; echo secret; sleep 600`,
		"a status": `next || exit; say secret`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			e := program(t, script, func(o *ExecOptions) {
				o.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			for range 3 {
				if o := e.Remediate(t.Context(), record()); o.Class == deadletter.Resolved {
					t.Errorf("got %+v", o)
				}
			}
			e.Close()
			if strings.Contains(log.String(), "secret") {
				t.Errorf("logged %s", log.String())
			}
			if name != "a status" && !strings.Contains(log.String(), "an exec handler failed") {
				t.Errorf("nothing is told of a failure: %s", log.String())
			}
		})
	}
}

func TestAProgramHasTheEnvironmentItIsGiven(t *testing.T) {
	e := program(t, `while next; do say permanent "$A-$B"; done`, func(o *ExecOptions) { o.Env = []string{"A=1", "PATH=" + os.Getenv("PATH")} })
	t.Setenv("B", "2")
	if o := e.Remediate(t.Context(), record()); o.Message != "1-" {
		t.Errorf("got %+v", o)
	}
}

func TestNewExecNamesEveryFault(t *testing.T) {
	for name, c := range map[string]struct {
		o    ExecOptions
		want []string
	}{
		"nothing":              {ExecOptions{}, []string{"command: empty", "timeout:"}},
		"an empty program":     {ExecOptions{Command: []string{"", "x"}, Timeout: 1}, []string{"command: empty"}},
		"no such program":      {ExecOptions{Command: []string{"no-such-program"}, Timeout: 1}, []string{"command: ", "no-such-program", "install it"}},
		"not executable":       {ExecOptions{Command: []string{"./exec_test.go"}, Timeout: 1}, []string{"command: ", "permission"}},
		"a zero byte":          {ExecOptions{Command: []string{"sh", "a\x00b"}, Timeout: 1}, []string{"command: must not contain a zero byte"}},
		"the timeout is below": {ExecOptions{Command: []string{"sh"}, Timeout: -1}, []string{"timeout:"}},
	} {
		e, err := NewExec(c.o)
		if err == nil || e != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
	}
}

const orphanVariable = "RECON_DLQ_TEST_ORPHAN"

func TestAChildDiesWithAWorkerThatIsKilled(t *testing.T) {
	onLinux(t)
	if file := os.Getenv(orphanVariable); file != "" {
		program(t, `next; echo $$ >'`+file+`'; while :; do sleep 600; done`).Remediate(t.Context(), record())
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	worker := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	worker.Env = append(os.Environ(), orphanVariable+"="+file)
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	pid := read(t, file, 1)[0]
	_ = worker.Process.Kill()
	_ = worker.Wait()
	gone(t, pid)
}

func TestManyCallsAtATimeGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	e := program(t, `while next; do case $id in *7) echo "boom $id" >&2; exit 1;; *3) say permanent "$id";; *) say ok;; esac; done`)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := record()
			r.ID = strconv.Itoa(i)
			o := e.Remediate(t.Context(), r)
			switch i % 10 {
			case 3:
				if o.Class != deadletter.Permanent || o.Message != r.ID {
					t.Errorf("record %d: %+v", i, o)
				}
			case 7:
				if o.Cause != CauseCrashed || !strings.HasSuffix(o.Message, "boom "+r.ID) {
					t.Errorf("record %d: %+v", i, o)
				}
			default:
				if o.Class != deadletter.Resolved {
					t.Errorf("record %d: %+v", i, o)
				}
			}
		})
	}
	wg.Wait()
}

func TestARequestIsJSONWhateverTheRecordHolds(t *testing.T) {
	r := record()
	r.ID = "a\"\n\xff"
	line := request(r)
	if bytes.Count(line, []byte("\n")) != 1 || !json.Valid(line) {
		t.Errorf("the line is %q", line)
	}
}

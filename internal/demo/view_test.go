package demo

import (
	"bytes"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files anew")

func outageState() State {
	return State{
		Elapsed: 9400 * time.Millisecond, Total: 1200, Sent: 1002, Resolved: 420, Poison: 4, Retried: 62, Depth: 578,
		Held: 516, Waiting: 62, HeldPeak: 530, OldestWaiting: 1200 * time.Millisecond, OldestHeld: 8800 * time.Millisecond,
		Queues: []Queue{{"recon.dlq", 516}, {"retry 1s", 60}, {"retry 2s", 2}, {"retry 5s", 0}},
		Calls:  490, Failed: 62, NotCounted: 6, Joined: true, BackIn: 2 * time.Second, Breaker: "open", Told: 4,
		Rates: []float64{0, 60, 140, 150, 145, 150, 80, 0, 0, 0}, MetricsAt: "127.0.0.1:41781", Config: "/tmp/recon-dlq-1976125388/demo.yaml",
	}
}

func settledState() State {
	s := outageState()
	s.Elapsed, s.Sent, s.Resolved, s.Poison, s.Retried, s.Depth, s.Held, s.Waiting = 22*time.Second, 1200, 1183, 17, 181, 0, 0, 0
	s.OldestWaiting, s.OldestHeld, s.BackIn, s.TargetUp, s.Breaker, s.Told, s.Settled = 0, 0, 0, true, "closed", 17, true
	for i := range s.Queues {
		s.Queues[i].Depth = 0
	}
	return s
}

var someLog = []string{
	"a discrepancy needs people: d-000078, currency_unknown, permanent, attempt 1",
	"target is thought down: its records are held and not counted, refused",
}

func TestTheViewLooksAsItWasAccepted(t *testing.T) {
	for _, c := range []struct {
		name          string
		state         State
		width, height int
	}{
		{"outage-80x24", outageState(), 80, 24},
		{"outage-120x40", outageState(), 120, 40},
		{"settled-80x24", settledState(), 80, 24},
		{"start-80x24", State{Total: 1200, Sent: 480, TargetUp: true}, 80, 24},
	} {
		got := ansi.Strip(render(c.state, someLog, "bin/recon-dlq", false, c.width, c.height)) + "\n"
		file := filepath.Join("testdata", c.name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not as in %s (go test -update writes it anew):\n%s", c.name, file, got)
		}
	}
}

func TestTheViewFitsAnyTerminalAndAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 5000)
		s := State{
			Total: n.Draw(t, "total"), Sent: n.Draw(t, "sent"), Resolved: n.Draw(t, "resolved"), Poison: n.Draw(t, "poison"), Depth: n.Draw(t, "depth"),
			Held: n.Draw(t, "held"), Queues: []Queue{{"recon.dlq", n.Draw(t, "queued")}, {"retry 5s", n.Draw(t, "tier")}},
			Rates: rapid.SliceOf(rapid.Float64Range(0, 1e4)).Draw(t, "rates"), Settled: rapid.Bool().Draw(t, "settled"), TargetUp: rapid.Bool().Draw(t, "up"),
		}
		width, height := rapid.IntRange(0, 200).Draw(t, "width"), rapid.IntRange(0, 60).Draw(t, "height")
		logs := rapid.SliceOf(rapid.StringMatching(`[a-zäß漢 ]{0,120}`)).Draw(t, "logs")
		lines := strings.Split(render(s, logs, "recon-dlq", rapid.Bool().Draw(t, "exit"), width, height), "\n")
		if len(lines) > max(1, height) {
			t.Errorf("%d lines on %d", len(lines), height)
		}
		for _, l := range lines {
			if w := ansi.StringWidth(l); w > width {
				t.Errorf("a line of %d cells on %d: %q", w, width, l)
			}
		}
	})
}

func TestBarsShowWhatIsThereAtAll(t *testing.T) {
	s := State{Total: 100000, Resolved: 99990, Poison: 1, Held: 1, Depth: 2}
	got := ansi.Strip(progressBar(s, 40))
	for _, glyph := range []string{"█", "▆"} {
		if !strings.Contains(got, glyph) {
			t.Errorf("%s is not in %q", glyph, got)
		}
	}
	if w := ansi.StringWidth(got); w != 40 {
		t.Errorf("%q has %d cells", got, w)
	}
	for n, want := range map[int]string{0: "    ", 1: "▏   ", 50: "██  ", 56: "██▏ ", 100: "████"} {
		if got := bar(n, 100, 4); got != want {
			t.Errorf("%d of 100 is %q, want %q", n, got, want)
		}
	}
	if got := sparkline([]float64{9, 0, 5, 10}, 3); got != "▁▅█" {
		t.Errorf("the last three values are %q", got)
	}
	if got := sparkline(nil, 3); got != "   " {
		t.Errorf("no values are %q", got)
	}
}

func TestTheViewQuitsByKeyAndTakesStatesAndSizes(t *testing.T) {
	var m tea.Model = model{logs: &ring{}}
	m, _ = m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m, _ = m.Update(outageState())
	if v := m.View(); !v.AltScreen || !strings.Contains(v.Content, "The target is down for 2 s more") {
		t.Errorf("it shows\n%s", v.Content)
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}, {Code: tea.KeyEscape}} {
		_, cmd := m.Update(key)
		if cmd == nil {
			t.Errorf("%s does nothing", key)
			continue
		}
		if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%s does not quit", key)
		}
	}
	if _, cmd := m.Update(tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil {
		t.Error("x does something")
	}
}

// Colours are taken out by the program that draws: without them the view says the same.
func TestWithoutColoursTheViewHasNone(t *testing.T) {
	styled := render(outageState(), someLog, "recon-dlq", false, 80, 24)
	var out bytes.Buffer
	w := colorprofile.NewWriter(&out, []string{"TERM=xterm-256color", "NO_COLOR=1", "TTY_FORCE=1"})
	if _, err := w.WriteString(styled); err != nil {
		t.Fatal(err)
	}
	for _, colour := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[36m"} {
		if !strings.Contains(styled, colour) {
			t.Errorf("the view has no %q", colour)
		}
		if strings.Contains(out.String(), colour) {
			t.Errorf("with NO_COLOR there is %q", colour)
		}
	}
}

func TestThereIsALiveViewOnTerminalsOnly(t *testing.T) {
	if live(strings.NewReader(""), &bytes.Buffer{}, nil) {
		t.Error("a buffer is taken for a terminal")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if live(null, null, nil) {
		t.Error("the null device is taken for a terminal")
	}
}

func TestEachMomentHasItsSentence(t *testing.T) {
	up := State{Joined: true, TargetUp: true, Breaker: "closed", Total: 10, Sent: 10}
	for _, c := range []struct {
		change func(*State)
		want   string
	}{
		{func(s *State) { s.Joined = false }, "joins its group"},
		{func(s *State) { s.TargetUp = false; s.BackIn = 3 * time.Second }, "down for 3 s more: records are held, no attempt is counted"},
		{func(s *State) { s.Breaker = "open"; s.Back = true }, "The target is back"},
		{func(s *State) { s.Breaker = "open" }, "thought down until a probe succeeds"},
		{func(s *State) { s.Sent = 5; s.Depth = 3 }, "Discrepancies arrive"},
		{func(s *State) { s.Depth = 3; s.Waiting = 3 }, "wait in their tiers"},
		{func(s *State) { s.Depth = 3; s.Waiting = 1 }, "All have arrived"},
		{func(*State) {}, "counted over all topics"},
		{func(s *State) { s.Settled = true }, "every record was counted"},
		{func(s *State) { s.Settled = true; s.Depth = 1 }, "more has arrived"},
	} {
		s := up
		c.change(&s)
		if got := s.now(); !strings.Contains(got, c.want) {
			t.Errorf("%+v is %q, want %q", s, got, c.want)
		}
		if n := len(s.now()); n > 78 {
			t.Errorf("%q has %d cells", s.now(), n)
		}
	}
}

func TestALogLineIsShortAndSaysWhatPeopleNeed(t *testing.T) {
	r := &ring{}
	log := slog.New(&brief{write: r.add}).With("client", "demo")
	log.Debug("never seen")
	log.Info("target answers again", "target", "ledger")
	log.WithGroup("x").Warn("a discrepancy needs people", slog.Group("discrepancy", "recon_id", "0f", "discrepancy_id", "d-1", "reason", "permanent", "attempt", 1))
	want := []string{"target answers again", "a discrepancy needs people: d-1, permanent, attempt 1"}
	if got := r.last(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log is %q", got)
	}
	for range 2 * keepLines {
		log.Info("more")
	}
	if n := len(r.last()); n != keepLines {
		t.Errorf("%d lines are kept", n)
	}
}

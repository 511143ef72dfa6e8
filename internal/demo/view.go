package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"

	"github.com/recon-dlq/recon-dlq/policy"
)

// live says whether there is a terminal for a live view: one that shows it, and
// one that keys come from.
func live(in io.Reader, out io.Writer, env []string) bool {
	for _, e := range env {
		if e == "TERM=dumb" {
			return false
		}
	}
	isTerminal := func(v any) bool {
		f, ok := v.(term.File)
		return ok && term.IsTerminal(f.Fd())
	}
	return isTerminal(in) && isTerminal(out)
}

// runLive runs a demo under a live view. The view ends with the demo or with a
// key; a key ends the demo.
func runLive(ctx context.Context, o Options) (Summary, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	logs := &ring{}
	program := tea.NewProgram(model{logs: logs, program: o.Program, exit: o.Exit}, tea.WithOutput(o.Err), tea.WithInput(o.In), tea.WithEnvironment(o.Env), tea.WithoutSignalHandler())
	show := func(s State) { program.Send(s) }

	// The summary is for stdout, which may be the same terminal: after the view.
	report := o.Report
	o.Report = nil
	type result struct {
		sum Summary
		err error
	}
	ended := make(chan result, 1)
	go func() {
		sum, err := runDemo(ctx, o, slog.New(&brief{write: logs.add}), show, show)
		program.Quit()
		ended <- result{sum, err}
	}()
	_, viewErr := program.Run()
	cancel()
	r := <-ended
	if viewErr != nil && !errors.Is(viewErr, tea.ErrInterrupted) {
		return r.sum, fmt.Errorf("show the demo: %w: try --plain", viewErr)
	}
	if r.err == nil && report != nil {
		return r.sum, report(r.sum)
	}
	return r.sum, r.err
}

// model is the live view. It only shows: what is shown comes as State messages.
type model struct {
	state         State
	logs          *ring
	program       string // the name it was started by
	exit          bool   // the demo ends by itself
	width, height int
}

func (model) Init() tea.Cmd { return nil }

func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case State:
		m.state = msg
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		}
	}
	return m, nil
}

func (m model) View() tea.View {
	v := tea.NewView(render(m.state, m.logs.last(), m.program, m.exit, m.width, m.height))
	v.AltScreen = true
	v.WindowTitle = "recon-dlq demo"
	return v
}

// The colours are those of the terminal's own palette. Each says nothing that is
// not said by a word or a glyph, too.
var (
	strong = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	green  = lipgloss.NewStyle().Foreground(lipgloss.Green)
	red    = lipgloss.NewStyle().Foreground(lipgloss.Red)
	yellow = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	blue   = lipgloss.NewStyle().Foreground(lipgloss.Blue)
	cyan   = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
)

const labelWidth = 12

// render draws a state on width x height cells: what there is to say at any size
// first, then as many of the last log lines as there is room for.
func render(s State, logs []string, program string, exit bool, width, height int) string {
	if width < 20 || height < 5 {
		return ""
	}
	inner := width - 2
	var lines []string
	add := func(l string) { lines = append(lines, " "+l) }
	row := func(label, text string) { add(faint.Render(pad(label, labelWidth)) + text) }

	title := strong.Render("recon-dlq demo")
	if width >= 70 {
		title += faint.Render("  the main job on an embedded broker")
	}
	add(spread(title, faint.Render("q quits   ")+clock(s.Elapsed), inner))
	add("")
	add(strong.Render(s.now()))
	add("")
	row("target", target(s))
	add("")
	row("records", fmt.Sprintf("%s arrived of %d", strong.Render(number(s.Sent)), s.Total))
	row("", progressBar(s, inner-labelWidth))
	row("", strings.Join([]string{
		green.Render("█") + fmt.Sprintf(" resolved %d", s.Resolved), red.Render("▆") + fmt.Sprintf(" poison %d", s.Poison),
		yellow.Render("▒") + fmt.Sprintf(" held %d", s.Held), blue.Render("▓") + fmt.Sprintf(" open %d", max(0, s.Depth-s.Held)), faint.Render("░") + " to come",
	}, "   "))
	add("")
	most := 1
	for _, q := range s.Queues {
		most = max(most, q.Depth)
	}
	row("depth", strong.Render(number(s.Depth))+faint.Render("  of unresolved records, poison not included"))
	for i, q := range s.Queues {
		style := cyan
		if i == 0 {
			style = blue
		}
		room := inner - labelWidth - 7
		row("  "+q.Name, style.Render(bar(q.Depth, most, room))+" "+fmt.Sprintf("%6d", q.Depth))
	}
	row("oldest", fmt.Sprintf("due %s   waiting %s   held %s", age(s.OldestDue), age(s.OldestWaiting), age(s.OldestHeld)))
	row("calls", fmt.Sprintf("%d   failed and retried %d   found it down, not counted %d", s.Calls, s.Retried, s.NotCounted))
	row("a second", green.Render(sparkline(s.Rates, inner-labelWidth-7))+fmt.Sprintf(" %6.0f", latest(s.Rates)))
	add("")

	var foot []string
	if s.Settled && !exit {
		for _, h := range hints(s, program) {
			foot = append(foot, " "+h)
		}
		foot = append(foot, " "+faint.Render("Quitting shows the summary."))
	}
	room := height - len(lines) - len(foot)
	for i := max(0, len(logs)-max(0, room)); i < len(logs); i++ {
		add(faint.Render(logs[i]))
	}
	for len(lines) < height-len(foot) {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, min(len(lines), height-len(foot)))], foot...)
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, width, "…")
	}
	return strings.Join(lines[:min(len(lines), height)], "\n")
}

// target says how the target is, and what the worker thinks of it.
func target(s State) string {
	state := green.Render("● up")
	if !s.TargetUp {
		state = red.Render("○ down")
	}
	breaker := s.Breaker
	if breaker == "" {
		breaker = "-"
	}
	if breaker != policy.BreakerClosed.String() {
		breaker = yellow.Render(breaker)
	}
	return fmt.Sprintf("%s   breaker %s   held %d, at most %d   people told of %d", state, breaker, s.Held, s.HeldPeak, s.Told)
}

// progressBar shows where all records are.
func progressBar(s State, width int) string {
	total := max(s.Total, s.Resolved+s.Poison+s.Depth, 1)
	parts := []struct {
		n     int
		glyph string
		style lipgloss.Style
	}{
		{s.Resolved, "█", green}, {s.Poison, "▆", red}, {s.Held, "▒", yellow}, {max(0, s.Depth-s.Held), "▓", blue}, {total, "░", faint},
	}
	var b strings.Builder
	done, drawn := 0, 0
	for _, p := range parts {
		done = min(total, done+p.n)
		cells := max(0, width*done/total-drawn)
		if p.n > 0 && cells == 0 && drawn < width { // one cell for what is there at all
			cells = 1
		}
		b.WriteString(p.style.Render(strings.Repeat(p.glyph, cells)))
		drawn += cells
	}
	return b.String()
}

// bar draws n of most in a room of width cells, with eighths of a cell.
func bar(n, most, width int) string {
	const eighths = " ▏▎▍▌▋▊▉"
	if width <= 0 {
		return ""
	}
	e := n * width * 8 / most
	if n > 0 {
		e = max(e, 1)
	}
	b := strings.Repeat("█", e/8)
	if e%8 > 0 {
		b += string([]rune(eighths)[e%8])
	}
	return pad(b, width)
}

// sparkline draws the last values in width cells, the latest on the right.
func sparkline(values []float64, width int) string {
	if width <= 0 {
		return ""
	}
	values = values[max(0, len(values)-width):]
	most := 1.0
	for _, v := range values {
		most = max(most, v)
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		b.WriteRune(levels[min(len(levels)-1, max(0, int(v/most*float64(len(levels)))))])
	}
	return pad(b.String(), width)
}

func latest(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}

func number(n int) string { return fmt.Sprintf("%d", n) }

func clock(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

// age is a duration in cells that do not jump about.
func age(d time.Duration) string { return fmt.Sprintf("%5.1f s", d.Seconds()) }

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}

// spread puts a to the left and b to the right of width cells.
func spread(a, b string, width int) string {
	return pad(a, width-ansi.StringWidth(b)) + b
}

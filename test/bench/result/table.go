package result

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

var (
	rowHead       = []string{"row", "figure", "reach", "median", "min..max", "", "repetitions"}
	contenderHead = []string{"row", "contender", "records", "records/s", "min..max", "client CPU", "broker CPU"}
)

// cells are a row's columns, in the order of rowHead.
func (r Row) cells() []string {
	sign := ">="
	if r.Reach.Most {
		sign = "<="
	}
	low, high := r.Range()
	verdict := "reached"
	switch {
	case len(r.Reps) == 0:
		verdict = "not measured"
	case !r.Reached():
		verdict = "not reached"
	}
	reps := strconv.Itoa(len(r.Reps))
	if n := r.Noisy(); n > 0 {
		reps += fmt.Sprintf(", %d noisy", n)
	}
	return []string{
		r.Name, r.Figure, sign + " " + r.number(r.Reach.Value), r.number(r.Median()),
		r.number(low) + ".." + r.number(high), verdict, reps,
	}
}

func (r Row) number(v float64) string { return strconv.FormatFloat(v, 'f', r.Digits, 64) + r.Unit }

// cells are a contender's columns, in the order of contenderHead.
func (c Contender) cells() []string {
	return []string{
		c.Scenario, c.Name, strconv.Itoa(c.Records), fmt.Sprintf("%.0f", c.Rate), fmt.Sprintf("%.0f..%.0f", c.Slowest, c.Fastest),
		fmt.Sprintf("%.1f µs", c.ClientMicros), fmt.Sprintf("%.1f µs", c.BrokerMicros),
	}
}

func (r *Run) tables() (rows, contenders [][]string) {
	rows = append(rows, rowHead)
	for _, row := range r.Rows {
		rows = append(rows, row.cells())
	}
	contenders = append(contenders, contenderHead)
	for _, c := range r.Contenders {
		contenders = append(contenders, c.cells())
	}
	return rows, contenders
}

func (r *Run) heading() string {
	s := fmt.Sprintf("%s, %s. The brokers were given %d MB to write and held %d MB at most.",
		r.Time.UTC().Format("2006-01-02 15:04 UTC"), r.Machine, r.Written>>20, r.Held>>20)
	if r.Quick {
		s += " A quick run: it shows that every row works; its figures are not to be quoted."
	}
	return s
}

// Text writes the tables for a terminal.
func (r *Run) Text(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", r.heading())
	rows, contenders := r.tables()
	for _, table := range [][][]string{rows, contenders} {
		if len(table) == 1 {
			continue
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, cells := range table {
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return nil
}

// The comments in a Markdown file between which the tables go.
const (
	begin = "<!-- bench: generated from here -->"
	end   = "<!-- bench: to here -->"
)

// errNoMarks says that a file has no place for the tables.
var errNoMarks = errors.New("no lines " + begin + " and " + end)

// Markdown puts the tables between the marks of a Markdown file.
func (r *Run) Markdown(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, err := r.splice(old)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, page, 0o644)
}

func (r *Run) splice(page []byte) ([]byte, error) {
	head, rest, ok := bytes.Cut(page, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, errNoMarks
	}
	var b bytes.Buffer
	b.Write(head)
	fmt.Fprintf(&b, "%s\n\n%s\n", begin, r.heading())
	rows, contenders := r.tables()
	for _, table := range [][][]string{rows, contenders} {
		if len(table) == 1 {
			continue
		}
		b.WriteByte('\n')
		for i, cells := range table {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
			}
		}
	}
	fmt.Fprintf(&b, "\n%s", end)
	b.Write(tail)
	return b.Bytes(), nil
}

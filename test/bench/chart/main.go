// Command chart draws what `bench -save` wrote: each ratio against what it is to
// reach, which is the line at 1, with its repetitions as dots. To the right of the
// line is better for every row.
//
//	go run ./test/bench/chart bench.json docs/benchmarks.svg
//
// It is a program of its own, so that the library that draws is not in the memory
// that bench measures.
package main

import (
	"fmt"
	"image/color"
	"log"
	"math"
	"os"
	"strings"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: chart bench.json picture.svg (or .png)")
	}
	run, err := result.Load(os.Args[1])
	if err == nil {
		err = save(run, os.Args[2])
	}
	if err != nil {
		log.Fatalf("chart: %v", err)
	}
}

var (
	good  = color.RGBA{R: 0x1a, G: 0x7f, B: 0x37, A: 0xff}
	bad   = color.RGBA{R: 0xcf, G: 0x22, B: 0x2e, A: 0xff}
	quiet = color.RGBA{R: 0x6e, G: 0x77, B: 0x81, A: 0xff}
)

const (
	width, rowHeight, rest = 760, 44, 80 // of the picture, of a row, of title and axis; points
	labelWidth             = 52          // characters
)

// score is how many times better than asked a value is: 1 just reaches. A value
// of 0 that was to be at most 0 reaches; it has no ratio.
func score(reach result.Reach, value float64) float64 {
	a, b := value, reach.Value
	if reach.Most {
		a, b = b, a
	}
	switch {
	case a == b:
		return 1
	case b == 0:
		return math.Inf(1)
	}
	return a / b
}

// Scores beyond the ends of the scale are drawn at its ends.
const lowest, highest = 0.25, 8

func clamp(score float64) float64 { return min(max(score, lowest), highest) }

func save(run *result.Run, path string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Padding = vg.Points(10)
	p.Title.TextStyle.Font.Size = vg.Points(12)
	p.X.Label.Padding = vg.Points(6)
	p.Title.Text = "Each figure against what it is to reach (bar: median, dot: repetition, hollow: noisy machine)"
	if run.Quick {
		p.Title.Text = "Quick run, not to be quoted. " + p.Title.Text
	}
	p.X.Label.Text = "times better than asked"
	p.Y.Label.Text = " " // a margin
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks{}
	p.X.Min, p.X.Max = lowest, highest
	p.Y.Min, p.Y.Max = -0.6, float64(len(run.Rows))-0.4
	names := make([]string, len(run.Rows))
	for i, row := range run.Rows {
		y := float64(len(run.Rows) - 1 - i) // the first row on top
		names[len(run.Rows)-1-i] = label(row)
		if err := addRow(p, row, y); err != nil {
			return err
		}
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(run.Rows))-0.4 // NominalY sets its own
	line, err := plotter.NewLine(plotter.XYs{{X: 1, Y: p.Y.Min}, {X: 1, Y: p.Y.Max}})
	if err != nil {
		return err
	}
	line.Color, line.Width = quiet, vg.Points(1)
	line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(line)
	return p.Save(vg.Points(width), vg.Points(rest+rowHeight*float64(len(run.Rows))), path)
}

func label(r result.Row) string {
	sign := "≥"
	if r.Reach.Most {
		sign = "≤"
	}
	return fmt.Sprintf("%s\n%.*f%s (%s %.*f%s)", wrap(r.Figure, labelWidth), r.Digits, r.Median(), r.Unit, sign, r.Digits, r.Reach.Value, r.Unit)
}

// addRow adds a row's repetitions and its median.
func addRow(p *plot.Plot, row result.Row, y float64) error {
	col := bad
	if row.Reached() {
		col = good
	}
	var calm, noisy plotter.XYs
	for _, rep := range row.Reps {
		at := plotter.XY{X: clamp(score(row.Reach, rep.Value)), Y: y}
		if rep.Noisy() {
			noisy = append(noisy, at)
		} else {
			calm = append(calm, at)
		}
	}
	for _, dots := range []struct {
		at    plotter.XYs
		shape draw.GlyphDrawer
	}{{calm, draw.CircleGlyph{}}, {noisy, draw.RingGlyph{}}} {
		if len(dots.at) == 0 {
			continue
		}
		s, err := plotter.NewScatter(dots.at)
		if err != nil {
			return err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: col, Radius: vg.Points(3), Shape: dots.shape}
		p.Add(s)
	}
	if len(row.Reps) == 0 {
		return nil
	}
	x := clamp(score(row.Reach, row.Median()))
	mark, err := plotter.NewLine(plotter.XYs{{X: x, Y: y - 0.28}, {X: x, Y: y + 0.28}})
	if err != nil {
		return err
	}
	mark.Color, mark.Width = col, vg.Points(2.5)
	p.Add(mark)
	return nil
}

// wrap breaks a text at spaces into lines of at most so many characters.
func wrap(text string, most int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= most:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return strings.Join(append(lines, line), "\n")
}

// ticks are the powers of two.
type ticks struct{}

func (ticks) Ticks(low, high float64) (all []plot.Tick) {
	for v := lowest; v <= highest; v *= 2 {
		if v >= low && v <= high {
			all = append(all, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
		}
	}
	return all
}

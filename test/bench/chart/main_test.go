package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/recon-dlq/recon-dlq/test/bench/result"
)

func TestAScoreOfOneJustReaches(t *testing.T) {
	for _, c := range []struct {
		reach result.Reach
		value float64
		want  float64
	}{
		{result.AtLeast(1.7), 1.7, 1}, {result.AtLeast(2), 4, 2}, {result.AtLeast(2), 1, 0.5},
		{result.AtMost(20), 20, 1}, {result.AtMost(20), 5, 4}, {result.AtMost(20), 40, 0.5},
		{result.AtMost(0), 0, 1}, {result.AtMost(0), 3, 0}, {result.AtMost(2), 0, math.Inf(1)},
	} {
		if got := score(c.reach, c.value); got != c.want {
			t.Errorf("score of %v against %+v: %v, want %v", c.value, c.reach, got, c.want)
		}
	}
}

func TestLabelsBreakAtSpaces(t *testing.T) {
	for in, want := range map[string]string{"": "", "one two": "one two", "one two three": "one two\nthree", "straightforwardly": "straightforwardly", "≤≥≤≥ ≤≥": "≤≥≤≥ ≤≥"} {
		if got := wrap(in, 7); got != want {
			t.Errorf("wrap(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEveryRowIsDrawn(t *testing.T) {
	run := &result.Run{Rows: []result.Row{
		{Figure: "a ratio", Unit: "x", Digits: 2, Reach: result.AtLeast(1.7), Reps: []result.Rep{{Value: 1.8}, {Value: 90, Foreign: 0.5}}},
		{Figure: "none early", Reach: result.AtMost(0), Reps: []result.Rep{{Value: 0}, {Value: 3}}},
		{Figure: "not measured", Reach: result.AtMost(1)},
	}}
	path := filepath.Join(t.TempDir(), "chart.svg")
	if err := save(run, path); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range run.Rows {
		if !bytes.Contains(svg, []byte(row.Figure)) {
			t.Errorf("row %q is not in the picture", row.Figure)
		}
	}
}

// Package result is what a benchmark run found: figures with the values they
// have to reach, and the contenders behind them. It writes them as text, as
// Markdown and as JSON, which the chart reads.
package result

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// MaxForeign is the share of the machine that processes outside of the
// benchmark may take; above it a repetition is called noisy.
const MaxForeign = 0.10

// Run is one run of the benchmarks.
type Run struct {
	Time       time.Time   `json:"time"`
	Machine    string      `json:"machine"`
	Quick      bool        `json:"quick"` // counts too small for figures to be trusted
	Written    int64       `json:"written_bytes"`
	Held       int64       `json:"held_bytes"` // by the brokers at a time, at most
	Rows       []Row       `json:"rows"`
	Contenders []Contender `json:"contenders"`
}

// Row is one figure.
type Row struct {
	Name   string `json:"name"`
	Figure string `json:"figure"`
	Unit   string `json:"unit"` // follows the number: " ms", "x"
	Digits int    `json:"digits"`
	Reach  Reach  `json:"reach"`
	Reps   []Rep  `json:"reps"`
}

// Reach is the value that a figure is to reach: at least, or at most.
type Reach struct {
	Most  bool    `json:"most"`
	Value float64 `json:"value"`
}

// AtLeast is the reach of a figure that is better the higher it is.
func AtLeast(v float64) Reach { return Reach{Value: v} }

// AtMost is the reach of a figure that is better the lower it is.
func AtMost(v float64) Reach { return Reach{Most: true, Value: v} }

// Rep is what one repetition gave.
type Rep struct {
	Value   float64 `json:"value"`
	Foreign float64 `json:"foreign"` // share of the machine used by others; negative: not known
}

// Noisy reports whether others used too much of the machine.
func (r Rep) Noisy() bool { return r.Foreign > MaxForeign }

// Median is the row's value; 0 without repetitions.
func (r Row) Median() float64 { return Median(r.values()) }

// Range is the lowest and the highest repetition.
func (r Row) Range() (low, high float64) {
	if len(r.Reps) == 0 {
		return 0, 0
	}
	return slices.Min(r.values()), slices.Max(r.values())
}

// Reached reports whether the median reaches what it is to reach. What was not
// measured does not.
func (r Row) Reached() bool {
	if len(r.Reps) == 0 {
		return false
	}
	if r.Reach.Most {
		return r.Median() <= r.Reach.Value
	}
	return r.Median() >= r.Reach.Value
}

// Noisy is how many repetitions were noisy.
func (r Row) Noisy() (n int) {
	for _, rep := range r.Reps {
		if rep.Noisy() {
			n++
		}
	}
	return n
}

func (r Row) values() []float64 {
	vs := make([]float64, len(r.Reps))
	for i, rep := range r.Reps {
		vs[i] = rep.Value
	}
	return vs
}

// Contender is one side of a comparison: medians over its repetitions.
type Contender struct {
	Scenario     string  `json:"scenario"`
	Name         string  `json:"name"`
	Records      int     `json:"records"`
	Reps         int     `json:"reps"`
	Rate         float64 `json:"records_per_second"`
	Slowest      float64 `json:"slowest"` // records per second
	Fastest      float64 `json:"fastest"`
	ClientMicros float64 `json:"client_cpu_us_per_record"`
	BrokerMicros float64 `json:"broker_cpu_us_per_record"`
}

// Median of values; of an even number of them the mean of the middle two. 0 of none.
func Median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	vs = slices.Sorted(slices.Values(vs))
	mid := len(vs) / 2
	if len(vs)%2 == 1 {
		return vs[mid]
	}
	return (vs[mid-1] + vs[mid]) / 2
}

// Percentile is the smallest of the values that p percent of them do not exceed
// (nearest rank). 0 of none.
func Percentile(vs []float64, p float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	vs = slices.Sorted(slices.Values(vs))
	rank := int(math.Ceil(p / 100 * float64(len(vs))))
	return vs[min(max(rank, 1), len(vs))-1]
}

// JSON writes the run as one JSON object.
func (r *Run) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Save writes the run as JSON to a file.
func (r *Run) Save(path string) error {
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// Load reads what Save wrote.
func Load(path string) (*Run, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Run
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return &r, nil
}

package result

import (
	"bytes"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTheMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 100}, 3.5},
	} {
		if got := Median(c.in); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestTheMedianLeavesItsArgumentAsItWas(t *testing.T) {
	in := []float64{3, 1, 2}
	Median(in)
	if !reflect.DeepEqual(in, []float64{3, 1, 2}) {
		t.Errorf("the argument is now %v", in)
	}
}

func TestAPercentileIsOneOfTheValues(t *testing.T) {
	var vs []float64
	for i := 100; i > 0; i-- {
		vs = append(vs, float64(i))
	}
	for p, want := range map[float64]float64{0: 1, 50: 50, 99: 99, 99.5: 100, 100: 100} {
		if got := Percentile(vs, p); got != want {
			t.Errorf("Percentile(%v) = %v, want %v", p, got, want)
		}
	}
	if got := Percentile(nil, 50); got != 0 {
		t.Errorf("Percentile of nothing = %v, want 0", got)
	}
}

func TestAFigureIsReachedFromItsOwnSide(t *testing.T) {
	two := []Rep{{Value: 2}}
	for _, c := range []struct {
		reach Reach
		reps  []Rep
		want  bool
	}{
		{AtLeast(2), two, true}, {AtLeast(2.1), two, false}, {AtMost(2), two, true}, {AtMost(1.9), two, false},
		{AtMost(2), nil, false}, {AtLeast(0), nil, false},
	} {
		if got := (Row{Reach: c.reach, Reps: c.reps}).Reached(); got != c.want {
			t.Errorf("reach %+v of %v: %v, want %v", c.reach, c.reps, got, c.want)
		}
	}
}

func sample() *Run {
	return &Run{
		Time: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Machine: "2 cores", Written: 5 << 20, Held: 3 << 20,
		Rows: []Row{
			{Name: "hop", Figure: "engine against a loop", Unit: "x", Digits: 2, Reach: AtLeast(1.7), Reps: []Rep{{1.8, 0.2}, {1.9, 0.01}, {2.0, 0.5}}},
			{Name: "late", Figure: "lateness", Unit: " ms", Digits: 1, Reach: AtMost(2), Reps: []Rep{{2.5, 0}}},
			{Name: "none", Figure: "nothing", Reach: AtMost(2)},
		},
		Contenders: []Contender{{Scenario: "hop", Name: "engine", Records: 10, Rate: 5000.4, Slowest: 4000, Fastest: 6000, ClientMicros: 20, BrokerMicros: 30}},
	}
}

func TestTheTableSaysWhatWasReachedAndWhatWasNoisy(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Text(&b); err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{}
	for line := range strings.Lines(b.String()) {
		if f := strings.Fields(line); len(f) > 0 && lines[f[0]] == nil {
			lines[f[0]] = f
		}
	}
	for name, want := range map[string]string{
		"hop":  "hop engine against a loop >= 1.70x 1.90x 1.80x..2.00x reached 3, 2 noisy",
		"late": "late lateness <= 2.0 ms 2.5 ms 2.5 ms..2.5 ms not reached 1",
		"none": "none nothing <= 2 0 0..0 not measured 0",
	} {
		if got := strings.Join(lines[name], " "); got != want {
			t.Errorf("row %s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestAQuickRunIsCalledOne(t *testing.T) {
	r := sample()
	r.Quick = true
	if !strings.Contains(r.heading(), "quick") || strings.Contains(sample().heading(), "quick") {
		t.Error("the heading does not tell a quick run from a full one")
	}
}

func TestMarkdownReplacesWhatIsBetweenItsMarksAndNothingElse(t *testing.T) {
	page := []byte("before\n" + begin + "\nold\n" + end + "\nafter\n")
	got, err := sample().splice(page)
	if err != nil {
		t.Fatal(err)
	}
	s := string(got)
	if !strings.HasPrefix(s, "before\n"+begin) || !strings.HasSuffix(s, end+"\nafter\n") || strings.Contains(s, "old") {
		t.Errorf("page is now:\n%s", s)
	}
	if !strings.Contains(s, "| hop | engine against a loop | >= 1.70x | 1.90x | 1.80x..2.00x | reached | 3, 2 noisy |") {
		t.Errorf("a row is missing:\n%s", s)
	}
	again, err := sample().splice(got)
	if err != nil || !bytes.Equal(again, got) {
		t.Errorf("the same tables again change the page (%v)", err)
	}
	if _, err := sample().splice([]byte("no marks")); err == nil {
		t.Error("a page without marks is taken")
	}
}

func TestARunIsReadAsItWasSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := sample().Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, sample()) {
		t.Errorf("read %+v", got)
	}
}

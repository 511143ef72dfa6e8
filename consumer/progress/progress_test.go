package progress

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the naive truth: which offsets have been read and which are complete.
type model struct {
	next int64
	done map[int64]bool
}

func (m *model) incomplete(upTo int64) (open []int64) {
	for o := range upTo {
		if !m.done[o] {
			open = append(open, o)
		}
	}
	return open
}

// holesOf spells a progress out: every incomplete offset below its top.
func holesOf(p Progress) (open []int64) {
	for _, h := range p.Holes {
		for o := h.From; o < h.To; o++ {
			open = append(open, o)
		}
	}
	return open
}

func TestATrackerAgreesWithANaiveModelOverReadsCompletionsAbortsAndRestarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{done: map[int64]bool{}}
		tr := NewTracker(Fresh(0))
		var pending []int64 // open in the tracker
		committedDone := map[int64]bool{}
		var nonce uint64
		var seq int64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"read", "read", "pass", "gap", "commit", "commit", "restart"}).Draw(t, "step") {
			case "read":
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					o := tr.Next()
					todo, gone := tr.Read(o)
					if len(gone) > 0 {
						t.Fatalf("offset %d: gone %v without a gap", o, gone)
					}
					if todo == committedDone[o] {
						t.Fatalf("offset %d: todo %v, but committed as done %v", o, todo, committedDone[o])
					}
					if todo {
						pending = append(pending, o)
					} else {
						m.done[o] = true
					}
					m.next = tr.Next()
				}
			case "pass":
				o := tr.Next()
				for _, g := range tr.Pass(o) { // a control record that was a hole: told as gone
					for x := g.From; x < g.To; x++ {
						pending = append(pending, x)
					}
				}
				if !slices.Contains(pending, o) {
					m.done[o] = true
				}
				m.next = tr.Next()
			case "gap":
				from := tr.Next()
				to := from + rapid.Int64Range(1, 40).Draw(t, "gap")
				lost := map[int64]bool{}
				for _, g := range tr.Skip(to) {
					for x := g.From; x < g.To; x++ {
						pending = append(pending, x)
						lost[x] = true
					}
				}
				for o := from; o < to; o++ {
					if !lost[o] {
						m.done[o] = true
					}
				}
				m.next = to
			case "commit":
				slices.Sort(pending)
				var done, rest []int64
				for _, o := range pending {
					if rapid.Bool().Draw(t, "done") {
						done = append(done, o)
					} else {
						rest = append(rest, o)
					}
				}
				nonce++
				plan, n, err := tr.Plan(done, nonce, tr.Next(), seq, DefaultLimit)
				if err != nil || n != len(done) {
					t.Fatalf("a small plan does not fit: %d of %d, %v", n, len(done), err)
				}
				if rapid.IntRange(0, 3).Draw(t, "abort") == 0 {
					continue // nothing may have changed
				}
				got, err := Decode(plan.Progress.Low, plan.Metadata)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, plan.Progress) {
					t.Fatalf("decoded %+v, wrote %+v", got, plan.Progress)
				}
				tr.Commit(plan)
				if seq += int64(len(done)); got.Seq != seq {
					t.Fatalf("seq %d after %d completions", got.Seq, seq)
				}
				pending = rest
				for _, o := range done {
					m.done[o] = true
				}
				if want := m.incomplete(got.Top); !slices.Equal(holesOf(got), want) {
					t.Fatalf("holes %v, the model says %v below %d", holesOf(got), want, got.Top)
				}
				committedDone = map[int64]bool{}
				for o := range got.Top {
					committedDone[o] = m.done[o]
				}
			case "restart":
				tr = NewTracker(tr.Committed())
				pending = nil
				m.done = map[int64]bool{}
				for o, d := range committedDone {
					if d {
						m.done[o] = true
					}
				}
				m.next = tr.Next()
			}
			if int64(tr.Open()) != int64(len(pending)) {
				t.Fatalf("open %d, the model says %d", tr.Open(), len(pending))
			}
		}
	})
}

func TestWhatTheLogHasLostIsGoneUnlessItIsKnownToBeDone(t *testing.T) {
	// Done: 10 to 19 but 12, and nothing from 20 on.
	tr := NewTracker(Progress{Low: 12, Top: 20, Holes: []Range{{12, 13}}, Seen: 20})
	var gone []Range
	for tr.Next() < 25 {
		gone = append(gone, tr.Expire(25, 4)...)
	}
	if want := []Range{{12, 13}, {20, 24}, {24, 25}}; !reflect.DeepEqual(gone, want) {
		t.Fatalf("gone %v, want %v", gone, want)
	}
	if tr.Next() != 25 || tr.Holes() != 6 {
		t.Fatalf("next %d with %d holes, want 25 with 6", tr.Next(), tr.Holes())
	}
	plan, n, err := tr.Plan([]int64{12, 20, 21, 22, 23, 24}, 1, 20, 0, DefaultLimit)
	if err != nil || n != 6 || plan.Progress.Low != 25 || plan.Progress.Top != 25 {
		t.Fatalf("plan %+v of %d, %v", plan.Progress, n, err)
	}
	if gone := tr.Expire(25, 4); gone != nil {
		t.Fatalf("gone again: %v", gone)
	}
}

func TestAnyPatternOverAWindowOf24000OffsetsFitsKafkasDefaultLimit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	patterns := map[string]func(int64) bool{
		"alternating": func(o int64) bool { return o%2 == 0 },
		"thirds":      func(o int64) bool { return o%3 == 0 },
		"random":      func(int64) bool { return rnd.IntN(2) == 0 },
		"sparse":      func(int64) bool { return rnd.IntN(50) == 0 },
		"dense":       func(int64) bool { return rnd.IntN(50) != 0 },
	}
	for name, hole := range patterns {
		t.Run(name, func(t *testing.T) {
			const low = int64(1) << 50
			p := Progress{Nonce: ^uint64(0), Low: low, Top: low + 24_000, Seen: low + 48_000, Seq: 1 << 50}
			p.Holes = appendHole(nil, low, low+1)
			for o := int64(1); o < 23_999; o++ {
				if hole(o) {
					p.Holes = appendHole(p.Holes, low+o, low+o+1)
				}
			}
			m, err := Encode(p, DefaultLimit)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(low, m)
			if err != nil || !reflect.DeepEqual(got, p) {
				t.Fatalf("not read back as written: %v", err)
			}
		})
	}
}

func TestOneOldHoleBelowADenseWindowStillFits(t *testing.T) {
	p := Progress{Low: 7, Top: 50_000_000, Seen: 50_000_000, Holes: []Range{{7, 8}}}
	for o := p.Top - 20_000; o < p.Top-1; o += 2 {
		p.Holes = append(p.Holes, Range{o, o + 1})
	}
	if _, err := Encode(p, DefaultLimit); err != nil {
		t.Fatalf("a stuck record and a dense window far above it: %v", err)
	}
}

func TestAPlanThatDoesNotFitCompletesFromTheFrontWhatFits(t *testing.T) {
	tr := NewTracker(Fresh(0))
	var done []int64
	for o := range int64(5_000) {
		tr.Read(o)
		if o%2 == 1 {
			done = append(done, o)
		}
	}
	plan, n, err := tr.Plan(done, 1, 0, 0, 200)
	if err != nil || n == 0 || n == len(done) {
		t.Fatalf("completed %d of %d, %v", n, len(done), err)
	}
	if len(plan.Metadata) > 200 {
		t.Fatalf("the metadata has %d characters", len(plan.Metadata))
	}
	tr.Commit(plan)
	if got := tr.Open(); got != 5_000-n {
		t.Fatalf("open %d after completing %d of 5000", got, n)
	}
	if _, n, err := tr.Plan(done[n:], 2, 0, 0, 10); !errors.Is(err, ErrTooLong) || n != 0 {
		t.Fatalf("a limit nothing fits: n %d, %v", n, err)
	}
}

func TestGarbageIsNeverReadAsNoHoles(t *testing.T) {
	good, err := Encode(Progress{Nonce: 9, Low: 10, Top: 20, Holes: []Range{{10, 12}, {15, 16}}, Seen: 20, Seq: 3}, DefaultLimit)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]string{
		"empty":           "",
		"foreign":         "consumer-1",
		"newer version":   "2" + good[1:],
		"cut":             good[:len(good)-2],
		"longer":          good + "AA",
		"one bit flipped": strings.Replace(good, good[8:9], string(good[8]^1), 1),
		"version only":    "1",
	} {
		if p, err := Decode(10, m); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: read as %+v, %v", name, p, err)
		}
	}
}

func FuzzProgress(f *testing.F) {
	for _, p := range []Progress{
		Fresh(0),
		{Nonce: 1, Low: 10, Top: 20, Holes: []Range{{10, 12}, {15, 16}}, Seen: 25, Seq: 3},
		{Low: 0, Top: 3, Holes: []Range{{0, 1}}, Seen: 0},
	} {
		m, err := Encode(p, DefaultLimit)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.Low, m)
	}
	f.Fuzz(func(t *testing.T, low int64, metadata string) {
		p, err := Decode(low, metadata)
		if err != nil {
			if !errors.Is(err, ErrUnknown) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		at := p.Low
		for i, h := range p.Holes {
			if h.From < at || h.To <= h.From || h.To > p.Top || i > 0 && h.From == at {
				t.Fatalf("hole %v in %+v", h, p)
			}
			at = h.To
		}
		m, err := Encode(p, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(p.Low, m)
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v came back as %+v, %v", p, again, err)
		}
	})
}

// FuzzProgressHoles writes a progress drawn from raw bytes and reads it back.
func FuzzProgressHoles(f *testing.F) {
	f.Add(int64(5), []byte{1, 2, 3, 255, 1, 1})
	f.Add(int64(0), []byte{})
	f.Fuzz(func(t *testing.T, low int64, steps []byte) {
		if low < 0 || low > maxSpan || len(steps) > 4096 {
			return
		}
		p := Progress{Nonce: 1, Low: low, Top: low, Seen: low, Seq: int64(len(steps))}
		for i := 0; i+1 < len(steps); i += 2 { // hole length, then done length
			to := p.Top + int64(steps[i]) + 1
			p.Holes = append(p.Holes, Range{p.Top, to})
			p.Top = to + int64(steps[i+1]) + 1
		}
		m, err := Encode(p, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(low, m)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%+v came back as %+v, %v", p, got, err)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	tr := NewTracker(Fresh(0))
	var done []int64
	for o := range int64(20_000) {
		tr.Read(o)
		if o%3 == 0 {
			done = append(done, o)
		}
	}
	for b.Loop() {
		if _, _, err := tr.Plan(done, 1, 0, 0, DefaultLimit); err != nil {
			b.Fatal(err)
		}
	}
}

package policy

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// run asks l for calls as often as it can from from to to, and returns when they began.
func (l *Limiter) run(from, to time.Time) (calls []time.Time) {
	for now := from; now.Before(to); {
		if at := l.Next(now); at.After(now) {
			now = at
			continue
		}
		calls = append(calls, now)
		*l = l.Take(now)
	}
	return calls
}

func TestALimiterLetsABurstThroughAndThenItsRate(t *testing.T) {
	l := NewLimiter(Limit{Rate: 10, Burst: 5})
	calls := l.run(t0, t0.Add(time.Second))
	// five at once, and then one each 100 ms
	if len(calls) != 5+9 || !calls[4].Equal(t0) || calls[5].Sub(t0) != 100*time.Millisecond {
		t.Errorf("%d calls: %v", len(calls), calls)
	}
	if calls = l.run(t0.Add(time.Hour), t0.Add(time.Hour+time.Millisecond)); len(calls) != 5 {
		t.Errorf("%d at once after a rest, want the burst again", len(calls))
	}
}

func TestWithoutALimitEverythingGoesAtOnce(t *testing.T) {
	for _, l := range []Limiter{{}, NewLimiter(Limit{InFlight: 3})} {
		for range 1000 {
			if at := l.Next(t0); !at.Equal(t0) {
				t.Fatalf("waits until %s", at)
			}
			l = l.Take(t0)
		}
	}
}

func TestCallsAtATimeAreDividedAndNeverNone(t *testing.T) {
	l := NewLimiter(Limit{InFlight: 10})
	for _, c := range []struct{ part, all, slots, want int }{
		{0, 0, 64, 10}, {6, 6, 64, 10}, {3, 6, 64, 5}, {1, 3, 64, 3}, {1, 100, 64, 1}, {0, 6, 64, 1}, {6, 6, 4, 4},
	} {
		if got := l.Divide(c.part, c.all, t0).InFlight(c.slots, t0); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestASlowStartRisesFromATenthToAllOfTheLimit(t *testing.T) {
	l := NewLimiter(Limit{Rate: 100, Burst: 100, InFlight: 50, SlowStart: 100 * time.Second}).Started(t0)
	if n := l.InFlight(64, t0); n != 5 {
		t.Errorf("%d at a time at first, want 5", n)
	}
	if n := l.InFlight(64, t0.Add(50*time.Second)); n != 25 {
		t.Errorf("%d at a time half way, want 25", n)
	}
	calls := l.run(t0, t0.Add(200*time.Second))
	var per [20]int // calls in ten seconds each
	for _, at := range calls {
		per[at.Sub(t0)/(10*time.Second)]++
	}
	for i, n := range per {
		most := 1000 // by the limit
		if i < 10 {
			most = (i + 1) * 100 // by the ramp at its end
		}
		least := max(100, i*100)
		if i >= 10 {
			least = 1000
		}
		if n > most+1 || n < least-2 {
			t.Errorf("%d calls in the %dth ten seconds, want %d to %d", n, i+1, least, most)
		}
	}
}

func TestAClockThatIsSetBackOrAShareThatGrowsHoldsUpNothingForLong(t *testing.T) {
	l := NewLimiter(Limit{Rate: 1, Burst: 3})
	l.run(t0, t0.Add(time.Second))
	back := t0.Add(-24 * time.Hour)
	if wait := l.Next(back).Sub(back); wait > time.Second {
		t.Errorf("waits %s after the clock was set back", wait)
	}
	l = NewLimiter(Limit{Rate: 1}).Divide(1, 1000, t0)
	l = l.Take(t0).Divide(1000, 1000, t0)
	if wait := l.Next(t0).Sub(t0); wait > time.Second {
		t.Errorf("waits %s although it has all of the limit", wait)
	}
}

// The sum over the workers, through rebalances and slow starts, in any span.
func TestWorkersNeverExceedTheirCommonLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{
			Rate:  float64(rapid.IntRange(1, 200).Draw(t, "rate")),
			Burst: rapid.IntRange(0, 30).Draw(t, "burst"),
		}
		if rapid.Bool().Draw(t, "slow start") {
			limit.SlowStart = time.Duration(rapid.IntRange(1, 20).Draw(t, "ramp")) * time.Second
		}
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		partitions := rapid.IntRange(1, 12).Draw(t, "partitions")
		owner := make([]int, partitions) // of a partition; -1: on its way
		ls := make([]Limiter, workers)
		divide := func(now time.Time) {
			parts := make([]int, workers)
			for _, w := range owner {
				if w >= 0 {
					parts[w]++
				}
			}
			for w := range ls {
				ls[w] = ls[w].Divide(parts[w], partitions, now)
			}
		}
		for w := range ls {
			ls[w] = NewLimiter(limit).Divide(0, partitions, t0)
		}
		now := t0
		divide(now)
		var calls []time.Time
		for range rapid.IntRange(1, 8).Draw(t, "phases") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0: // cooperative: given up first, taken up later
				for i := range owner {
					if rapid.Bool().Draw(t, "moves") {
						owner[i] = -1
					}
				}
				divide(now)
			case 1:
				for i := range owner {
					if owner[i] < 0 {
						owner[i] = rapid.IntRange(0, workers-1).Draw(t, "owner")
					}
				}
				divide(now)
			case 2:
				if limit.SlowStart > 0 {
					w := rapid.IntRange(0, workers-1).Draw(t, "who starts slowly")
					ls[w] = ls[w].Started(now)
				}
			}
			end := now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
			for w := range ls {
				calls = append(calls, ls[w].run(now, end)...)
			}
			now = end
		}
		slices.SortFunc(calls, time.Time.Compare)
		slack := max(limit.Burst, 1, workers)
		for i := range calls {
			for j := i; j < len(calls); j++ {
				most := limit.Rate*calls[j].Sub(calls[i]).Seconds() + float64(slack) + 1e-6
				if n := j - i + 1; float64(n) > most {
					t.Fatalf("%d calls in %s, at most %.2f", n, calls[j].Sub(calls[i]), most)
				}
			}
		}
	})
}

func TestALimitThatCannotBeIsRefused(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		field string
	}{
		{Limit{Rate: -1}, "rate"},
		{Limit{Rate: math.NaN()}, "rate"},
		{Limit{Rate: 2e6}, "rate"},
		{Limit{Rate: 1e-9}, "rate"},
		{Limit{Burst: 5}, "burst"},
		{Limit{Rate: 1, Burst: -1}, "burst"},
		{Limit{InFlight: -1}, "in_flight"},
		{Limit{SlowStart: -time.Second}, "slow_start"},
		{Limit{SlowStart: 25 * time.Hour}, "slow_start"},
		{Limit{}, ""},
		{Limit{Rate: 0.1, Burst: 3, InFlight: 1, SlowStart: time.Hour}, ""},
	} {
		got := ""
		c.limit.check(func(field, _ string, _ ...any) { got += field })
		if got != c.field {
			t.Errorf("%+v: %q is refused, want %q", c.limit, got, c.field)
		}
	}
}

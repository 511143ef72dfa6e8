package policy

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Exponential back-off that is capped after its conversion overflows to a
// negative or zero delay. Here delays are a list, so a formula is written out.
func TestC035_EveryDelayOfALongScheduleIsPositiveAndWithinItsMaximum(t *testing.T) {
	const (
		attempts = 200
		longest  = 10 * time.Minute
	)
	var delays []time.Duration
	for d := time.Second; len(delays) < attempts-1; d = min(2*d, longest) {
		delays = append(delays, d)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, list := range map[string][]time.Duration{"written out": delays, "the last repeats": delays[:11]} {
		p, err := New(Options{Rules: []Rule{{Name: "default", Target: "ledger", Attempts: attempts, Delays: list, MaxAge: time.Hour}}})
		if err != nil {
			t.Fatal(err)
		}
		before := time.Duration(0)
		for attempt := range attempts - 1 { // 33, 34, 40, 63, 64 and 100 among them
			r := &deadletter.Record{ID: "8d0f", Kind: deadletter.Tier, Attempt: attempt, Enqueued: now.UnixMilli()}
			d := p.Decide(r, deadletter.Outcome{Class: deadletter.Suspect}, now)
			wait := d.NotBefore.Sub(now)
			if d.Action != Retry || d.Tier < time.Second || d.Tier > longest || d.Tier < before || wait <= 0 || wait > d.Tier {
				t.Fatalf("%s, attempt %d: %s %s, not before %s from now", name, attempt, d.Action, d.Tier, wait)
			}
			before = d.Tier
		}
		for _, attempt := range []int{attempts - 1, attempts, math.MaxInt32} {
			r := &deadletter.Record{Kind: deadletter.Tier, Attempt: attempt, Enqueued: now.UnixMilli()}
			if d := p.Decide(r, deadletter.Outcome{Class: deadletter.Suspect}, now); d.Action != ToPoison {
				t.Errorf("%s, attempt %d: %s", name, attempt, d.Action)
			}
		}
		// The back-off of "in progress" doubles by itself.
		for snoozes := range MaxSnoozes {
			r := &deadletter.Record{Kind: deadletter.Tier, Snoozes: snoozes, Enqueued: now.UnixMilli()}
			d := p.Decide(r, deadletter.Outcome{Class: deadletter.InProgress}, now)
			if wait := d.NotBefore.Sub(now); d.Action != Snooze || wait <= 0 || wait > SnoozeMax {
				t.Errorf("%s, snooze %d: %s, not before %s from now", name, snoozes, d.Action, wait)
			}
		}
	}
	for _, delay := range []time.Duration{0, 1, MinDelay, MaxDelay, math.MaxInt64} {
		if j := jitter("8d0f", 64, delay); j < 0 || j > delay/5 {
			t.Errorf("jitter of %d ns is %s", delay, j)
		}
	}
}

// A record stamped in the future is sent again each round. The design decides
// otherwise how long it waits: not-before is final as far ahead as policy can
// set it, else the tier's delay; an early record is re-tiered, which is bounded.
func TestC037_ATimeStampedByAClockThatIsWrongWaitsBoundedAndEnds(t *testing.T) {
	const delay, skew = 2 * time.Second, 10 * time.Minute
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p, err := New(Options{Rules: []Rule{{
		Name: "default", Target: "ledger", Attempts: 4, Delays: []time.Duration{delay, 5 * time.Second, 15 * time.Second}, MaxAge: 24 * time.Hour,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		notBefore string // "" is no header
		due       time.Duration
		hops      int
		note      string
	}{
		{"r-1430, a clock 10 minutes ahead", ms(start.Add(skew + delay)), skew + delay, 40, ""},
		{"r-1431, a clock 10 minutes behind", ms(start.Add(-skew + delay)), 0, 0, ""},
		{"r-1432, absurd", "9223372036854775807", delay, 0, deadletter.NoteNotBeforeFar},
		{"r-1433, negative", "-1", delay, 0, deadletter.NoteNotBeforeBad},
		{"r-1434, garbage", "soon", delay, 0, deadletter.NoteNotBeforeBad},
		{"r-1435, none", "", delay, 0, deadletter.NoteNotBeforeBad},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := deadletter.Message{
				Place: deadletter.Place{Topic: "recon.dlq.retry.2s"}, Timestamp: start.UnixMilli(),
				Value: []byte(`{"discrepancy_id":"r","category":"value_diverged","context":{"amount":"12.50"},"enqueued_ms":0}`),
				Headers: []deadletter.Header{
					{Key: deadletter.HeaderAttempt, Value: []byte("1")},
					{Key: deadletter.HeaderEnqueued, Value: []byte(ms(start.Add(skew)))},
				},
			}
			if c.notBefore != "" {
				m.Headers = append(m.Headers, deadletter.Header{Key: deadletter.HeaderNotBefore, Value: []byte(c.notBefore)})
			}
			now, tier, hops := start, delay, 0
			var noted []string
			for {
				r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Tier, Delay: tier, MaxWait: p.MaxWait(), Now: now})
				if err != nil {
					t.Fatal(err)
				}
				if r.Attempt != 1 {
					t.Fatalf("attempt %d", r.Attempt)
				}
				noted = append(noted, r.Notes...)
				// As the worker takes it up.
				up := time.UnixMilli(min(r.NotBefore, m.Timestamp+tier.Milliseconds()))
				now = later(now, up)
				d, _ := p.Admit(Breaker{}, &r, now)
				if d.Action == Wait {
					now = d.NotBefore
					d, _ = p.Admit(Breaker{}, &r, now)
				}
				if d.Action == Call {
					break
				}
				if d.Action != Retier || d.Counted {
					t.Fatalf("at %s: %+v", now.Sub(start), d)
				}
				hops++
				tier = d.Tier
				m.Timestamp = now.UnixMilli()
				m.Headers = r.Headers()
			}
			if now.Sub(start) != c.due {
				t.Errorf("called %s after the start, want %s", now.Sub(start), c.due)
			}
			if hops > c.hops || hops < min(c.hops, 1) {
				t.Errorf("%d hops, want at most %d", hops, c.hops)
			}
			if c.note != "" && !slices.Contains(noted, c.note) {
				t.Errorf("notes are %q, want %q", noted, c.note)
			}
		})
	}
}

func ms(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

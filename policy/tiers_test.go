package policy

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTiersAreTheUnionOfAllDelaysSortedAndOnce(t *testing.T) {
	p := mustNew(t,
		with(func(r *Rule) {
			r.Name, r.Category, r.Delays = "a", "a", []time.Duration{time.Hour, time.Second, time.Second}
		}),
		Rule{Name: "people", Category: "m"},
		balanced(),
	)
	want := []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour}
	if got := p.Tiers(); !slices.Equal(got, want) {
		t.Errorf("tiers %v, want %v", got, want)
	}
	for wait, want := range map[time.Duration]time.Duration{
		0: 0, -1: 0, time.Second - 1: 0, time.Second: time.Second, 59 * time.Second: 10 * time.Second,
		time.Minute: time.Minute, 7 * 24 * time.Hour: time.Hour,
	} {
		if got, ok := p.LongestTier(wait); got != want || ok != (want > 0) {
			t.Errorf("longest tier for %s: %s, %v, want %s", wait, got, ok, want)
		}
	}
}

func TestTheLongestWaitIsAWeekOrTheLongestTier(t *testing.T) {
	const week = 7 * 24 * time.Hour
	if got := mustNew(t, balanced()).MaxWait(); got != week {
		t.Errorf("balanced: %s", got)
	}
	if got := mustNew(t, Rule{Name: "people"}).MaxWait(); got != week {
		t.Errorf("no tier: %s", got)
	}
	if got := mustNew(t, with(func(r *Rule) { r.Delays = []time.Duration{2 * week} })).MaxWait(); got != 2*week {
		t.Errorf("a tier of two weeks: %s", got)
	}
}

func TestADelayHasOneCanonicalNameAndIsReadInAnyForm(t *testing.T) {
	for name, d := range map[string]time.Duration{
		"100ms": 100 * time.Millisecond, "1500ms": 1500 * time.Millisecond, "1s": time.Second, "10s": 10 * time.Second,
		"90s": 90 * time.Second, "1m": time.Minute, "10m": 10 * time.Minute, "90m": 90 * time.Minute,
		"1h": time.Hour, "24h": 24 * time.Hour, "720h": MaxDelay,
	} {
		if got := FormatDelay(d); got != name {
			t.Errorf("%s is named %q, want %q", d, got, name)
		}
		if got, err := ParseDelay(name); got != d || err != nil {
			t.Errorf("%q is read as %s, %v", name, got, err)
		}
	}
	for s, want := range map[string]time.Duration{"60s": time.Minute, "1m30s": 90 * time.Second, "1.5h": 90 * time.Minute, "3600000ms": time.Hour} {
		if got, err := ParseDelay(s); got != want || err != nil {
			t.Errorf("%q is read as %s, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "10", "s", "0s", "-1s", "1d", "1s ", "dead", "9999999999h"} {
		if d, err := ParseDelay(s); err == nil {
			t.Errorf("%q is read as %s", s, d)
		}
	}
}

func TestFormatThenParseIsTheIdentityForEveryDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]time.Duration{1, time.Microsecond, time.Millisecond, MinDelay, time.Second, time.Minute, time.Hour}).Draw(t, "unit")
		d := unit * time.Duration(rapid.Int64Range(1, int64(MaxDelay/unit)).Draw(t, "n"))
		name := FormatDelay(d)
		if got, err := ParseDelay(name); got != d || err != nil {
			t.Fatalf("%s → %q → %s, %v", d, name, got, err)
		}
		for _, c := range name {
			if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				t.Fatalf("%q is no legal end of a topic's name", name)
			}
		}
	})
}

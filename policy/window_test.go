package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of a machine that has none

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func at(t testing.TB, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UTC()
}

func TestAWindowOpensOnTheWallsClock(t *testing.T) {
	london := zone(t, "Europe/London") // 2026: forward on 29 March 01:00 UTC, back on 25 October 01:00 UTC
	for _, c := range []struct {
		name  string
		w     Window
		now   string
		open  bool
		until string // empty: never
	}{
		{"none", Window{}, "2026-12-01T12:00:00Z", true, ""},
		{"before", Window{"0 2 * * *", london, 3 * time.Hour}, "2026-12-01T01:59:59Z", false, "2026-12-01T02:00:00Z"},
		{"at its opening", Window{"0 2 * * *", london, 3 * time.Hour}, "2026-12-01T02:00:00Z", true, "2026-12-01T05:00:00Z"},
		{"the last nanosecond", Window{"0 2 * * *", london, 3 * time.Hour}, "2026-12-01T04:59:59.999999999Z", true, "2026-12-01T05:00:00Z"},
		{"at its end", Window{"0 2 * * *", london, 3 * time.Hour}, "2026-12-01T05:00:00Z", false, "2026-12-02T02:00:00Z"},
		{"in summer", Window{"0 2 * * *", london, 3 * time.Hour}, "2026-07-01T00:59:00Z", false, "2026-07-01T01:00:00Z"},
		{"a skipped time opens at the change", Window{"30 1 * * *", london, time.Hour}, "2026-03-29T00:59:59Z", false, "2026-03-29T01:00:00Z"},
		{"a skipped time, within", Window{"30 1 * * *", london, time.Hour}, "2026-03-29T01:30:00Z", true, "2026-03-29T02:00:00Z"},
		{"the day after a skipped time", Window{"30 1 * * *", london, time.Hour}, "2026-03-29T02:00:00Z", false, "2026-03-30T00:30:00Z"},
		{"over the change, in elapsed time", Window{"0 0 * * *", london, 3 * time.Hour}, "2026-03-29T02:59:59Z", true, "2026-03-29T03:00:00Z"},
		{"a time that comes twice opens the first time", Window{"30 1 * * *", london, 20 * time.Minute}, "2026-10-25T00:30:00Z", true, "2026-10-25T00:50:00Z"},
		{"and not the second", Window{"30 1 * * *", london, 20 * time.Minute}, "2026-10-25T01:30:00Z", false, "2026-10-26T01:30:00Z"},
		{"before a time that comes twice", Window{"30 1 * * *", london, 20 * time.Minute}, "2026-10-25T00:00:00Z", false, "2026-10-25T00:30:00Z"},
		{"long windows touch", Window{"0 * * * *", nil, time.Hour}, "2026-12-01T00:30:00Z", true, "2026-12-05T05:00:00Z"},
		{"weekdays over a weekend", Window{"0 22 * * 1-5", nil, 8 * time.Hour}, "2026-12-05T06:00:00Z", false, "2026-12-07T22:00:00Z"},
		{"a half hour's shift", Window{"15 2 * * *", zone(t, "Australia/Lord_Howe"), time.Hour}, "2026-10-03T15:29:59Z", false, "2026-10-03T15:30:00Z"},
		{"leap day", Window{"0 0 29 2 *", nil, time.Hour}, "2026-12-01T00:00:00Z", false, "2028-02-29T00:00:00Z"},
		{"across midnight and the year", Window{"0 23 31 12 *", nil, 2 * time.Hour}, "2027-01-01T00:30:00Z", true, "2027-01-01T01:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.w.check(); err != nil {
				t.Fatal(err)
			}
			var until time.Time
			if c.until != "" {
				until = at(t, c.until)
			}
			if got := c.w.At(at(t, c.now)); got.Open != c.open || !got.Until.Equal(until) {
				t.Errorf("\n got %+v\nwant %v until %s", got, c.open, until)
			}
		})
	}
}

// A naive clock that looks at the wall every minute.
func TestAWindowIsWhatALookAtTheClockEveryMinuteSays(t *testing.T) {
	zones := []*time.Location{time.UTC, zone(t, "Europe/London"), zone(t, "America/New_York"), zone(t, "Australia/Lord_Howe"), zone(t, "America/St_Johns")}
	rapid.Check(t, func(t *rapid.T) {
		minute, hour := rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 23).Draw(t, "hour")
		w := Window{
			Cron: fmt.Sprintf("%d %d * * *", minute, hour),
			Zone: rapid.SampledFrom(zones).Draw(t, "zone"),
			For:  time.Duration(rapid.IntRange(1, 23*60).Draw(t, "minutes")) * time.Minute,
		}
		// Around a change of the clocks, or anywhere.
		day := rapid.SampledFrom([]string{"2026-03-08", "2026-03-29", "2026-04-05", "2026-06-10", "2026-10-04", "2026-10-25", "2026-11-01"}).Draw(t, "day")
		from, _ := time.Parse(time.DateOnly, day)
		from = from.Add(-48 * time.Hour)
		var end time.Time
		last := -1 // the day of the year that had its opening
		for now := from; now.Before(from.Add(96 * time.Hour)); now = now.Add(time.Minute) {
			l := now.In(w.Zone)
			passed := l.Hour() > hour || l.Hour() == hour && l.Minute() >= minute
			if passed && last != l.YearDay() {
				last = l.YearDay()
				end = now.Add(w.For)
			}
			if now.Sub(from) < 25*time.Hour || now.Minute()%7 > 0 && !now.Equal(end) && !now.Add(time.Minute).Equal(end) {
				continue // its first opening was before it looked; and asking takes its time
			}
			got := w.At(now)
			if want := now.Before(end); got.Open != want {
				t.Fatalf("%+v at %s (%s): %+v, want open %v", w, now, l, got, want)
			}
			if !got.Until.After(now) {
				t.Fatalf("%+v at %s: until %s", w, now, got.Until)
			}
		}
	})
}

func TestAWindowThatCannotBeIsRefused(t *testing.T) {
	for _, c := range []struct {
		w    Window
		want string
	}{
		{Window{For: time.Hour}, "cron: missing"},
		{Window{Cron: "0 2 * *", For: time.Hour}, "five fields"},
		{Window{Cron: "0 2 * * * *", For: time.Hour}, "five fields"},
		{Window{Cron: "61 2 * * *", For: time.Hour}, "five fields"},
		{Window{Cron: "@daily", For: time.Hour}, "five fields"},
		{Window{Cron: "0 2 * * *"}, "for: 0s"},
		{Window{Cron: "0 2 * * *", For: -time.Hour}, "for: -1h"},
		{Window{Cron: "0 2 * * *", For: 40 * 24 * time.Hour}, "must be 1m to 744h"},
		{Window{Cron: "0 0 30 2 *", For: time.Hour}, "never comes"},
		{Window{Cron: "0 0 31 4,6,9,11 *", For: time.Hour}, "never comes"},
	} {
		err := c.w.check()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.w, err, c.want)
		}
	}
}

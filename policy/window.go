package policy

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// Bounds of a window.
const (
	MinWindow = time.Minute
	MaxWindow = 31 * 24 * time.Hour
	// neverOpens is how long a window may stay closed before it is taken to be a
	// mistake: 29 February comes again after at most eight years.
	neverOpens = 9 * 366 * 24 * time.Hour
)

// Window is when records may be drained: it opens at the times of a cron
// expression, on the clock of a time zone, and stays open for a while. The zero
// value is always open.
//
// The opening is a time on the wall. One that a change to summer time skips
// opens at the moment of the change; one that comes twice when summer time ends
// opens the first time only. For is elapsed time: a window of 3 hours is 3 hours
// long in such a night, too. A window that opens again before it has closed stays open.
type Window struct {
	Cron string // five fields: minute, hour, day of month, month, day of week; empty: always open
	Zone *time.Location
	For  time.Duration
}

// Span is what a window says of a moment.
type Span struct {
	Open  bool
	Until time.Time // when that changes, UTC; zero: never
}

// At tells whether the window is open at now, and until when that holds. A
// caller keeps the answer until then: it takes microseconds to milliseconds.
func (w Window) At(now time.Time) Span {
	if w.Cron == "" {
		return Span{Open: true}
	}
	opened, err := w.last(now)
	if err == nil && now.Before(opened.Add(w.For)) {
		return Span{Open: true, Until: w.close(opened)}
	}
	opens, err := w.next(now)
	if err != nil {
		return Span{} // check refuses a window that never opens
	}
	return Span{Until: opens}
}

// close is when the window that opened then closes, openings meanwhile included.
// One that opens again and again is looked at no further than that often.
func (w Window) close(opened time.Time) time.Time {
	end := opened.Add(w.For)
	for range 100 {
		next, err := w.next(opened)
		if err != nil || next.After(end) {
			break
		}
		opened, end = next, next.Add(w.For)
	}
	return end
}

// last is the latest opening that is not after now.
func (w Window) last(now time.Time) (time.Time, error) {
	at, include := w.wall(now).Add(maxShift), true
	for {
		tick, err := gronx.PrevTickBefore(w.Cron, at, include)
		if err != nil {
			return time.Time{}, err
		}
		if t := w.instant(tick); !t.After(now) {
			return t, nil
		}
		at, include = tick, false
	}
}

// next is the first opening after now.
func (w Window) next(now time.Time) (time.Time, error) {
	at, include := w.wall(now).Add(-maxShift), true
	for {
		tick, err := gronx.NextTickAfter(w.Cron, at, include)
		if err != nil {
			return time.Time{}, err
		}
		if t := w.instant(tick); t.After(now) {
			return t, nil
		}
		at, include = tick, false
	}
}

// maxShift is more than any zone's clock has been moved at once, but for the
// days that islands at the date line have skipped.
const maxShift = 3 * time.Hour

// wall is what the zone's clock shows, as if it were UTC: there every time of
// the day comes once, so that a cron expression has one meaning.
func (w Window) wall(t time.Time) time.Time {
	l := t.In(w.zone())
	return time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), l.Second(), 0, time.UTC)
}

// instant is when the zone's clock first shows the wall time t, or passes over it (UTC).
func (w Window) instant(t time.Time) time.Time {
	local := func(offset int) time.Time { return t.Add(-time.Duration(offset) * time.Second).UTC() }
	guess := time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, w.zone())
	_, before := guess.Add(-maxShift).Zone()
	_, after := guess.Add(maxShift).Zone()
	if before == after {
		return guess.UTC()
	}
	// The clock is moved near by. By the offset before, t is at first; if the clock
	// has been moved by then, t is either after the change or skipped by it.
	first := local(before)
	if _, offset := first.In(w.zone()).Zone(); offset == before {
		return first
	}
	if second := local(after); w.wall(second).Equal(t) {
		return second
	}
	start, _ := first.In(w.zone()).ZoneBounds()
	return start.UTC()
}

func (w Window) zone() *time.Location {
	if w.Zone == nil {
		return time.UTC
	}
	return w.Zone
}

// check returns what is wrong with the window.
func (w Window) check() error {
	if w.Cron == "" {
		if w.For != 0 || w.Zone != nil {
			return errors.New("cron: missing: say when the window opens, such as \"0 2 * * *\"")
		}
		return nil
	}
	if len(strings.Fields(w.Cron)) != 5 || !gronx.IsValid(w.Cron) {
		return fmt.Errorf("cron: %q is none: five fields, minute, hour, day of month, month, day of week, such as \"0 2 * * *\"", w.Cron)
	}
	if w.For < MinWindow || w.For > MaxWindow {
		return fmt.Errorf("for: %s: must be %s to %s", w.For, FormatDelay(MinWindow), FormatDelay(MaxWindow))
	}
	from := time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC) // the day after a leap day: the longest wait for the next
	if next, err := w.next(from); err != nil || next.Sub(from) > neverOpens {
		return fmt.Errorf("cron: %q never comes: no such day", w.Cron)
	}
	return nil
}

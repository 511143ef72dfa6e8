package policy

import (
	"math"
	"time"
)

// Bounds and defaults of a Limit.
const (
	MaxRate      = 1e6 // calls a second
	MaxSlowStart = 24 * time.Hour
	rampFloor    = 0.1 // of the limit, at which a slow start begins
)

// Limit bounds how fast something is called. The zero value is no limit.
type Limit struct {
	Rate      float64       // calls a second; 0: any
	Burst     int           // calls that may come at once after a rest; 0: one
	InFlight  int           // calls at a time; 0: any
	SlowStart time.Duration // after an outage, from a tenth of the limit to all of it
}

// Limiter holds a worker to its share of a limit: a bucket that fills with
// calls at the limit's rate. It is a plain value: methods return the next one, a
// copy is independent. The zero value limits nothing.
//
// Workers that share a limit divide it by the partitions that each has, see
// [Limiter.Divide]. In any span of time t all of them together make at most
// Rate × t calls, and beside that Burst, or one each if there are more workers
// than that. What a worker gets it begins with an empty bucket, so that a
// rebalance gives nobody a second burst. Of the calls at a time each has its
// part, rounded down, but one at least: InFlight is exceeded where there are
// more workers than that.
type Limiter struct {
	limit  Limit
	share  float64   // of the limit, 0 to 1
	tokens float64   // calls that may begin, as of at
	at     time.Time // zero: the bucket is full
	began  time.Time // of a slow start; zero: none
}

// NewLimiter makes the limiter of a worker that has all of l to itself, with a full bucket.
func NewLimiter(l Limit) Limiter { return Limiter{limit: l, share: 1} }

// Divide gives the worker its part of the limit: it has part of all partitions.
func (l Limiter) Divide(part, all int, now time.Time) Limiter {
	share := 1.0
	if part < all {
		share = float64(part) / float64(all)
	}
	if share == l.share {
		return l
	}
	l = l.fill(now)
	if share > l.share {
		l.tokens = 0 // another worker may have had its burst just now
	}
	l.share = share
	l.tokens = min(l.tokens, l.most())
	return l
}

// Started begins the slow start, with an empty bucket: the target is back after an outage.
func (l Limiter) Started(now time.Time) Limiter {
	if l.limit.SlowStart > 0 {
		l.began, l.at, l.tokens = now, now, 0
	}
	return l
}

// Next is when the next call may begin: now, or when to ask again.
func (l Limiter) Next(now time.Time) time.Time {
	if l.limit.Rate <= 0 {
		return now
	}
	l = l.fill(now)
	if l.tokens >= 1 {
		return now
	}
	rate := l.Rate(now)
	if rate <= 0 {
		return now.Add(time.Second) // it has no partition
	}
	return now.Add(time.Duration(math.Ceil((1 - l.tokens) / rate * float64(time.Second))))
}

// Take counts a call that begins now. Ask Next first.
func (l Limiter) Take(now time.Time) Limiter {
	if l.limit.Rate > 0 {
		l = l.fill(now)
		l.tokens--
	}
	return l
}

// fill is the bucket as of now. A clock that was set back fills nothing.
func (l Limiter) fill(now time.Time) Limiter {
	if l.at.IsZero() {
		l.tokens = l.most()
	} else if passed := now.Sub(l.at).Seconds(); passed > 0 {
		// By the rate at the beginning: in a slow start that is the lower one.
		l.tokens = min(l.tokens+passed*l.Rate(l.at), l.most())
	}
	l.at = now
	return l
}

// most is how many calls the bucket holds.
func (l Limiter) most() float64 { return max(1, float64(l.limit.Burst)*l.share) }

// InFlight is how many calls this worker may have at a time; slots is what it has at most anyway.
func (l Limiter) InFlight(slots int, now time.Time) int {
	n := slots
	if l.limit.InFlight > 0 {
		n = min(n, int(float64(l.limit.InFlight)*l.share))
	}
	return max(1, int(float64(n)*l.ramp(now)))
}

// Rate is how many calls a second this worker may make now; 0 where the limit has none.
func (l Limiter) Rate(now time.Time) float64 { return l.limit.Rate * l.share * l.ramp(now) }

// ramp is the part of the limit that a slow start lets through at now.
func (l Limiter) ramp(now time.Time) float64 {
	if l.began.IsZero() || l.limit.SlowStart <= 0 {
		return 1
	}
	passed := float64(now.Sub(l.began)) / float64(l.limit.SlowStart)
	return min(max(passed, rampFloor), 1)
}

// check reports what is wrong with the limit.
func (l Limit) check(fault func(field, format string, args ...any)) {
	if l.Rate < 0 || l.Rate > MaxRate || math.IsNaN(l.Rate) {
		fault("rate", "must be more than 0 and at most %d a second, such as 100/s or 6/m", int(MaxRate))
	} else if l.Rate > 0 && l.Rate < 1.0/86400 {
		fault("rate", "less than one a day: use a window or pause the target")
	}
	if l.Burst < 0 {
		fault("burst", "%d: must be 1 or more", l.Burst)
	} else if l.Burst > 0 && l.Rate == 0 {
		fault("burst", "is of no use without rate")
	}
	if l.InFlight < 0 {
		fault("in_flight", "%d: must be 1 or more", l.InFlight)
	}
	if l.SlowStart < 0 || l.SlowStart > MaxSlowStart {
		fault("slow_start", "%s: must be 0 (off) to %s", l.SlowStart, FormatDelay(MaxSlowStart))
	}
}

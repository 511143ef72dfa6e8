package policy

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// MaxRetryAfter is the longest pause a busy target can ask for; a longer one is cut to it.
const MaxRetryAfter = time.Hour

// Tiers are the delays of all tiers, shortest first, each once. The slice is the caller's own.
func (p *Policy) Tiers() []time.Duration {
	return slices.Clone(p.tiers)
}

// LongestTier is the longest tier that is not longer than wait; false if there is none.
func (p *Policy) LongestTier(wait time.Duration) (time.Duration, bool) {
	i, exact := slices.BinarySearch(p.tiers, wait)
	if exact {
		return wait, true
	}
	if i == 0 {
		return 0, false
	}
	return p.tiers[i-1], true
}

// MaxWait is the longest wait that policy can set: the longest tier, but at
// least MaxRetryAfter and a week. A not-before further ahead than this was not ours.
func (p *Policy) MaxWait() time.Duration {
	wait := max(MaxRetryAfter, 7*24*time.Hour)
	if n := len(p.tiers); n > 0 {
		wait = max(wait, p.tiers[n-1])
	}
	return wait
}

// FormatDelay is the canonical name of a delay, the end of its tier's topic: a
// whole number of the largest unit of h, m, s, ms (us, ns) that divides it, such as
// "10s", "90s", "24h" or "100ms". Legal in a topic's name, and one name per delay.
func FormatDelay(d time.Duration) string {
	units := [...]struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "us"}}
	for _, u := range units {
		if d%u.size == 0 {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// ParseDelay reads a delay in any form time.ParseDuration knows, not only the
// canonical one: a topic may be older than the configuration or made by hand.
// It refuses what is not more than 0.
func ParseDelay(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("delay %q: not a duration with a unit, such as 10s, 1m or 24h", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("delay %q: must be more than 0", s)
	}
	return d, nil
}

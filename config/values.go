package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Messages about values never repeat the value, but for a bare number: a
// secret that stands in the wrong place must not end in a log.

const day = 24 * time.Hour

// ParseDuration reads a duration with a unit: Go's notation (300ms, 10s,
// 1m30s, 24h), and whole days before it (7d, 1d12h). It is never negative. The
// error says which form is right.
func ParseDuration(s string) (time.Duration, error) {
	if isDigits(s) {
		return 0, fmt.Errorf("%s has no unit: write %ss, or with ms, m, h or d", s, s)
	}
	bad := errors.New("is not a duration: want a number with a unit, such as 300ms, 10s, 1m30s, 24h or 7d")
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "", s
	}
	var total time.Duration
	if found {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || !isDigits(days) || n > int64(math.MaxInt64/day) {
			return 0, bad
		}
		total = time.Duration(n) * day
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || rest[0] == '+' || rest[0] == '-' || d > math.MaxInt64-total {
			return 0, bad
		}
		total += d
	}
	if s == "" {
		return 0, bad
	}
	return total, nil
}

// units of sizes. KiB counts in 1,024, kB and KB in 1,000.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3},
	{"B", 1},
}

// parseSize reads a number of bytes: 64MiB, 64MB, or bytes without a unit.
func parseSize(s string) (int64, error) {
	bad := errors.New("is not a size: want a whole number with a unit, such as 64MiB or 64MB, or bytes without one")
	number, factor := s, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			number, factor = strings.TrimRight(n, " "), u.bytes
			break
		}
	}
	if !isDigits(number) {
		return 0, bad
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return 0, errors.New("is too large")
	}
	return n * factor, nil
}

// formatSize writes n in the largest binary unit that divides it.
func formatSize(n int64) string {
	for _, u := range units[:4] {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseNumber reads a plain decimal number; 010 and 1_000 mean different things to different readers, so they are refused.
func parseNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || strconv.Itoa(n) != s {
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

// parseBool reads true or false; YAML's other words for them mean different things to different readers.
func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, errors.New("want true or false")
	}
	return s == "true", nil
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

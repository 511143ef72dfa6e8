package worker

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestTheCollectorFollowsTheBudgetUnlessTheEnvironmentSays(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	for name, c := range map[string]struct {
		gogc, limit string
		want        int64
	}{
		"by the budget":      {want: 64<<20 + memoryBeside},
		"GOGC stands":        {gogc: "50", want: math.MaxInt64},
		"GOMEMLIMIT does so": {limit: "1GiB", want: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", c.gogc)
			t.Setenv("GOMEMLIMIT", c.limit)
			debug.SetMemoryLimit(math.MaxInt64)
			TuneMemory(64 << 20)
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the memory limit is %d, want %d", got, c.want)
			}
		})
	}
}

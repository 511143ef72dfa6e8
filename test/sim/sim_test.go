package sim

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
)

// TestSimulation runs SEEDS seeds from SEED on; see `make sim`.
func TestSimulation(t *testing.T) {
	first, n := number(t, "SEED", 1), number(t, "SEEDS", 8)
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
			if t.Failed() {
				t.Logf("to see this one again: SEED=%d SEEDS=1 go test -count=1 -v -run TestSimulation ./test/sim", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func simulate(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	produced := make(chan struct{})
	go w.produce(produced)
	w.faults()
	<-produced
	w.settle()
	w.stop()
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, s)
	}
	return n
}

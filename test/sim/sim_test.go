//go:build synctests

package sim

// The build tag makes the Kafka client wait for its mutexes in a way that lets
// the virtual clock go on; see `make sim`.

import (
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestSimulation runs SEEDS seeds from SEED on.
func TestSimulation(t *testing.T) {
	first, n := number(t, "SEED", 1), number(t, "SEEDS", 20)
	counts := map[string]int{}
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			defer watchdog(seed)()
			synctest.Test(t, func(t *testing.T) {
				for kind, n := range simulate(t, seed) {
					counts[kind] += n
				}
			})
			if t.Failed() {
				t.Logf("to see this one again: make sim SEED=%d SEEDS=1 SIM_FLAGS=-v", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d seeds: %s", n, tally(counts))
	for _, kind := range kinds {
		if n >= 100 && counts[kind] == 0 {
			t.Errorf("in %d seeds not once: %s", n, kind)
		}
	}
}

// simulate returns how often each kind of fault came.
func simulate(t *testing.T, seed uint64) map[string]int {
	w := newWorld(t, seed)
	produced := make(chan struct{})
	go w.produce(produced)
	w.faults()
	<-produced
	w.settle()
	w.stop()
	w.k.told(t)
	return w.k.came()
}

// spin is how long, in real time, a seed may take. One that takes longer does
// not wait for anything: something runs in circles while the virtual clock stands.
const spin = time.Minute

// watchdog ends the program if a seed spins, and leaves a profile of what does.
func watchdog(seed uint64) (stop func()) {
	t := time.AfterFunc(spin, func() {
		name := filepath.Join(os.TempDir(), "recon-dlq-sim-"+strconv.FormatUint(seed, 10)+".pprof")
		if f, err := os.Create(name); err == nil && pprof.StartCPUProfile(f) == nil {
			<-time.After(2 * time.Second)
			pprof.StopCPUProfile()
			f.Close()
		}
		panic("seed " + strconv.FormatUint(seed, 10) + " spins: see the profile " + name)
	})
	return func() { t.Stop() }
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

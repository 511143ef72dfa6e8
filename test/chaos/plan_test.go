package main

import (
	"cmp"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheSameSeedGivesTheSamePlan(t *testing.T) {
	type when struct{ worker, at int }
	moments := func(seed uint64) (ms []when) {
		for _, b := range planByEffects(rand.New(rand.NewPCG(seed, 0)), killed, 50, 3, 1000) {
			if b.victim < 0 || b.victim >= 3 || b.at < 0 || b.at > 900 || b.delay < 0 || b.delay >= maxDelay || b.pause < 0 || b.pause >= killed.most {
				t.Errorf("a blow is out of bounds: %+v", b)
			}
			ms = append(ms, when{b.victim, b.at})
		}
		return ms
	}
	first := moments(7)
	if !slices.IsSortedFunc(first, func(a, b when) int { return a.at - b.at }) {
		t.Errorf("blows are not in the order of their moments: %v", first)
	}
	if again := moments(7); !slices.Equal(first, again) {
		t.Errorf("seed 7 gave %v, then %v", first, again)
	}
	if other := moments(8); slices.Equal(first, other) {
		t.Error("two seeds give one plan")
	}
}

func TestTenMinutesHaveMoreThanAHundredFaultsOfEveryKind(t *testing.T) {
	const length = 10 * time.Minute
	for seed := range uint64(20) {
		kinds := make(map[string]int)
		blows := planByTime(rand.New(rand.NewPCG(seed, 0)), length, 4*time.Second, 3, 3)
		for _, b := range blows {
			kinds[b.fault.name]++
			if b.victim < 0 || b.victim >= 3 || b.after <= 0 || b.after >= length || b.pause < b.fault.least || b.pause >= b.fault.most {
				t.Errorf("seed %d: a blow is out of bounds: %s on %d after %s for %s", seed, b.fault.name, b.victim, b.after, b.pause)
			}
		}
		if len(blows) <= 100 {
			t.Errorf("seed %d has %d faults, want more than 100", seed, len(blows))
		}
		for _, f := range slices.Concat(workerFaults, nodeFaults) {
			if kinds[f.name] == 0 {
				t.Errorf("seed %d has no %q", seed, f.name)
			}
		}
		if !slices.IsSortedFunc(blows, func(a, b blow) int { return cmp.Compare(a.after, b.after) }) {
			t.Errorf("seed %d: blows are not in the order of their moments", seed)
		}
	}
}

func TestASingleNodeIsLeftAlone(t *testing.T) {
	for _, b := range planByTime(rand.New(rand.NewPCG(1, 0)), time.Hour, 4*time.Second, 3, 1) {
		if b.fault.node != nil {
			t.Fatalf("%s on the only node", b.fault.name)
		}
	}
}

func TestFlagsOutOfBoundsAreRefusedByName(t *testing.T) {
	for _, args := range []string{"-records 0", "-records 9999999999", "-kills -1", "-workers -1", "-nodes 9", "-rate -1", "-stall -1s", "-for -1s", "-for 24h", "-every 1ms", "-txn 3", "-delivery twice", "-o yaml", "extra"} {
		_, err := parse(strings.Fields(args), io.Discard)
		if name := strings.Fields(args)[0]; err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names %s", args, err, name)
		}
	}
	o, err := parse(strings.Fields("-records 5 -kills 1 -static=false"), io.Discard)
	if err != nil || o.records != 5 || o.kills != 1 || o.static || o.seed == 0 {
		t.Errorf("parsed %+v (%v), want what was said and a random seed", o, err)
	}
	o, err = parse(strings.Fields("-for 2m -nodes 3"), io.Discard)
	if err != nil || o.records != 120*defaultRate || o.rate != defaultRate || o.workers != 3 || o.cluster().Doors != 3 || o.timeout <= o.length {
		t.Errorf("parsed %+v (%v), want records at the default rate for two minutes, and a door for each worker", o, err)
	}
}

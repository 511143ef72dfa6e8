package main

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
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

func TestFlagsOutOfBoundsAreRefusedByName(t *testing.T) {
	for _, args := range []string{"-records 0", "-records 9999999999", "-kills -1", "-workers -1", "-nodes 9", "-rate -1", "-stall -1s", "-for -1s", "-txn 3", "-delivery twice", "-o yaml", "extra"} {
		_, err := parse(strings.Fields(args), io.Discard)
		if name := strings.Fields(args)[0]; err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names %s", args, err, name)
		}
	}
	o, err := parse(strings.Fields("-records 5 -kills 1 -static=false"), io.Discard)
	if err != nil || o.records != 5 || o.kills != 1 || o.static || o.seed == 0 {
		t.Errorf("parsed %+v (%v), want what was said and a random seed", o, err)
	}
}

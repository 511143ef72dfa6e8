package main

import (
	"os"
	"runtime"
	"testing"
	"time"
)

func TestAProcessWithParenthesesInItsNameIsRead(t *testing.T) {
	const line = "4242 (a (b) c) S 17 4242 4242 0 -1 4194560 3 0 0 0 150 50 20 5 20 0 7 0 99 1000 200\n"
	got, err := parseProcess([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if want := (process{pid: 4242, parent: 17, name: "a (b) c", cpu: 2250 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestGarbageIsNotTakenForAProcess(t *testing.T) {
	for _, line := range []string{"", "1 (x", ") 1 (", "1 (x) S 2", "x (x) S 2 0 0 0 0 0 0 0 0 0 1 1 1 1 0", "1 (x) S 2 0 0 0 0 0 0 0 0 0 1 1 y 1 0"} {
		if p, err := parseProcess([]byte(line)); err == nil {
			t.Errorf("%q is read as %+v", line, p)
		}
	}
}

func TestInterruptsAndIdleTimeAreNobodysWork(t *testing.T) {
	busy, all, err := parseStat([]byte("cpu  100 10 50 800 40 5 7 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if busy != 1630*time.Millisecond || all != 10150*time.Millisecond {
		t.Errorf("busy %s of %s, want 1.63s of 10.15s", busy, all)
	}
	for _, s := range []string{"", "cpu 1 2 3", "cpux 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		if _, _, err := parseStat([]byte(s)); err == nil {
			t.Errorf("%q is read", s)
		}
	}
}

func TestForeignLoadIsWhatNeitherWeNorTheBrokersUsed(t *testing.T) {
	before := cpu{client: 1 * time.Second, brokers: 2 * time.Second, busy: 10 * time.Second, all: 100 * time.Second}
	after := cpu{client: 2 * time.Second, brokers: 5 * time.Second, busy: 16 * time.Second, all: 120 * time.Second}
	if got := after.since(before).foreign(); got != 0.1 {
		t.Errorf("foreign load %v, want 0.1", got)
	}
	if got := (cpu{}).foreign(); got >= 0 {
		t.Errorf("foreign load %v where nothing is known, want a negative value", got)
	}
}

func TestTheWorkOfAGrandchildIsOurs(t *testing.T) {
	all := map[int]process{1: {pid: 1}, 10: {pid: 10, parent: 1}, 20: {pid: 20, parent: 10}, 30: {pid: 30, parent: 20}, 40: {pid: 40, parent: 1}}
	for pid, want := range map[int]bool{1: false, 10: true, 20: true, 30: true, 40: false} {
		if got := descends(all, all[pid], 10); got != want {
			t.Errorf("process %d descends from 10: %v, want %v", pid, got, want)
		}
	}
}

func TestTheMemoryPeakIsRead(t *testing.T) {
	got, err := parsePeak([]byte("Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n"))
	if err != nil || got != 2<<20 {
		t.Errorf("got %d, %v, want %d", got, err, 2<<20)
	}
	for _, s := range []string{"", "VmRSS: 1 kB\n", "VmHWM: x kB\n"} {
		if _, err := parsePeak([]byte(s)); err == nil {
			t.Errorf("%q is read", s)
		}
	}
}

func TestThisMachineIsReadable(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	if c := readCPU(); c.all <= 0 || c.busy > c.all || c.client > c.busy {
		t.Errorf("read %+v", c)
	}
	if peak, err := peakMemory(os.Getpid()); err != nil || peak < 1<<20 {
		t.Errorf("peak %d, %v", peak, err)
	}
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time under /proc: USER_HZ, which is 100 on every
// architecture that Linux runs Java on.
const tick = 10 * time.Millisecond

// cpu is CPU time used up to now.
type cpu struct {
	client  time.Duration // this process and its children but the brokers
	brokers time.Duration
	busy    time.Duration // the whole machine at work, interrupts not included: they are nobody's
	all     time.Duration // the whole machine, idle time included; 0: not known
}

// since is what was used after before.
func (c cpu) since(before cpu) cpu {
	return cpu{c.client - before.client, c.brokers - before.brokers, c.busy - before.busy, c.all - before.all}
}

// foreign is the share of the machine that was used by others; negative if it is not known.
func (c cpu) foreign() float64 {
	if c.all <= 0 {
		return -1
	}
	return max(0, (c.busy-c.client-c.brokers).Seconds()/c.all.Seconds())
}

// readCPU reads what has been used. Where there is no /proc nothing is known, and all is zero.
func readCPU() cpu {
	var c cpu
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return c
	}
	if c.busy, c.all, err = parseStat(stat); err != nil {
		return cpu{}
	}
	processes := map[int]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if p, err := parseProcess(b); err == nil {
			processes[p.pid] = p
		}
	}
	self := os.Getpid()
	for _, p := range processes {
		switch {
		case !descends(processes, p, self):
		case p.name == "java":
			c.brokers += p.cpu
		default:
			c.client += p.cpu
		}
	}
	return c
}

// descends reports whether p is ancestor or below it.
func descends(all map[int]process, p process, ancestor int) bool {
	for p.pid != ancestor {
		parent, ok := all[p.parent]
		if !ok {
			return false
		}
		p = parent
	}
	return true
}

// process is what /proc/<pid>/stat says.
type process struct {
	pid, parent int
	name        string
	cpu         time.Duration // of its own and of its children that have ended
}

var errProc = errors.New("not in the format of proc(5)")

// parseProcess reads /proc/<pid>/stat. The name is in parentheses and may itself
// have some: the last one ends it.
func parseProcess(b []byte) (process, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return process{}, errProc
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:open])))
	fields := strings.Fields(string(b[end+1:])) // from the third on: state, ppid, ...
	if err != nil || len(fields) < 15 {
		return process{}, errProc
	}
	p := process{pid: pid, name: string(b[open+1 : end])}
	if p.parent, err = strconv.Atoi(fields[1]); err != nil {
		return process{}, errProc
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return process{}, errProc
		}
		p.cpu += time.Duration(ticks) * tick
	}
	return p, nil
}

// parseStat reads the first line of /proc/stat.
func parseStat(b []byte) (busy, all time.Duration, err error) {
	line, _, _ := strings.Cut(string(b), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, errProc
	}
	for i, f := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, errProc
		}
		all += time.Duration(ticks) * tick
		switch i {
		case 0, 1, 2, 7:
			busy += time.Duration(ticks) * tick
		}
	}
	return busy, all, nil
}

// peakMemory is the most memory a process has had resident, in bytes.
func peakMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parsePeak(b)
}

// parsePeak reads VmHWM of /proc/<pid>/status.
func parsePeak(b []byte) (int64, error) {
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, errProc
			}
			return kib << 10, nil
		}
	}
	return 0, errProc
}

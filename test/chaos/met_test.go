package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestErrorCodesAreCountedOnceALineAndNothingElseIs(t *testing.T) {
	log := filepath.Join(t.TempDir(), "w1.log")
	text := "level=WARN error=\"commit: UNKNOWN_MEMBER_ID: the member: UNKNOWN_MEMBER_ID\"\n" +
		"level=WARN error=\"end: PRODUCER_FENCED\" topic=SOME_TOPIC\nlevel=INFO msg=done\nlevel=WARN error=UNKNOWN_MEMBER_ID,REBALANCE_IN_PROGRESS\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	met := make(map[string]int)
	if err := errorsMet(log, met); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"UNKNOWN_MEMBER_ID": 2, "PRODUCER_FENCED": 1, "REBALANCE_IN_PROGRESS": 1}; !maps.Equal(met, want) {
		t.Errorf("met %v, want %v", met, want)
	}
}

func TestWhatIsInFlightIsReadFromTheMetrics(t *testing.T) {
	metrics := "recon_dlq_inflight{state=\"calling\"} 3\nrecon_dlq_inflight{state=\"due\"} 1e+03\n" +
		"recon_dlq_inflight{state=\"uncommitted\"} 20\nrecon_dlq_inflight{state=\"waiting\"} 777\nrecon_dlq_inflight_bytes 4096\n"
	if n := inflightOf(metrics); n != 1023 {
		t.Errorf("%d in flight, want those called, due and uncommitted: 1023", n)
	}
}

func TestAFaultIsChargedWithWhatWasInFlightUntilItWasOver(t *testing.T) {
	start := time.UnixMilli(1_790_000_000_000)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	samples := []sample{{at(0), 500}, {at(10), 7}, {at(20), 40}, {at(21), 30}, {at(30), 600}}
	if n := atMost(samples, at(15), at(25)); n != 40 {
		t.Errorf("%d in flight, want the most of what was seen meanwhile: 40", n)
	}
	if n := atMost(samples, at(12), at(15)); n != 7 {
		t.Errorf("%d in flight, want what was seen last before: 7", n)
	}
}

package deadletter_test

import (
	"testing"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Faults that other systems' users met, by their id, as far as they are about
// one record and its headers.

// hops takes a record from its source through n tiers to poison, and returns its
// last copy. Headers on the source that look like ours are only forged ones.
func hops(t *testing.T, n int, onSource ...deadletter.Header) (deadletter.Record, []deadletter.Header) {
	t.Helper()
	r, err := readSource([]byte(plainValue), onSource...)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		r.Attempt++
		r.NotBefore, r.FirstFailed = arrived+1, arrived
		r.ErrorClass, r.Error = "http_500", "the target says no"
		if r, err = readCopy(deadletter.Tier, r.Headers()...); err != nil {
			t.Fatal(err)
		}
	}
	r.Attempt++
	r.Reason = deadletter.ReasonAttemptsExhausted
	return r, r.Headers()
}

func TestC013ControlHeadersAreReplacedAtEachHopAndNeverAppended(t *testing.T) {
	r, headers := hops(t, 3,
		header("recon-attempt", "0"), header("route", "a"), header("recon-attempt", "0"), header("route", "b"), header("route", "a"))
	counts := map[string]int{}
	for _, h := range headers {
		counts[h.Key]++
	}
	for key, n := range counts {
		if want := map[bool]int{true: 3, false: 1}[key == "route"]; n != want {
			t.Errorf("%d headers %s, want %d", n, key, want)
		}
	}
	for _, key := range []string{deadletter.HeaderAttempt, deadletter.HeaderNotBefore, deadletter.HeaderOrigin, deadletter.HeaderID, deadletter.HeaderReason} {
		if counts[key] != 1 {
			t.Errorf("%d headers %s, want 1", counts[key], key)
		}
	}
	if r.Attempt != 4 || r.Origin != place.String() {
		t.Errorf("attempt %d, origin %s", r.Attempt, r.Origin)
	}
	if want := []deadletter.Header{header("route", "a"), header("route", "b"), header("route", "a")}; !sameHeaders(headers[:3], want) {
		t.Errorf("foreign headers are %q", headers[:3])
	}
}

func TestC095RepeatedHeaderNamesKeepTheirOrderBeforeOurs(t *testing.T) {
	foreign := []deadletter.Header{header("route", "a"), header("x", "1"), header("route", "b")}
	_, headers := hops(t, 3, foreign...)
	if !sameHeaders(headers[:len(foreign)], foreign) {
		t.Errorf("a copy begins with %q", headers[:len(foreign)])
	}
	for _, h := range headers[len(foreign):] {
		if h.Key == "route" || h.Key == "x" {
			t.Errorf("%s=%s is there again", h.Key, h.Value)
		}
	}
}

package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

var (
	ok          = deadletter.Outcome{Class: deadletter.Resolved}
	permanent   = deadletter.Outcome{Class: deadletter.Permanent}
	suspect     = deadletter.Outcome{Class: deadletter.Suspect, Cause: "timeout"}
	inProgress  = deadletter.Outcome{Class: deadletter.InProgress}
	unavailable = deadletter.Outcome{Class: deadletter.Unavailable, Cause: "refused"}
	stopped     = deadletter.Outcome{Class: deadletter.Stopped}
)

func busyFor(d time.Duration) deadletter.Outcome {
	return deadletter.Outcome{Class: deadletter.Busy, RetryAfter: d}
}

// openBreaker was opened at t0 by the refused record "x".
func openBreaker() Breaker {
	b, _, _ := Breaker{}.Observe("x", Refusals{}, unavailable, 0, t0)
	return b
}

// target plays a breaker's caller.
type target struct {
	testing.TB
	b    Breaker
	now  time.Time
	seen map[string]Refusals
}

func newTarget(t testing.TB, o BreakerOptions) *target {
	return &target{TB: t, b: NewBreaker(o), now: t0, seen: map[string]Refusals{}}
}

// begin lets a call begin and fails the test if it may not.
func (g *target) begin(id string) Verdict {
	g.Helper()
	b, v := g.b.Admit(id, g.now)
	if !v.Call {
		g.Fatalf("%s may not be called at +%s, but at +%s", id, g.now.Sub(t0), v.Until.Sub(t0))
	}
	g.b = b
	return v
}

// refuse fails the test if a call may begin.
func (g *target) refuse(id string, until time.Duration) {
	g.Helper()
	b, v := g.b.Admit(id, g.now)
	if v.Call || b != g.b || !v.Until.Equal(t0.Add(until)) {
		g.Fatalf("%s at +%s: call %v, until +%s, want +%s", id, g.now.Sub(t0), v.Call, v.Until.Sub(t0), until)
	}
}

func (g *target) end(id string, v Verdict, o deadletter.Outcome) Ruling {
	var ruling Ruling
	g.b, g.seen[id], ruling = g.b.Observe(id, g.seen[id], o, v.Epoch, g.now)
	return ruling
}

func (g *target) call(id string, o deadletter.Outcome) Ruling {
	g.Helper()
	return g.end(id, g.begin(id), o)
}

func (g *target) state(want BreakerState) {
	g.Helper()
	if got := g.b.State(g.now); got != want {
		g.Fatalf("state %s at +%s, want %s", got, g.now.Sub(t0), want)
	}
}

func TestAClosedBreakerCountsWhatIsTheRecordsFault(t *testing.T) {
	for _, c := range []struct {
		name string
		o    deadletter.Outcome
		hold bool
	}{
		{"resolved", ok, false}, {"permanent", permanent, false}, {"in progress", inProgress, false}, {"suspect", suspect, false},
		{"busy", busyFor(time.Second), true}, {"unavailable", unavailable, true}, {"stopped", stopped, true},
		{"a class nobody knows", deadletter.Outcome{Class: 99}, false},
	} {
		got := newTarget(t, BreakerOptions{}).call("a", c.o)
		if want := (Ruling{Outcome: c.o, Hold: c.hold, Opened: c.o.Class == deadletter.Unavailable}); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}

func TestDifferentRecordsThatFailInARowOpenTheBreaker(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	for _, id := range []string{"a", "b", "a", "c", "d"} {
		if r := g.call(id, suspect); r.Hold || r.Opened {
			t.Fatalf("%s: %+v", id, r)
		}
	}
	g.state(BreakerClosed)
	if r := g.call("e", suspect); !r.Hold || !r.Opened {
		t.Errorf("the fifth record: %+v", r)
	}
	g.state(BreakerOpen)
}

func TestAnAnswerBetweenFailuresBeginsTheRowAgain(t *testing.T) {
	for name, answer := range map[string]deadletter.Outcome{"resolved": ok, "permanent": permanent, "in progress": inProgress} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t, BreakerOptions{Threshold: 3})
			for i := range 50 {
				if r := g.call(fmt.Sprint(i), suspect); r.Hold {
					t.Fatalf("failure %d is held: %+v", i, r)
				}
				if i%2 == 1 {
					g.call("z", answer)
				}
			}
		})
	}
}

func TestOneRecordThatFailsForEverOpensNothing(t *testing.T) {
	for _, threshold := range []int{-1, 1, 2, 5} { // below two is moved to two
		g := newTarget(t, BreakerOptions{Threshold: threshold})
		for range 100 {
			if r := g.call("a", suspect); r.Hold || r.Opened {
				t.Fatalf("threshold %d: %+v", threshold, r)
			}
		}
	}
}

func TestARefusedCallOpensAtOnceAndIsNotCounted(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	if r := g.call("a", unavailable); !r.Hold || !r.Opened || r.Outcome != unavailable {
		t.Errorf("got %+v", r)
	}
	g.state(BreakerOpen)
}

func TestARecordRefusedThreeTimesWhileOthersSucceedIsAtFault(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	for n := 1; n <= 2; n++ {
		if r := g.call("bad", unavailable); !r.Hold || !r.Opened {
			t.Fatalf("refusal %d: %+v", n, r)
		}
		g.now = g.b.NextProbe()
		if r := g.call("good", ok); !r.Closed {
			t.Fatalf("a probe after refusal %d: %+v", n, r)
		}
	}
	want := suspect
	want.Cause = unavailable.Cause
	if r := g.call("bad", unavailable); r != (Ruling{Outcome: want}) {
		t.Errorf("third refusal: %+v", r)
	}
	g.state(BreakerClosed)
	if r := g.call("bad", unavailable); !r.Opened {
		t.Errorf("counting does not begin again: %+v", r)
	}
}

func TestRefusedProbesDuringOneOutageAreOneRefusal(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	g.call("a", unavailable)
	for range 5 {
		g.now = g.b.NextProbe().Add(time.Second)
		g.call("a", unavailable)
	}
	g.now = g.b.NextProbe()
	g.call("b", ok)
	if r := g.call("a", unavailable); !r.Hold {
		t.Errorf("the second outage of this record counts: %+v", r)
	}
}

func TestARecordRefusedWhileNothingSucceedsIsNeverAtFault(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	g.call("a", unavailable)
	for n := range 100 {
		g.now = g.b.NextProbe().Add(time.Second)
		if r := g.call("a", unavailable); !r.Hold || r.Outcome != unavailable {
			t.Fatalf("probe %d: %+v", n, r)
		}
	}
}

func TestProbesBackOffFromOneSecondToThirty(t *testing.T) {
	for name, o := range map[string]deadletter.Outcome{"unavailable": unavailable, "suspect": suspect} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t, BreakerOptions{})
			g.call("x", unavailable)
			for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
				if got := g.b.NextProbe().Sub(g.now); got != want*time.Second {
					t.Fatalf("probe %d after %s, want %d s", i, got, want)
				}
				g.now = g.b.NextProbe()
				if r := g.call(fmt.Sprint(i), o); r != (Ruling{Outcome: o, Hold: true}) {
					t.Fatalf("probe %d: %+v", i, r)
				}
			}
		})
	}
}

func TestOnlyOneProbeIsOutAtATime(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	g.call("x", unavailable)
	g.refuse("a", time.Second)
	g.now = t0.Add(time.Second)
	v := g.begin("a")
	if !v.Probe {
		t.Errorf("got %+v", v)
	}
	g.state(BreakerProbing)
	g.refuse("b", time.Second+probeLease)

	g.end("a", v, stopped) // given up: the next one may go
	g.state(BreakerOpen)
	g.begin("b")
	g.now = g.now.Add(probeLease) // never told: neither is this the end
	g.begin("c")
}

func TestARecordThatHasNotFailedProbesFirst(t *testing.T) {
	g := newTarget(t, BreakerOptions{Threshold: 3})
	for _, id := range []string{"a", "b", "c"} {
		g.call(id, suspect)
	}
	for _, id := range []string{"a", "b", "c"} { // it was they who opened it
		g.refuse(id, time.Second)
	}
	g.call("d", suspect)
	g.refuse("d", time.Second)
	g.now = g.now.Add(time.Second) // nobody else came
	if r := g.call("d", ok); !r.Closed {
		t.Errorf("got %+v", r)
	}
}

func TestAfterFailuresInARowThresholdProbesGoAtOnceAndThenTheyBackOff(t *testing.T) {
	g := newTarget(t, BreakerOptions{Threshold: 3})
	for i := range 6 { // three open it, three probe
		if next := g.b.NextProbe(); next.After(g.now) {
			t.Fatalf("call %d waits until +%s", i, next.Sub(t0))
		}
		g.call(fmt.Sprint("s", i), suspect)
	}
	for _, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if got := g.b.NextProbe().Sub(g.now); got != wait {
			t.Fatalf("the next probe is in %s, want %s", got, wait)
		}
		g.now = g.b.NextProbe()
		g.call("s"+wait.String(), suspect)
	}
}

func TestATargetThatIsWellIsNotHeldForRecordsThatFailByThemselves(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	for i := range 5 {
		g.call(fmt.Sprint("bad", i), suspect)
	}
	g.state(BreakerOpen)
	if r := g.call("good", ok); !r.Closed || g.now != t0 {
		t.Errorf("%+v after %s", r, g.now.Sub(t0))
	}
}

func TestATargetThatCannotBeReachedIsNotProbedAtOnce(t *testing.T) {
	g := newTarget(t, BreakerOptions{Threshold: 3})
	for _, id := range []string{"a", "b", "c"} {
		g.call(id, suspect)
	}
	g.call("d", unavailable)
	g.refuse("e", time.Second)
}

func TestAFewBadRecordsDoNotKeepTheTargetHeldForTheOthers(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	ids := []string{"bad0", "bad1", "bad2", "bad3", "bad4", "good"} // asked in this order, every time
	for _, id := range ids[:5] {
		g.call(id, suspect)
	}
	g.state(BreakerOpen)
	for range 3 {
		g.now = g.b.NextProbe()
		for _, id := range ids {
			b, v := g.b.Admit(id, g.now)
			g.b = b
			if v.Call {
				o := suspect
				if id == "good" {
					o = ok
				}
				if g.end(id, v, o).Closed {
					return
				}
			}
		}
	}
	t.Error("still open after three probes")
}

func TestAnAnsweredProbeCloses(t *testing.T) {
	for name, o := range map[string]deadletter.Outcome{"resolved": ok, "permanent": permanent, "in progress": inProgress} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t, BreakerOptions{Threshold: 2})
			g.call("a", suspect)
			g.call("b", suspect)
			g.now = g.b.NextProbe()
			if r := g.call("c", o); r != (Ruling{Outcome: o, Closed: true}) {
				t.Fatalf("got %+v", r)
			}
			g.state(BreakerClosed)
			if r := g.call("a", suspect); r.Hold { // the row begins again
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestWhatWasInFlightWhenTheBreakerOpenedIsHeld(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	late := map[string]Verdict{}
	for _, id := range []string{"l1", "l2", "l3", "l4"} {
		late[id] = g.begin(id)
	}
	g.call("x", unavailable)
	for id, o := range map[string]deadletter.Outcome{"l1": suspect, "l2": unavailable} {
		if r := g.end(id, late[id], o); r != (Ruling{Outcome: o, Hold: true}) {
			t.Errorf("%s while open: %+v", id, r)
		}
	}
	if next := g.b.NextProbe(); !next.Equal(t0.Add(time.Second)) {
		t.Errorf("late failures moved the probe to +%s", next.Sub(t0))
	}
	g.now = g.b.NextProbe()
	g.call("y", ok)
	for id, o := range map[string]deadletter.Outcome{"l3": suspect, "l4": unavailable} {
		if r := g.end(id, late[id], o); r != (Ruling{Outcome: o, Hold: true}) {
			t.Errorf("%s after closing: %+v", id, r)
		}
	}
	g.state(BreakerClosed)
}

func TestAProbeThatFailsAfterTheBreakerClosedIsHeld(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	g.call("x", unavailable)
	g.now = g.b.NextProbe()
	slow := g.begin("a")
	g.now = g.now.Add(probeLease)
	g.call("b", ok)
	if r := g.end("a", slow, suspect); r != (Ruling{Outcome: suspect, Hold: true}) {
		t.Errorf("got %+v", r)
	}
	g.state(BreakerClosed)
}

func TestALatePauseLetsNoSecondProbeOut(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	late := g.begin("l")
	g.call("x", unavailable)
	g.now = g.b.NextProbe()
	g.begin("a")
	g.end("l", late, busyFor(time.Millisecond))
	g.state(BreakerProbing)
	g.refuse("b", time.Second+probeLease)
}

func TestProbesOfATargetThatWasBusyBeforeBeginWithTheShortestWait(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	for range 5 {
		g.call("a", busyFor(0))
		g.now = g.b.NextProbe()
	}
	g.call("a", unavailable)
	if got := g.b.NextProbe().Sub(g.now); got != time.Second {
		t.Errorf("first probe after %s", got)
	}
}

func TestOfTheRecordsThatFailedTheLastSixtyFourAreRemembered(t *testing.T) {
	g := newTarget(t, BreakerOptions{Threshold: 1000}) // moved to 64
	for i := range maxThreshold - 1 {
		if r := g.call(fmt.Sprint(i), suspect); r.Opened {
			t.Fatalf("opened by %d records", i+1)
		}
	}
	if r := g.call(fmt.Sprint(maxThreshold-1), suspect); !r.Opened {
		t.Fatalf("not opened by %d records", maxThreshold)
	}
	g.now = g.b.NextProbe()
	g.call("one more", suspect)
	for i := range maxThreshold {
		if got := g.b.hasFailed(fmt.Sprint(i)); got != (i > 0) {
			t.Errorf("record %d is remembered: %v", i, got)
		}
	}
}

func TestALateAnswerSettlesItsRecordAndBringsTheProbeForward(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	v1, v2 := g.begin("l1"), g.begin("l2")
	g.call("x", unavailable)
	if r := g.end("l1", v1, ok); r != (Ruling{Outcome: ok}) {
		t.Fatalf("got %+v", r)
	}
	g.state(BreakerOpen)
	probe := g.begin("y")
	if r := g.end("l2", v2, permanent); r != (Ruling{Outcome: permanent}) {
		t.Fatalf("got %+v", r)
	}
	g.refuse("z", probeLease) // not two at a time
	if r := g.end("y", probe, ok); !r.Closed {
		t.Fatalf("got %+v", r)
	}
}

func TestABusyTargetIsLeftAloneForTheTimeItNamed(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{
		time.Minute: time.Minute, 3 * time.Hour: MaxRetryAfter, 0: time.Second, -time.Hour: time.Second,
	} {
		g := newTarget(t, BreakerOptions{})
		if r := g.call("a", busyFor(asked)); r.Opened || !r.Hold {
			t.Fatalf("asked for %s: %+v", asked, r)
		}
		g.state(BreakerBusy)
		g.refuse("b", want)
		g.now = t0.Add(want - 1)
		g.refuse("b", want)
		g.now = t0.Add(want)
		g.state(BreakerClosed)
		g.begin("b")
	}
}

func TestABusyTargetThatNamesNoTimeIsAskedLessAndLessOften(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		v1, v2 := g.begin("a"), g.begin("b")
		g.end("a", v1, busyFor(0))
		g.end("b", v2, busyFor(0)) // the same pause, not the next longer
		if got := g.b.NextProbe().Sub(g.now); got != want*time.Second {
			t.Fatalf("pause %d is %s, want %d s", i, got, want)
		}
		g.now = g.b.NextProbe()
	}
	g.call("a", ok)
	g.call("a", busyFor(0))
	if got := g.b.NextProbe().Sub(g.now); got != time.Second {
		t.Errorf("after an answer the pause is %s", got)
	}
}

func TestTheLongestOfSeveralPausesHolds(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	v1, v2 := g.begin("a"), g.begin("b")
	g.end("a", v1, busyFor(time.Minute))
	g.end("b", v2, busyFor(time.Second))
	g.refuse("c", time.Minute)
}

func TestABusyProbeKeepsTheBreakerOpenUntilThen(t *testing.T) {
	g := newTarget(t, BreakerOptions{})
	g.call("x", unavailable)
	g.now = g.b.NextProbe()
	if r := g.call("a", busyFor(5*time.Minute)); r.Closed || !r.Hold {
		t.Fatalf("got %+v", r)
	}
	g.state(BreakerOpen)
	g.refuse("b", 5*time.Minute+time.Second)
	g.now = g.b.NextProbe()
	if r := g.call("b", ok); !r.Closed {
		t.Fatalf("got %+v", r)
	}
}

func TestABreakerIsAValue(t *testing.T) {
	closed, open := Breaker{}, openBreaker()
	wantClosed, wantOpen := closed, open
	closed.Observe("a", Refusals{}, unavailable, 0, t0)
	open.Admit("a", t0.Add(time.Hour))
	open.Observe("a", Refusals{}, ok, 1, t0)
	if closed != wantClosed || open != wantOpen {
		t.Error("a method changed its receiver")
	}
	if !(Breaker{}).NextProbe().IsZero() {
		t.Error("a breaker that was never held has a next probe")
	}
}

// world runs calls against a breaker in any interleaving that the breaker lets happen.
type world struct {
	b        Breaker
	now      time.Time
	seen     map[string]Refusals
	inFlight map[string]Verdict
	order    []string // in flight, as begun
}

func drawWorld(t *rapid.T) *world {
	return &world{
		b: NewBreaker(BreakerOptions{
			Threshold: rapid.IntRange(0, 10).Draw(t, "threshold"),
			ProbeMin:  time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "probe min")),
			ProbeMax:  time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "probe max")),
		}),
		now:  t0,
		seen: map[string]Refusals{}, inFlight: map[string]Verdict{},
	}
}

// step begins or ends a call, or lets time pass. It returns the ruling of a call that ended.
func (w *world) step(t *rapid.T, classes ...deadletter.Class) (id string, r Ruling, ended bool) {
	switch what := rapid.IntRange(0, 4).Draw(t, "step"); {
	case what == 0:
		w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "time")))
	case what < 3 || len(w.order) == 0:
		w.begin(t, fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "record")))
	default:
		i := rapid.IntRange(0, len(w.order)-1).Draw(t, "which")
		id = w.order[i]
		return id, w.end(id, drawOutcome(t, classes...)), true
	}
	return "", Ruling{}, false
}

func (w *world) begin(t *rapid.T, id string) {
	if _, busy := w.inFlight[id]; busy {
		return
	}
	b, v := w.b.Admit(id, w.now)
	w.b = b
	if v.Call {
		w.inFlight[id], w.order = v, append(w.order, id)
	} else if !v.Until.After(w.now) {
		t.Fatalf("refused until %s, it is %s", v.Until, w.now)
	}
}

func (w *world) end(id string, o deadletter.Outcome) Ruling {
	var r Ruling
	w.b, w.seen[id], r = w.b.Observe(id, w.seen[id], o, w.inFlight[id].Epoch, w.now)
	delete(w.inFlight, id)
	w.order = slices.DeleteFunc(w.order, func(other string) bool { return other == id })
	return r
}

func TestAnOutageOfAnyLengthBurnsFewerAttemptsThanTheThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		threshold := w.b.opts.Threshold
		different := map[string]bool{}
		opened := false
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			id, r, ended := w.step(t, deadletter.Suspect, deadletter.Unavailable, deadletter.Busy, deadletter.Stopped)
			if !ended {
				continue
			}
			if opened && !r.Hold {
				t.Fatalf("%s counts while the target is down", id)
			}
			if !r.Hold {
				different[id] = true
			}
			opened = opened || r.Opened
			if len(different) >= threshold {
				t.Fatalf("%d records lost an attempt, threshold %d", len(different), threshold)
			}
		}
		if !opened {
			return
		}
		// The target is back. What began during the outage still fails: that is not counted either.
		for _, id := range slices.Clone(w.order) {
			if w.inFlight[id].Epoch != w.b.epoch {
				if r := w.end(id, suspect); !r.Hold {
					t.Fatalf("%s began before and counts: %+v", id, r)
				}
			}
		}
	})
}

func TestARecordThatFailsAloneAmongOthersNeverOpensTheBreaker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "record"))
			b, v := w.b.Admit(id, w.now)
			if !v.Call {
				t.Fatalf("%s is held", id)
			}
			w.b, w.inFlight[id] = b, v
			o := suspect
			if id != "0" {
				o.Class = rapid.SampledFrom([]deadletter.Class{deadletter.Resolved, deadletter.Permanent, deadletter.InProgress, deadletter.Stopped}).Draw(t, "class")
			}
			if r := w.end(id, o); r.Opened || r.Hold != (o.Class == deadletter.Stopped) {
				t.Fatalf("%s: %+v", id, r)
			}
		}
	})
}

func TestFromEveryStateAHeldRecordGetsItsCall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			w.step(t, allClasses...)
			if w.b.State(w.now) == BreakerClosed && w.b.NextProbe().After(w.now) {
				t.Fatal("closed, and yet a call is to wait")
			}
		}
		b, now := w.b, w.now // even if nothing in flight ever ends
		for range 3 {
			_, v := b.Admit("held", now)
			if v.Call {
				if wait := now.Sub(w.now); wait > MaxRetryAfter+time.Minute {
					t.Fatalf("the call comes only after %s", wait)
				}
				return
			}
			now = v.Until
		}
		t.Fatalf("no call by +%s", now.Sub(w.now))
	})
}

func TestNoMoreThanOneProbeIsInFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			w.step(t, allClasses...)
			w.now = t0.Add(min(w.now.Sub(t0), probeLease-1)) // no lease ends here
			probes := 0
			for _, v := range w.inFlight {
				if v.Probe && v.Epoch == w.b.epoch {
					probes++
				}
			}
			if probes > 1 {
				t.Fatalf("%d probes in flight", probes)
			}
		}
	})
}

package suite

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Faults that other systems' users met, by their id. In this file: the counting
// of attempts. The cap is 4 calls, as in the cases.

// three are the tiers of a life of four calls.
var three = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}

// counting is a bench whose handler counts its calls and always fails. Too few
// records for the target to be thought down.
func counting(t *testing.T, partitions int32, delays []time.Duration) (*bench, *tally) {
	t.Helper()
	var calls tally
	x := newBench(t, brokers.NewKfake(t), partitions, 4, delays, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.next(r.DiscrepancyID)
		return failing
	})
	x.target[0].Breaker.Threshold = 64
	return x, &calls
}

// poisoned is the records in poison by their discrepancy.
func (x *bench) poisoned() map[string]*kgo.Record {
	x.t.Helper()
	poison := map[string]*kgo.Record{}
	for _, r := range x.read(x.names.Poison) {
		poison[discrepancy(r)] = r
	}
	return poison
}

// The rule for a counter that cannot be read is not to guess one from the tier:
// such a record goes to poison as malformed, with no call.
func TestC019ACounterThatCannotBeReadNeverBeginsAtZero(t *testing.T) {
	t.Parallel()
	x, calls := counting(t, 3, three)
	attempt := deadletter.HeaderAttempt
	binary := tiered("r-1214", attempt, "\x00\x00\x00\x02")
	null := tiered("r-1213", attempt, "")
	null.Headers[0].Value = nil
	x.inTier(three[0],
		tiered("r-1210", attempt, "abc"), tiered("r-1211", attempt, "-3"), tiered("r-1212", attempt, ""), null, binary,
		tiered("r-1215", attempt, "1", attempt, "3"), tiered("r-1216", "Attempt", "2"), tiered("r-1217", attempt, " 2 "), tiered("r-1218", attempt, "2.0"))
	w := x.start()
	x.settled(9, w)
	poison := x.poisoned()
	events := poisonedEvents(x)
	for id, r := range poison {
		if n := count(r, attempt); n != 1 {
			t.Errorf("%s: %d headers %s", id, n, attempt)
		}
		if id == "r-1215" { // the last one counts: one call is left
			if calls.of(id) != 1 || header(r, attempt) != "4" || header(r, deadletter.HeaderReason) != deadletter.ReasonAttemptsExhausted {
				t.Errorf("%s: %d calls, headers %q", id, calls.of(id), r.Headers)
			}
			continue
		}
		assertMalformed(t, id, r, events, attempt)
		if n := calls.of(id); n != 0 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	if len(poison) != 9 || header(poison["r-1216"], "Attempt") != "2" {
		t.Errorf("poison has %d records, the foreign header is %q", len(poison), header(poison["r-1216"], "Attempt"))
	}
	// header_invalid is the count of malformed and of repaired records.
	w.is(8, "poison_total", "reason", deadletter.ReasonMalformed)
	if n := w.metric("recon_dlq_repaired_records_total", "what", deadletter.NoteHeaderRepaired); n == 0 {
		t.Error("no repaired header is counted")
	}
	x.check(true)
}

func TestC020TheCounterOutlivesTheWorker(t *testing.T) {
	t.Parallel()
	var calls tally
	var turn atomic.Bool // each worker makes one attempt: to its second call the target is away, which counts nothing
	x := newBench(t, brokers.NewKfake(t), 1, 4, three, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		if !turn.CompareAndSwap(true, false) {
			return deadletter.Outcome{Class: deadletter.Unavailable, Cause: remedy.CauseRefused}
		}
		calls.next(r.DiscrepancyID)
		return failing
	})
	x.send(value("r-1220", ""))
	workers := 0
	for ended := false; !ended; workers++ {
		turn.Store(true)
		w := x.start()
		x.eventually("an attempt has its effect", func() bool {
			return w.metric("recon_dlq_retries_total")+w.metric("poison_total") >= 1
		})
		w.halt()
		ended = w.metric("poison_total") > 0
	}
	if workers != 4 {
		t.Errorf("%d workers made the four attempts", workers)
	}
	var attempts []string
	for _, r := range x.read(append(x.names.Tiers(), x.names.Poison)...) {
		attempts = append(attempts, header(r, deadletter.HeaderAttempt))
	}
	slices.Sort(attempts)
	if strings.Join(attempts, " ") != "1 2 3 4" || calls.of("r-1220") != 4 {
		t.Errorf("the copies say %v after %d calls", attempts, calls.of("r-1220"))
	}
	x.check(true)
}

// There are no retries in the process, so there is no budget of them: what is
// counted is in the header only, whoever owns the partition.
func TestC022ARebalanceChangesNoCounter(t *testing.T) {
	t.Parallel()
	var calls tally
	x := newBench(t, brokers.NewKfake(t), 1, 4, []time.Duration{time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.next(r.DiscrepancyID)
		return failing
	})
	p := x.launch()
	x.eventually("it has its partitions", func() bool { return len(p.c.Snapshot().Partitions) == 2 })
	x.sendTo(0, "r-1240")
	p.is(2, "recon_dlq_retries_total") // failed twice
	x.evict()                          // and the same worker gets the partitions back
	x.eventually("it ends", func() bool { return p.metric("poison_total") == 1 })
	p.is(2, "recon_dlq_lost_partitions_total")
	if n := calls.of("r-1240"); n < 4 || n > 5 { // one may have been in flight
		t.Errorf("%d calls, want 4", n)
	}
	if rep := x.counted(nil); rep.Retried != 3 || rep.Poisoned != 1 {
		t.Errorf("want three copies and a poisoned record: %s", rep)
	}
}

func TestC023StoppingOrKillingAWorkerBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var calls tally
			g, called := newGate(), make(chan struct{})
			x := newBench(t, brokers.NewKfake(t), 1, 1, short, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
				if calls.next(r.DiscrepancyID) == 1 {
					close(called)
					<-g.c
					return failing
				}
				return resolved
			})
			defer g.open()
			x.target[0].Timeout = 900 * time.Millisecond
			x.send(value("r-1250", ""))
			m := x.mortal(instance("w1"), func(o *consumer.Options) { o.Drain = time.Second })
			<-called
			if how == "killed" {
				m.kill()
			} else {
				m.halt()
			}
			next := x.launch(instance("w1"))
			x.reaches(1)
			x.drained(next)
			g.open()
			if how == "stopped" {
				m.is(1, "recon_dlq_late_results_total")
			}
			if rep := x.counted(nil); rep.Resolved != 1 || rep.Retried != 0 || rep.Poisoned != 0 || calls.of("r-1250") != 2 {
				t.Errorf("want it resolved by the second call: %s", rep)
			}
		})
	}
}

// Handlers are told the counted attempts before their call: 0, 1, 2, 3.
func TestC025TheSameAttemptIsToldEverywhere(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, r.Header.Get("ce-reconattempt"))
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	h, err := remedy.NewHTTP(remedy.HTTPOptions{URL: server.URL, Timeout: 5 * time.Second, Source: "suite"})
	if err != nil {
		t.Fatal(err)
	}
	x := newBench(t, brokers.NewKfake(t), 1, 4, three, h.Remediate)
	x.target[0].Breaker.Threshold = 64
	x.send(value("r-1270", ""))
	w := x.start()
	x.settled(1, w)
	mu.Lock()
	if !slices.Equal(told, []string{"0", "1", "2", "3"}) {
		t.Errorf("the target was told %q", told)
	}
	mu.Unlock()
	var copies, events []string
	for _, r := range x.read(append(x.names.Tiers(), x.names.Poison)...) {
		copies = append(copies, header(r, deadletter.HeaderAttempt))
	}
	slices.Sort(copies)
	for _, r := range x.read(x.names.Audit) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, strconv.Itoa(e.Attempt))
	}
	if !slices.Equal(copies, []string{"1", "2", "3", "4"}) || !slices.Equal(events, []string{"0", "1", "2", "3", "4"}) {
		t.Errorf("copies say %q, events %q", copies, events)
	}
	x.check(true) // the calls' attempts among them
}

// There are no retries in the process: a failure is one call and one copy.
func TestC026FailuresOfSeveralPartitionsDoNotMixUpTheirCounters(t *testing.T) {
	t.Parallel()
	x, calls := counting(t, 3, three)
	x.tweak = func(o *consumer.Options) { o.Concurrency = 1 }
	began := time.Now()
	for p, id := range []string{"r-1280", "r-1281", "r-1282"} {
		x.sendTo(int32(p), id)
	}
	w := x.start()
	x.settled(3, w)
	for _, id := range []string{"r-1280", "r-1281", "r-1282"} {
		if n := calls.of(id); n != 4 {
			t.Errorf("%s was called %d times, want 4", id, n)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	if rep := x.check(true); rep.Retried != 9 || rep.Poisoned != 3 {
		t.Errorf("want three copies each and then poison: %s", rep)
	}
}

// Headers of ours on a source are replaced, so a producer that loops records back
// is not capped; it is counted.
func TestC028ForeignHeadersSurviveEveryHopAndOursBeginAnew(t *testing.T) {
	t.Parallel()
	x, calls := counting(t, 1, three)
	brokers.Produce(t, x.b, &kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: value("r-1300", ""), Headers: []kgo.RecordHeader{
		{Key: deadletter.HeaderAttempt, Value: []byte("2")}, {Key: "trace-id", Value: []byte("t-77")}, {Key: "tenant", Value: []byte("north")},
	}})
	w := x.start()
	x.settled(1, w)
	if n := calls.of("r-1300"); n != 4 {
		t.Errorf("%d calls, want 4", n)
	}
	copies := x.read(append(x.names.Tiers(), x.names.Poison)...)
	for _, r := range copies {
		if header(r, "trace-id") != "t-77" || header(r, "tenant") != "north" || count(r, deadletter.HeaderAttempt) != 1 {
			t.Errorf("%s: headers are %q", r.Topic, r.Headers)
		}
	}
	if len(copies) != 4 {
		t.Errorf("%d copies, want 4", len(copies))
	}
	w.is(1, "recon_dlq_repaired_records_total", "what", deadletter.NoteForged)
	x.check(true)
}

func TestC029ACounterBeyondTheTiersIsNoIndexIntoThem(t *testing.T) {
	t.Parallel()
	x, calls := counting(t, 1, three)
	attempt := deadletter.HeaderAttempt
	last := three[len(three)-1]
	x.inTier(last, tiered("r-1310", attempt, "7"), tiered("r-1311", attempt, `{"att":1}`), tiered("r-1312", attempt, "-1"), tiered("r-1313", attempt, "1.5"),
		tiered("in between", attempt, "1"), tiered("below", attempt, "0"))
	w := x.start()
	x.settled(6, w)
	poison, events := x.poisoned(), poisonedEvents(x)
	for id, want := range map[string]int{"r-1310": 0, "r-1311": 0, "r-1312": 0, "r-1313": 0, "in between": 3, "below": 4} {
		if n := calls.of(id); n != want {
			t.Errorf("%s was called %d times, want %d", id, n, want)
		}
		r := poison[id]
		if r == nil {
			t.Errorf("%s is not in poison", id)
			continue
		}
		if id >= "r-1311" {
			assertMalformed(t, id, r, events, attempt)
		} else if reason := header(r, deadletter.HeaderReason); reason != deadletter.ReasonAttemptsExhausted {
			t.Errorf("%s: the reason is %s", id, reason)
		}
	}
	if n := header(poison["r-1310"], attempt); n != "7" {
		t.Errorf("r-1310: the attempt is %s", n)
	}
	x.check(true)
}

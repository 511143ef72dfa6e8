package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestNoCallIsEarlyAndJitterStaysInItsBounds(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		delays := []time.Duration{500 * time.Millisecond, 2 * time.Second}
		x := newBench(t, b, 3, 3, delays, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt < 2 {
				return failing
			}
			return resolved
		})
		x.target[0].Breaker.Threshold = 64
		x.sendN(50) // fewer than the threshold: failures, not an outage
		w := x.start()
		x.settled(50, w)
		rep := x.check(true) // no call before its not-before, by the times of the calls
		if rep.Retried != 100 || rep.Resolved != 50 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
		if rep.Lateness > 5*time.Second {
			t.Errorf("the latest call was %s late", rep.Lateness)
		}
		if n := w.metric("recon_dlq_lateness_seconds"); n != 100 {
			t.Errorf("lateness was measured %v times, want at each of 100 calls from a tier", n)
		}

		failed := map[string]time.Time{} // by record and attempt: when it was decided
		for _, r := range x.read(x.names.Audit) {
			e, err := audit.Parse(r.Value)
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == audit.RetryScheduled {
				failed[fmt.Sprint(e.RecordID, "/", e.Attempt)] = e.Time
			}
		}
		different := map[time.Duration]bool{}
		for _, delay := range delays {
			for _, r := range x.read(x.names.Tier(delay)) {
				ms, err := strconv.ParseInt(header(r, deadletter.HeaderNotBefore), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				wait := time.UnixMilli(ms).Sub(failed[header(r, deadletter.HeaderID)+"/"+header(r, deadletter.HeaderAttempt)])
				different[delay-wait] = true
				if wait > delay || wait < delay-min(delay/5, policy.MaxJitter) {
					t.Errorf("%s: waits %s", r.Topic, wait)
				}
			}
		}
		if len(different) < 10 {
			t.Errorf("100 copies have %d different jitters", len(different))
		}
	})
}

// inTier produces records as somebody could have left them in a tier.
func (x *bench) inTier(delay time.Duration, records ...*kgo.Record) {
	x.t.Helper()
	for _, r := range records {
		r.Topic = x.names.Tier(delay)
	}
	brokers.Produce(x.t, x.b, records...)
}

// tiered is a record of a tier with owned headers as name, value, name, value.
func tiered(id string, headers ...string) *kgo.Record {
	r := &kgo.Record{Key: []byte(id), Value: value(id, "")}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func TestATierThatIsNoLongerConfiguredIsDrained(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 2, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "fails" && r.Attempt == 1 {
				return failing
			}
			return resolved
		})
		const removed = 300 * time.Millisecond
		brokers.Create(t, b, 2, nil, x.names.Tier(removed))
		x.inTier(removed, tiered("good", deadletter.HeaderAttempt, "1"), tiered("fails", deadletter.HeaderAttempt, "1"))
		w := x.start()
		x.settled(2, w)
		if rep := x.check(true); rep.Resolved != 2 || rep.Retried != 1 {
			t.Errorf("resolved %d, retried %d", rep.Resolved, rep.Retried)
		}
		if n := len(x.read(x.names.Tier(time.Second))); n != 1 {
			t.Errorf("%d copies in the tier that is configured, want the failure's", n)
		}
	})
}

func TestATopicThatMerelyResemblesATierIsLeftAlone(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID != "ours" {
				t.Errorf("called for %s", r.DiscrepancyID)
			}
			return resolved
		})
		foreign := []string{
			x.names.Retry + "10s.bak", x.names.Retry + "x", x.names.Retry + "10", x.names.Retry + "-1s", x.names.Retry + "1d",
			"x" + x.names.Retry + "1s", x.names.Source + ".bak", "x" + x.names.Source,
			strings.Replace(x.names.Retry, ".", "x", 1) + "1s", // the dots of the prefix are dots
		}
		brokers.Create(t, b, 1, nil, foreign...)
		records := []*kgo.Record{{Topic: x.names.Source, Value: value("ours", "")}}
		for _, topic := range foreign {
			r := tiered("theirs", deadletter.HeaderAttempt, "1")
			r.Topic = topic
			records = append(records, r)
		}
		brokers.Produce(t, b, records...)
		w := x.start()
		x.settled(1, w)
		for _, p := range w.c.Snapshot().Partitions {
			if slices.Contains(foreign, p.Topic) {
				t.Errorf("%s is read", p.Topic)
			}
		}
		x.check(true)
	})
}

func TestANotBeforeThatCannotBeTrustedIsTheTiersDelay(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var mu sync.Mutex
		called := map[string]time.Time{}
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			mu.Lock()
			defer mu.Unlock()
			called[r.DiscrepancyID] = time.Now()
			return resolved
		})
		records := []*kgo.Record{
			tiered("missing", deadletter.HeaderAttempt, "1"),
			tiered("garbage", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "tomorrow"),
			tiered("negative", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "-5"),
			tiered("empty", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, ""),
			tiered("null", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "null"),
			tiered("far ahead", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "9223372036854775807"),
			tiered("overflow", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "99999999999999999999999999"),
		}
		records[4].Headers[1].Value = nil
		x.inTier(time.Second, records...)
		w := x.start()
		x.settled(len(records), w)
		for _, r := range x.read(x.names.Tier(time.Second)) {
			wait := called[discrepancy(r)].Sub(r.Timestamp)
			if wait < time.Second || wait > 10*time.Second {
				t.Errorf("%s: called %s after it was appended to the tier of 1s", discrepancy(r), wait)
			}
		}
		for what, want := range map[string]float64{deadletter.NoteNotBeforeBad: 5, deadletter.NoteNotBeforeFar: 2} {
			if n := w.metric("recon_dlq_repaired_records_total", "what", what); n != want {
				t.Errorf("recon_dlq_repaired_records_total{what=%s} is %v, want %v", what, n, want)
			}
		}
		x.check(true)
	})
}

func TestAnAttemptThatCannotBeTrustedNeverStartsFromZero(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt != 2 {
				t.Errorf("%s was called for attempt %d", r.DiscrepancyID, r.Attempt)
			}
			return resolved
		})
		bad := []*kgo.Record{
			tiered("missing"),
			tiered("garbage", deadletter.HeaderAttempt, "two"),
			tiered("negative", deadletter.HeaderAttempt, "-1"),
			tiered("empty", deadletter.HeaderAttempt, ""),
			tiered("fraction", deadletter.HeaderAttempt, "1.0"),
			tiered("twice garbage", deadletter.HeaderAttempt, "x", deadletter.HeaderAttempt, "0x1"),
			tiered("redrive", deadletter.HeaderAttempt, "1", deadletter.HeaderRedrive, "many"),
		}
		// Of two values the last well-formed one counts; an overflow is clamped, and has had its attempts.
		repaired := []*kgo.Record{
			tiered("the last counts", deadletter.HeaderAttempt, "1", deadletter.HeaderAttempt, "2", deadletter.HeaderAttempt, "x"),
			tiered("overflow", deadletter.HeaderAttempt, "99999999999999999999"),
		}
		x.inTier(time.Second, append(slices.Clone(bad), repaired...)...)
		w := x.start()
		x.settled(len(bad)+len(repaired), w)
		events := poisonedEvents(x)
		reasons := map[string]string{}
		for _, r := range x.read(x.names.Poison) {
			id := discrepancy(r)
			reasons[id] = header(r, deadletter.HeaderReason)
			if id == "redrive" {
				assertMalformed(t, id, r, events, deadletter.HeaderRedrive)
			} else if id != "overflow" {
				assertMalformed(t, id, r, events, deadletter.HeaderAttempt)
			}
		}
		if len(reasons) != len(bad)+1 || reasons["overflow"] != deadletter.ReasonAttemptsExhausted {
			t.Errorf("in poison are %v", reasons)
		}
		x.check(true)
	})
}

func TestAWaitLongerThanTheTierGoesOnInAnotherUncounted(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, []time.Duration{500 * time.Millisecond, time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt != 1 {
				t.Errorf("called for attempt %d", r.Attempt)
			}
			return resolved
		})
		due := time.Now().Add(2500 * time.Millisecond)
		x.inTier(500*time.Millisecond, tiered("long", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, strconv.FormatInt(due.UnixMilli(), 10)))
		w := x.start()
		x.settled(1, w)
		rep := x.check(true) // and no call before the copies' not-before
		if rep.Retiered == 0 || rep.Retiered > 4 || rep.Retried != 0 || rep.Resolved != 1 {
			t.Errorf("retiered %d, retried %d, resolved %d", rep.Retiered, rep.Retried, rep.Resolved)
		}
		for _, r := range x.read(x.names.Tiers()...) {
			if header(r, deadletter.HeaderAttempt) != "1" || header(r, deadletter.HeaderNotBefore) != strconv.FormatInt(due.UnixMilli(), 10) {
				t.Errorf("%s: headers are %q", r.Topic, r.Headers)
			}
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, calls := range x.calls {
			if calls[0].At.Before(due.Truncate(time.Millisecond)) {
				t.Errorf("called %s early", due.Sub(calls[0].At))
			}
		}
	})
}

func TestAPolicyThatIsLoweredHoldsForRecordsThatWait(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var calls tally
		x := newBench(t, b, 1, 5, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next(r.DiscrepancyID)
			if r.DiscrepancyID == "good" {
				return resolved
			}
			return failing
		})
		x.send(value("bad", ""), value("good", ""))
		w := x.start()
		w.is(1, "recon_dlq_retries_total")
		w.is(1, "resolved_total")
		w.halt()
		x.rules[0].Attempts = 1
		before := calls.of("bad")
		w = x.start()
		x.settled(1, w)
		if n := w.metric("poison_total", "reason", deadletter.ReasonAttemptsExhausted); n != 1 {
			t.Errorf("poison_total{reason=attempts_exhausted} is %v", n)
		}
		if after := calls.of("bad"); after != before {
			t.Errorf("called %d times under a policy of one call", after-before)
		}
		poison := x.read(x.names.Poison)
		if len(poison) != 1 || header(poison[0], deadletter.HeaderAttempt) != strconv.Itoa(before) {
			t.Errorf("poison has %d records, want one with the %d attempts made", len(poison), before)
		}
		x.check(true)
	})
}

func TestEveryTierOfThePolicyHasItsMetric(t *testing.T) {
	b := brokers.NewKfake(t)
	delays := []time.Duration{time.Second, time.Minute, time.Hour}
	x := newBench(t, b, 1, 5, delays, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	w := x.start()
	want := map[string]bool{"1s": true, "1m": true, "1h": true}
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		if f.GetName() == "recon_dlq_retries_total" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = true
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("recon_dlq_retries_total has tiers %v, want %v from the start", got, want)
	}
}

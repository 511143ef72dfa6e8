package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

var refused = deadletter.Outcome{Class: deadletter.Unavailable, Cause: remedy.CauseRefused}

// quickProbes keeps tests of outages short.
var quickProbes = policy.BreakerOptions{ProbeMin: 50 * time.Millisecond, ProbeMax: 200 * time.Millisecond}

// open says whether a target is thought down; a probe may be under way.
func (w *worker) open(target string) bool {
	for _, t := range w.c.Snapshot().Targets { // at one moment: probes come and go
		if t.Name == target {
			return t.Breaker == policy.BreakerOpen || t.Breaker == policy.BreakerProbing
		}
	}
	return false
}

func TestAnOutageBurnsNoAttempt(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var down atomic.Bool
		down.Store(true)
		var calls tally
		x := newBench(t, b, 3, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next(r.DiscrepancyID)
			if down.Load() {
				return refused
			}
			return resolved
		})
		x.target[0].Breaker = quickProbes
		x.sendN(500)
		w := x.start()
		x.eventually("the target is thought down", func() bool { return w.open("ledger") })
		// All are read and held; only probes are out, and they get older.
		x.eventually("500 records held", func() bool {
			return w.metric("recon_dlq_inflight", "state", "held")+w.metric("recon_dlq_inflight", "state", "calling") == 500
		})
		x.eventually("some probes", func() bool { return w.metric("recon_dlq_attempts_total", "class", "unavailable") > 70 })
		if w.metric("dlq_oldest_age_ms", "state", "held") <= 0 {
			t.Error("records are held, and have no age")
		}
		if n := w.metric("dlq_depth"); n != 500 {
			t.Errorf("dlq_depth is %v", n)
		}
		if n := w.metric("recon_dlq_retries_total") + w.metric("poison_total") + w.metric("resolved_total"); n != 0 {
			t.Errorf("%v records went somewhere during the outage", n)
		}
		down.Store(false)
		x.settled(500, w)
		w.is(1, "recon_dlq_breaker_state", "state", "closed")
		if n := w.metric("dlq_oldest_age_ms", "state", "held"); n != 0 {
			t.Errorf("nothing is held any more, the oldest is %v ms old", n)
		}
		rep := x.check(true)
		if rep.Retried != 0 || rep.Resolved != 500 || rep.Poisoned != 0 {
			t.Errorf("retried %d, resolved %d, poisoned %d", rep.Retried, rep.Resolved, rep.Poisoned)
		}
		x.onlyAttempt(0)
	})
}

// onlyAttempt checks that every call was told that attempt.
func (x *bench) onlyAttempt(attempt int) {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, calls := range x.calls {
		for _, c := range calls {
			if c.Attempt != attempt {
				x.t.Errorf("record %s was called as attempt %d, want %d only", id, c.Attempt, attempt)
				return
			}
		}
	}
}

func TestAnOutageThatLooksLikeFailuresBurnsAtMostTheThreshold(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		for name, outcome := range map[string]deadletter.Outcome{
			"timeouts": {Class: deadletter.Suspect, Cause: remedy.CauseTimeout},
			"5xx":      failing,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const threshold = 4
				var down atomic.Bool
				down.Store(true)
				x := newBench(t, b, 3, 3, second, func(_ context.Context, _ *deadletter.Record) deadletter.Outcome {
					if down.Load() {
						return outcome
					}
					return resolved
				})
				x.target[0].Breaker = quickProbes
				x.target[0].Breaker.Threshold = threshold
				x.sendN(300)
				w := x.start()
				x.eventually("the target is thought down", func() bool { return w.open("ledger") })
				x.eventually("some probes", func() bool { return w.metric("recon_dlq_attempts_total", "class", "suspect") > 70 })
				if n := w.metric("recon_dlq_retries_total"); n > threshold {
					t.Errorf("%v attempts burnt, threshold %d", n, threshold)
				}
				down.Store(false)
				x.settled(300, w)
				rep := x.check(true)
				if rep.Retried > threshold || rep.Resolved != 300 {
					t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
				}
			})
		}
	})
}

func TestABusyTargetIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const pause = time.Second
		var asked atomic.Pointer[time.Time]
		x := newBench(t, b, 1, 3, second, func(_ context.Context, _ *deadletter.Record) deadletter.Outcome {
			now := time.Now()
			if asked.CompareAndSwap(nil, &now) {
				return deadletter.Outcome{Class: deadletter.Busy, RetryAfter: pause}
			}
			if since := now.Sub(*asked.Load()); since < pause {
				t.Errorf("called %s after the target asked for %s", since, pause)
			}
			return resolved
		})
		x.tweak = func(o *consumer.Options) { o.Concurrency = 1 }
		x.sendN(100)
		w := x.start()
		w.is(1, "recon_dlq_breaker_state", "state", "busy")
		if w.open("ledger") {
			t.Error("busy is not down")
		}
		x.settled(100, w)
		w.is(1, "recon_dlq_breaker_state", "state", "closed")
		if rep := x.check(true); rep.Retried != 0 || rep.Resolved != 100 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
		x.onlyAttempt(0)
	})
}

func TestInProgressSnoozesUncountedTenTimes(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, []time.Duration{100 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "twice" && r.Snoozes < 2 || r.DiscrepancyID == "for long" && r.Attempt == 0 {
				return deadletter.Outcome{Class: deadletter.InProgress}
			}
			return resolved
		})
		x.send(value("twice", ""), value("for long", ""))
		w := x.start()
		x.settled(2, w)
		rep := x.check(true)
		if rep.Snoozed != 2+policy.MaxSnoozes || rep.Retried != 1 || rep.Resolved != 2 {
			t.Errorf("snoozed %d, retried %d, resolved %d", rep.Snoozed, rep.Retried, rep.Resolved)
		}
		var twice, long []string // attempt and snoozes of the copies
		for _, r := range x.read(x.names.Tiers()...) {
			state := header(r, deadletter.HeaderAttempt) + "/" + header(r, deadletter.HeaderSnoozes)
			if discrepancy(r) == "twice" {
				twice = append(twice, state)
			} else {
				long = append(long, state)
			}
		}
		if want := []string{"0/1", "0/2"}; !slices.Equal(twice, want) {
			t.Errorf("copies say %v, want %v", twice, want)
		}
		want := make([]string, 0, policy.MaxSnoozes+1)
		for i := range policy.MaxSnoozes {
			want = append(want, fmt.Sprintf("0/%d", i+1))
		}
		if want = append(want, "1/"); !slices.Equal(long, want) {
			t.Errorf("copies say %v, want %v", long, want)
		}
	})
}

func TestARecordRefusedThriceWhileOthersSucceedIsCounted(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var calls tally
		x := newBench(t, b, 1, 3, []time.Duration{100 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next(r.DiscrepancyID)
			if r.DiscrepancyID == "poisonous" && r.Attempt == 0 {
				return refused // the target dies of it
			}
			return resolved
		})
		x.target[0].Breaker = quickProbes
		x.tweak = func(o *consumer.Options) { o.Concurrency = 1 }
		x.send(value("poisonous", ""))
		w := x.start()
		x.eventually("the first refusal", func() bool { return calls.of("poisonous") > 0 })
		x.send(value("other-1", ""))
		w.is(1, "resolved_total")
		before := calls.of("poisonous")
		x.eventually("the second refusal", func() bool { return calls.of("poisonous") > before })
		if n := w.metric("recon_dlq_retries_total"); n != 0 {
			t.Error("counted at the second refusal")
		}
		x.send(value("other-2", ""))
		x.settled(3, w)
		rep := x.check(true)
		if rep.Retried != 1 || rep.Resolved != 3 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
	})
}

func TestOneTargetsOutageDoesNotStopTheOthers(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 3, 3, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
		var down atomic.Bool
		down.Store(true)
		x.play("bank", func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if !strings.HasPrefix(r.DiscrepancyID, "bank") {
				t.Errorf("the bank was called for %s", r.DiscrepancyID)
			}
			if down.Load() {
				return refused
			}
			return resolved
		})
		x.target[1].Breaker = quickProbes
		bank := x.rules[0]
		bank.Name, bank.Category, bank.Target = "bank", "bank_*", "bank"
		x.rules = []policy.Rule{bank, x.rules[0]}
		var records []*kgo.Record
		for i := range 200 {
			records = append(records,
				&kgo.Record{Topic: x.names.Source, Value: fmt.Appendf(nil, `{"discrepancy_id":"bank-%d","category":"bank_fee","context":{},"enqueued_ms":0}`, i)},
				&kgo.Record{Topic: x.names.Source, Value: value(fmt.Sprintf("ledger-%d", i), "")})
		}
		brokers.Produce(t, b, records...)
		w := x.start()
		w.is(200, "resolved_total")
		w.is(200, "dlq_depth")
		if !w.open("bank") || w.metric("recon_dlq_breaker_state", "target", "ledger", "state", "closed") != 1 {
			t.Error("the bank is down and the ledger is not, the metrics say otherwise")
		}
		down.Store(false)
		x.settled(400, w)
		if rep := x.check(true); rep.Retried != 0 || rep.Resolved != 400 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
		x.onlyAttempt(0)
	})
}

func TestTimeHeldIsNoBreachByItself(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const sla = 300 * time.Millisecond
		var down atomic.Bool
		down.Store(true)
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			switch {
			case down.Load():
				return refused
			case r.DiscrepancyID == "bad":
				return failing
			}
			return resolved
		})
		x.rules[0].MaxAge = sla
		x.target[0].Breaker = quickProbes
		x.send(value("good", ""), value("bad", ""), value("good too", ""))
		w := x.start()
		x.eventually("the held records are overdue", func() bool {
			return w.metric("dlq_oldest_age_ms", "state", "held") > 2*float64(sla.Milliseconds())
		})
		if n := w.metric("poison_total"); n != 0 {
			t.Errorf("%v records went to poison while they were held", n)
		}
		down.Store(false)
		x.settled(3, w)
		if n := w.metric("poison_total", "reason", deadletter.ReasonSLABreached); n != 1 {
			t.Errorf("poison_total{reason=sla_breached} is %v, want the one that failed its call", n)
		}
		x.check(true)
		x.onlyAttempt(0)
	})
}

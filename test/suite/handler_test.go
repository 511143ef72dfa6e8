package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/escalation"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// second is the tier of most tests here.
var second = []time.Duration{time.Second}

// play adds a target whose calls are recorded, beside the bench's "ledger".
func (x *bench) play(name string, h remedy.HandlerFunc) {
	x.mux.HandleFunc(name, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		x.mu.Lock()
		x.calls[r.ID] = append(x.calls[r.ID], invariants.Call{At: time.Now(), Attempt: r.Attempt})
		x.mu.Unlock()
		return h(ctx, r)
	})
	x.target = append(x.target, consumer.Target{Name: name, Timeout: 5 * time.Second})
}

// tally counts calls by discrepancy. Its zero value is ready.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

// next counts a call and says the how manieth it is, from 1.
func (c *tally) next(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[id]++
	return c.n[id]
}

func (c *tally) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[id]
}

// read is what topics hold now.
func (x *bench) read(topics ...string) []*kgo.Record {
	x.t.Helper()
	records, err := brokers.ReadAll(x.t.Context(), x.b, topics...)
	if err != nil {
		x.t.Fatal(err)
	}
	return records
}

// header is the value of a record's last header of that name, "" if it has none.
func header(r *kgo.Record, name string) string {
	v := ""
	for _, h := range r.Headers {
		if h.Key == name {
			v = string(h.Value)
		}
	}
	return v
}

// discrepancy is the id in a record's value.
func discrepancy(r *kgo.Record) string {
	var v struct {
		ID string `json:"discrepancy_id"`
	}
	_ = json.Unmarshal(r.Value, &v) // what is not JSON has no id
	return v.ID
}

// is waits for a metric's value.
func (w *worker) is(want float64, name string, pairs ...string) {
	w.x.t.Helper()
	w.x.eventually(fmt.Sprintf("%s%v = %v", name, pairs, want), func() bool { return w.metric(name, pairs...) == want })
}

func TestWhatAlwaysFailsIsEscalatedAndWhatResolvesIsNot(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		looked := make(chan struct{}) // d1's second call waits until the state after one call each has been seen
		x := newBench(t, b, 3, 5, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "d2" {
				return resolved
			}
			if r.Attempt > 0 {
				<-looked
			}
			return failing
		})
		escalated := make(chan string, 16)
		hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var n struct {
				ID string `json:"discrepancy_id"`
			}
			if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
				t.Errorf("a notice that is not JSON: %v", err)
			}
			escalated <- n.ID
		}))
		defer hook.Close()
		x.escalate(hook.URL)

		x.send(value("d1", `"max_attempts":2`), value("d2", `"max_attempts":2`))
		w := x.start()
		w.is(1, "resolved_total")
		w.is(1, "recon_dlq_retries_total")
		if n := w.metric("poison_total"); n != 0 {
			t.Fatalf("poison_total is %v after one call each", n)
		}
		close(looked)
		w.is(1, "poison_total")
		w.is(0, "dlq_depth")
		if n := w.metric("resolved_total"); n != 1 {
			t.Fatalf("resolved_total is %v", n)
		}
		if id := <-escalated; id != "d1" {
			t.Fatalf("escalated %q, want d1", id)
		}
		x.eventually("the escalated event", func() bool { return x.check(true).Escalated == 1 })
		if len(escalated) > 0 {
			t.Fatalf("escalated besides d1: %q", <-escalated)
		}
	})
}

// escalate runs an escalator beside the workers; the test's end stops it.
func (x *bench) escalate(webhook string) {
	x.t.Helper()
	e, err := escalation.New(escalation.Options{
		Conn: x.b.Opts(), Group: x.names.Group, Poison: x.names.Poison, Audit: x.names.Audit, Source: "suite",
		Webhook: escalation.WebhookOptions{URL: webhook}, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		x.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- e.Run(ctx) }()
	x.t.Cleanup(func() {
		stop()
		if err := <-end; err != nil {
			x.t.Errorf("the escalator ended: %v", err)
		}
	})
}

func TestAHandlerThatNeverReturnsHoldsUpItsOwnRecordOnly(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		release := make(chan struct{})
		var calls tally
		x := newBench(t, b, 3, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "hangs" && calls.next(r.DiscrepancyID) == 1 {
				<-release // whatever the context says
			}
			return resolved
		})
		x.target[0].Timeout = 200 * time.Millisecond
		x.tweak = func(o *consumer.Options) { o.Drain = 20 * time.Second }
		x.send(value("hangs", ""))
		x.sendN(300)
		w := x.start()
		w.is(1, "recon_dlq_stuck_handlers")
		w.is(300, "resolved_total")
		w.is(1, "dlq_depth")
		if n := w.metric("dlq_oldest_age_ms", "state", "due"); n < 1000 {
			t.Errorf("the stuck record is due for more than its timeout and grace, the metric says %v ms", n)
		}
		// New records go on at full speed beside it.
		x.sendN(300)
		w.is(600, "resolved_total")

		// Partitions are handed over without waiting for it: some to a second
		// worker while the first goes on, the rest when that stops.
		began := time.Now()
		w2 := x.start()
		x.eventually("the second worker's first partition", func() bool { return w2.metric("recon_dlq_partition_state") > 0 })
		w.halt()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("handing over with a stuck handler took %s", took)
		}
		w2.is(1, "resolved_total")
		w2.is(0, "dlq_depth")
		close(release)
		w.is(1, "recon_dlq_late_results_total") // thrown away: the record is somebody else's
		w2.halt()
		if n := calls.of("hangs"); n != 2 {
			t.Errorf("the hanging record was called %d times, want 2", n)
		}
		x.check(true)
	})
}

func TestAPanicIsAFailureWithoutThePayload(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			switch {
			case r.DiscrepancyID == "panics" && r.Attempt == 0:
				panic(fmt.Sprintf("cannot handle %s", r.Value))
			case r.DiscrepancyID == "exits" && r.Attempt == 0:
				runtime.Goexit()
			}
			return resolved
		})
		x.send(value("panics", ""), value("good", ""), value("exits", ""))
		w := x.start()
		x.settled(3, w)
		if n := w.metric("recon_dlq_attempts_total", "class", "suspect"); n != 2 {
			t.Errorf("%v suspect calls, want 2", n)
		}
		rep := x.check(true)
		if rep.Retried != 2 || rep.Resolved != 3 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
		classes := map[string]string{}
		for _, r := range x.read(x.names.Tiers()...) {
			classes[discrepancy(r)] = header(r, deadletter.HeaderErrorClass)
			if message := header(r, deadletter.HeaderError); message == "" || strings.Contains(message, "s3cr3t") {
				t.Errorf("the message of %s is %q", discrepancy(r), message)
			}
		}
		if classes["panics"] != remedy.CausePanic || classes["exits"] != "exited" {
			t.Errorf("error classes are %v", classes)
		}
	})
}

func TestAnAnswerAfterTheDeadlineCountsOnce(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		release := make(chan struct{})
		x := newBench(t, b, 1, 3, second, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Attempt > 0 {
				return resolved
			}
			switch r.DiscrepancyID {
			case "in grace": // hears its deadline, and fails then
				<-ctx.Done()
				return deadletter.Outcome{Class: deadletter.Suspect, Cause: remedy.CauseTimeout}
			case "late failure":
				<-release
				return failing
			case "late success":
				<-release
			}
			return resolved
		})
		x.target[0].Timeout = 200 * time.Millisecond
		x.send(value("late failure", ""), value("good", ""), value("late success", ""), value("in grace", ""))
		w := x.start()
		w.is(2, "recon_dlq_stuck_handlers")
		close(release)
		x.settled(4, w)
		w.is(0, "recon_dlq_stuck_handlers")
		if n := w.metric("recon_dlq_attempts_total", "class", "suspect"); n != 2 {
			t.Errorf("%v suspect calls, want the one in grace and the late one", n)
		}
		rep := x.check(true)
		if rep.Retried != 2 || rep.Resolved != 4 {
			t.Errorf("retried %d, resolved %d", rep.Retried, rep.Resolved)
		}
	})
}

func TestATargetWithTooManyStuckCallsIsHeld(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		const most = 16
		release := make(chan struct{})
		var calls tally
		x := newBench(t, b, 3, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next("")
			if strings.HasPrefix(r.DiscrepancyID, "hangs") {
				<-release
			}
			return resolved
		})
		x.target[0].Timeout = 200 * time.Millisecond
		x.target[0].Breaker.Threshold = 64 // it is the number of stuck calls that holds, not the breaker
		hanging := make([][]byte, most)
		for i := range hanging {
			hanging[i] = value(fmt.Sprintf("hangs-%d", i), "")
		}
		x.send(hanging...)
		w := x.start()
		w.is(most, "recon_dlq_stuck_handlers")
		x.sendN(20)
		w.is(20, "recon_dlq_inflight", "state", "held")
		w.is(1, "recon_dlq_breaker_state", "state", "closed")
		if w.metric("dlq_oldest_age_ms", "state", "held") <= 0 {
			t.Error("records are held, and have no age")
		}
		if n := calls.of(""); n != most {
			t.Errorf("%d calls of a target with %d stuck ones", n, most)
		}
		close(release)
		x.settled(most+20, w)
		if rep := x.check(true); rep.Retried != 0 {
			t.Errorf("%d attempts were counted, and every call succeeded", rep.Retried)
		}
	})
}

func TestASlowHandlerIsWaitedForAtShutdown(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		release, called := make(chan struct{}), make(chan struct{})
		var calls tally
		x := newBench(t, b, 1, 3, second, func(_ context.Context, _ *deadletter.Record) deadletter.Outcome {
			if calls.next("") == 1 {
				close(called)
				<-release
			}
			return resolved
		})
		x.tweak = func(o *consumer.Options) { o.Concurrency = 1 }
		x.send(value("slow", ""), value("next", ""))
		w := x.start()
		<-called
		w.is(1, "recon_dlq_inflight", "state", "due") // the next one waits for the slot
		w.stop()
		w.is(1, "recon_dlq_partition_state", "topic", x.names.Source, "state", "leaving")
		select {
		case <-w.end:
			t.Fatal("the worker stopped while a handler was at work")
		default:
		}
		close(release)
		<-w.end
		if w.err != nil || w.metric("resolved_total") != 1 {
			t.Fatalf("stopped with %v, resolved %v, want the slow record", w.err, w.metric("resolved_total"))
		}
		if n := calls.of(""); n != 1 {
			t.Fatalf("%d calls, and no call may begin while stopping", n)
		}
		w2 := x.start()
		x.settled(1, w2)
		if n := calls.of(""); n != 2 {
			t.Errorf("%d calls of two records", n)
		}
		x.check(true)
	})
}

func TestARecordWhoseHandlerOutlastsTheDrainBoundIsDoneAgain(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		release := make(chan struct{})
		called := make(chan struct{})
		var calls tally
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if calls.next(r.DiscrepancyID) == 1 && r.DiscrepancyID == "slow" {
				close(called)
				<-release
			}
			return resolved
		})
		x.target[0].Timeout = 900 * time.Millisecond
		x.tweak = func(o *consumer.Options) { o.Drain = time.Second }
		x.send(value("slow", ""), value("quick", ""))
		w := x.start()
		<-called
		w.is(1, "resolved_total")
		w.halt()
		if w.err != nil {
			t.Fatalf("stopped with %v", w.err)
		}
		w2 := x.start()
		x.settled(1, w2)
		close(release)
		w.is(1, "recon_dlq_late_results_total")
		if n, q := calls.of("slow"), calls.of("quick"); n != 2 || q != 1 {
			t.Errorf("called %d times and %d times, want 2 and 1", n, q)
		}
		w2.halt()
		x.check(true)
	})
}

func TestPeopleDecideWithoutACall(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.Category != "amount_differs" {
				t.Errorf("called for category %s", r.Category)
			}
			return resolved
		})
		x.rules = append([]policy.Rule{{Name: "people", Category: "schema_*"}}, x.rules...)
		x.send(
			[]byte(`{"discrepancy_id":"m1","category":"schema_drift","context":{},"enqueued_ms":0}`),
			value("good", ""),
		)
		w := x.start()
		x.settled(2, w)
		if n := w.metric("poison_total", "reason", deadletter.ReasonManual); n != 1 {
			t.Errorf("poison_total{reason=manual} is %v", n)
		}
		poison := x.read(x.names.Poison)
		if len(poison) != 1 || discrepancy(poison[0]) != "m1" || header(poison[0], deadletter.HeaderAttempt) != "0" {
			t.Errorf("poison has %d records, want m1 with no attempt", len(poison))
		}
		x.check(true)
	})
}

func TestAnOverdueRecordIsTriedOnceThenPoisoned(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var calls tally
		x := newBench(t, b, 1, 5, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			calls.next(r.DiscrepancyID)
			if r.DiscrepancyID == "old and bad" {
				return failing
			}
			return resolved
		})
		before := time.Now().Add(-2 * time.Hour).UnixMilli() // the rule allows one
		old := func(id string) []byte {
			return fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"amount_differs","context":{},"enqueued_ms":%d}`, id, before)
		}
		x.send(old("old and bad"), old("old and good"))
		w := x.start()
		x.settled(2, w)
		if n := w.metric("poison_total", "reason", deadletter.ReasonSLABreached); n != 1 {
			t.Errorf("poison_total{reason=sla_breached} is %v", n)
		}
		if a, b := calls.of("old and bad"), calls.of("old and good"); a != 1 || b != 1 {
			t.Errorf("called %d and %d times, want once each", a, b)
		}
		x.check(true)
	})
}

func TestTheValueSaysWhereCountingStartsAndHowFarItGoes(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		var mu sync.Mutex
		saw := map[string][]int{} // attempts that calls were told
		x := newBench(t, b, 1, 4, []time.Duration{100 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			mu.Lock()
			defer mu.Unlock()
			saw[r.DiscrepancyID] = append(saw[r.DiscrepancyID], r.Attempt)
			if r.DiscrepancyID == "good" {
				return resolved
			}
			return failing
		})
		x.target[0].Breaker.Threshold = 64
		want := map[string][]int{
			"starts at 2":     {2, 3},
			"clamped":         {3},
			"one call":        {0},
			"capped by rule":  {0, 1, 2, 3},
			"both, clamped":   {1},
			"nothing is said": {0, 1, 2, 3},
		}
		x.send(
			value("starts at 2", `"attempts":2`),
			value("clamped", `"attempts":2147483647`),
			value("one call", `"max_attempts":1`),
			value("capped by rule", `"max_attempts":1000`),
			value("both, clamped", `"attempts":7,"max_attempts":2`),
			value("nothing is said", ""),
			value("good", ""),
		)
		w := x.start()
		x.settled(len(want)+1, w)
		for id, attempts := range want {
			mu.Lock()
			if !slices.Equal(saw[id], attempts) {
				t.Errorf("%s: calls were told attempts %v, want %v", id, saw[id], attempts)
			}
			mu.Unlock()
		}
		first := map[string]string{} // recon-attempt of the first retry copy
		for _, r := range x.read(x.names.Tiers()...) {
			if id := discrepancy(r); first[id] == "" {
				first[id] = header(r, deadletter.HeaderAttempt)
			}
		}
		if first["starts at 2"] != "3" || first["nothing is said"] != "1" {
			t.Errorf("first copies say %v", first)
		}
		if n := w.metric("poison_total", "reason", deadletter.ReasonAttemptsExhausted); int(n) != len(want) {
			t.Errorf("poison_total{reason=attempts_exhausted} is %v", n)
		}
		if n := w.metric("recon_dlq_repaired_records_total", "what", deadletter.NoteAttemptsClamped); n != 2 {
			t.Errorf("%v records were clamped, want 2", n)
		}
		x.check(true)
	})
}

func TestAWorkerWithoutATargetGivesEverythingToPeople(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 1, second, nil)
		x.rules = []policy.Rule{{Name: "people"}}
		x.target = nil
		x.sendN(10)
		w := x.start()
		x.settled(10, w)
		if n := w.metric("poison_total", "reason", deadletter.ReasonManual); n != 10 {
			t.Errorf("poison_total{reason=manual} is %v", n)
		}
		x.check(true)
	})
}

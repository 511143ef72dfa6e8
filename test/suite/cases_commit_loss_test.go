package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Faults that other systems' users met, by their id. In this file: a commit that
// passes a record which is not done.

// short is the tier of most cases.
var short = []time.Duration{200 * time.Millisecond}

func always(o deadletter.Outcome) remedy.HandlerFunc {
	return func(context.Context, *deadletter.Record) deadletter.Outcome { return o }
}

// mortal is a player that can be killed: its network breaks, and no call of its
// handler begins or ends any more.
type mortal struct {
	*player
	mu   sync.Mutex
	dead chan struct{} // closed by kill
	end  chan struct{} // closed when the test is over
}

func (x *bench) mortal(tweaks ...func(*consumer.Options)) *mortal {
	x.t.Helper()
	m := &mortal{dead: make(chan struct{}), end: make(chan struct{})}
	m.player = x.launch(append(tweaks, func(o *consumer.Options) {
		whole := o.Mux
		o.Mux = remedy.NewMux()
		for _, target := range o.Targets {
			h, ok := whole.Handler(target.Name)
			if !ok {
				x.t.Fatalf("target %s has no handler", target.Name)
			}
			o.Mux.HandleFunc(target.Name, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
				m.mu.Lock()
				select {
				case <-m.dead:
					m.mu.Unlock()
					<-m.end
					return deadletter.Outcome{Class: deadletter.Stopped}
				default:
				}
				m.mu.Unlock()
				out := h.Remediate(ctx, r)
				select {
				case <-m.dead:
					<-m.end
				default:
				}
				return out
			})
		}
	})...)
	x.t.Cleanup(func() { close(m.end) })
	return m
}

func (m *mortal) kill() {
	m.wire.cut()
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.dead)
}

// committed is the committed offset of a source partition, -1 if there is none.
func (x *bench) committed(partition int32) int64 {
	x.t.Helper()
	offsets, err := x.admin().FetchOffsets(x.t.Context(), x.names.Group)
	if err != nil {
		x.t.Fatal(err)
	}
	if o, ok := offsets.Lookup(x.names.Source, partition); ok && o.Err == nil {
		return o.At
	}
	return -1
}

// unharmed counts the invariants of a bench that is still at work: what progress
// says is done must be there, and once.
func (x *bench) unharmed() {
	x.t.Helper()
	rep, err := x.report(false, nil)
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		x.t.Fatalf("%v\n%s", err, rep)
	}
}

// sendTo produces values to one source partition.
func (x *bench) sendTo(partition int32, ids ...string) {
	x.t.Helper()
	records := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		records[i] = &kgo.Record{Topic: x.names.Source, Partition: partition, Key: []byte("acct-17"), Value: value(id, "")}
	}
	brokers.ProduceTo(x.t, x.b, records...)
}

func TestC001ARetryCopyThatCannotBeWrittenKeepsItsRecord(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 3, 3, short, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		if r.Attempt == 0 {
			return failing
		}
		return resolved
	})
	h := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: x.names.Tier(short[0]), Err: kerr.NotEnoughReplicas, Count: -1})
	x.send(value("r-1001", ""), value("r-1002", ""))
	killed := x.mortal(instance("w1"))
	// publish_failures is the count of copies that the topic did not take.
	x.eventually("a copy was refused", func() bool {
		return killed.metric("recon_dlq_produce_failures_total", "topic", x.names.Tier(short[0])) > 0
	})
	x.unharmed()
	for p := range int32(3) {
		if at := x.committed(p); at > 0 {
			t.Errorf("partition %d is committed up to %d with no copy acknowledged", p, at)
		}
	}
	killed.kill()
	next := x.launch(instance("w1"))
	x.eventually("the next worker is refused as well", func() bool {
		return next.metric("recon_dlq_produce_failures_total", "topic", x.names.Tier(short[0])) > 0
	})
	if n := next.metric("resolved_total") + next.metric("poison_total"); n != 0 {
		t.Errorf("%v records have their end with no copy acknowledged", n)
	}
	h.Remove()
	x.reaches(2)
	x.drained(next)
	if rep := x.counted(nil); rep.Retried != 2 || rep.Resolved != 2 || rep.Poisoned != 0 {
		t.Errorf("want two copies and two resolved: %s", rep)
	}
}

func TestC002AProduceWithoutAnAnswerIsNotALostCopy(t *testing.T) {
	t.Parallel()
	// Run A of the case allows a duplicate; exactly once there is none.
	for _, c := range []struct {
		name string
		fate fate
	}{{"A: it has reached the broker", cutAfter}, {"B: it has not", cutBefore}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			g := newGate()
			x := newBench(t, b, 1, 3, short, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
				if r.Attempt == 0 {
					g.pass(ctx)
					return failing
				}
				return resolved
			})
			x.send(value("r-1010", ""))
			killed := x.mortal(instance("w1"))
			killed.is(1, "recon_dlq_enqueued_total") // its event is written; what comes now is the copy
			rule, hits := times(1, kmsg.Produce, c.fate)
			killed.wire.treat(rule)
			g.open()
			<-hits
			killed.kill()
			next := x.launch(instance("w1"))
			x.reaches(1)
			x.drained(next)
			if rep := x.counted(nil); rep.Retried != 1 || rep.Resolved != 1 {
				t.Errorf("want one copy and one resolved: %s", rep)
			}
			for _, r := range x.read(x.names.Tiers()...) {
				if origin := header(r, deadletter.HeaderOrigin); origin != x.names.Source+"/0/0" {
					t.Errorf("the copy comes from %s", origin)
				}
			}
		})
	}
}

func TestC004TwoFailuresBackToBackAreTwoCopies(t *testing.T) {
	t.Parallel()
	var calls tally
	quicker := make(chan struct{})
	x := newBench(t, brokers.NewKfake(t), 1, 3, short, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		if r.Attempt > 0 {
			return resolved
		}
		calls.next("")
		if r.DiscrepancyID == "r-1030" { // the slower one
			select {
			case <-quicker:
			case <-ctx.Done():
			}
		} else {
			close(quicker)
		}
		return failing
	})
	x.tweak = func(o *consumer.Options) { o.Concurrency = 4 }
	x.sendTo(0, "r-1030", "r-1031")
	w := x.start()
	x.settled(2, w)
	x.eventually("both are passed", func() bool { return x.committed(0) >= 2 })
	if n := calls.of(""); n != 2 {
		t.Errorf("%d first calls of two records", n)
	}
	copies := map[string]string{}
	for _, r := range x.read(x.names.Tiers()...) {
		copies[discrepancy(r)] = header(r, deadletter.HeaderAttempt)
	}
	if len(copies) != 2 || copies["r-1030"] != "1" || copies["r-1031"] != "1" {
		t.Errorf("the tier has %v", copies)
	}
	x.check(true)
}

func TestC005TheCommittedOffsetStaysBelowWhatIsNotDone(t *testing.T) {
	t.Parallel()
	var calls tally
	var healthy atomic.Bool
	x := newBench(t, brokers.NewKfake(t), 1, 3, short, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		calls.next(r.DiscrepancyID)
		if r.DiscrepancyID == "r-1040" && !healthy.Load() {
			<-ctx.Done()
			return deadletter.Outcome{Class: deadletter.Stopped}
		}
		return resolved
	})
	x.target[0].Timeout = 20 * time.Second
	x.sendTo(0, "r-1040", "r-1041", "r-1042")
	killed := x.mortal(instance("w1"), func(o *consumer.Options) { o.Concurrency = 3 })
	killed.is(2, "resolved_total")
	if at := x.committed(0); at != 0 {
		t.Errorf("committed is %d with the first record open", at)
	}
	healthy.Store(true)
	killed.kill()
	next := x.launch(instance("w1"))
	x.reaches(3)
	x.drained(next)
	// The case allows the two to be called again; progress keeps them, so they are not.
	for id, want := range map[string]int{"r-1040": 2, "r-1041": 1, "r-1042": 1} {
		if n := calls.of(id); n != want {
			t.Errorf("%s was called %d times, want %d", id, n, want)
		}
	}
	x.counted(nil)
}

// evict makes the group forget its one member, as a coordinator does with one
// that it has not heard of in time.
func (x *bench) evict() {
	x.t.Helper()
	groups, err := x.admin().DescribeGroups(x.t.Context(), x.names.Group)
	if err != nil {
		x.t.Fatal(err)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = x.names.Group
	for _, m := range groups[x.names.Group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID, member.InstanceID = m.MemberID, m.InstanceID
		req.Members = append(req.Members, member)
	}
	resp, err := req.RequestWith(x.t.Context(), brokers.Client(x.t, brokers.AdminOpts(x.b)...))
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil || len(req.Members) != 1 {
		x.t.Fatalf("evict %d members: %v", len(req.Members), err)
	}
}

func TestC007AResultOfAPartitionThatHasGoneCommitsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		late  deadletter.Outcome
		knows bool // that the partition has gone, when the handler returns
	}{
		{"a success before the worker knows", resolved, false},
		{"a failure before the worker knows", failing, false},
		{"a success", resolved, true},
		{"a failure", failing, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls tally
			g := newGate()
			x := newBench(t, brokers.NewKfake(t), 2, 3, short, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
				if calls.next(r.DiscrepancyID) == 1 && r.DiscrepancyID == "r-1051" {
					<-g.c
					return c.late
				}
				return resolved
			})
			x.target[0].Timeout = 20 * time.Second
			defer g.open()
			a := x.launch()
			x.eventually("it has its partitions", func() bool { return len(a.c.Snapshot().Partitions) == 4 })
			x.sendTo(1, "r-1050", "r-1051", "r-1052", "r-1053")
			a.is(3, "resolved_total")
			x.evict()
			if !c.knows {
				g.open()
			}
			b := x.launch()
			a.is(4, "recon_dlq_lost_partitions_total")
			x.eventually("it is done by whose it is", func() bool { return done(a, b) == 4 })
			x.eventually("it is committed", func() bool { return x.committed(1) >= 4 })
			at := x.committed(1)
			if c.knows {
				g.open()
				a.is(1, "recon_dlq_late_results_total")
				if !a.log.has("late result is thrown away") {
					t.Errorf("the log does not tell:\n%s", a.log)
				}
			}
			x.drained(a, b)
			if now := x.committed(1); now < at {
				t.Errorf("committed went from %d to %d", at, now)
			}
			if n := calls.of("r-1051"); n != 2 {
				t.Errorf("called %d times, want 2", n)
			}
			if rep := x.counted(nil); rep.Resolved != 4 || rep.Retried != 0 {
				t.Errorf("the late result had an effect: %s", rep)
			}
		})
	}
}

func TestC008RecordsPolledButNotHandledAreHandledAfterAKill(t *testing.T) {
	t.Parallel()
	const records, concurrency = 500, 16
	x := newBench(t, brokers.NewKfake(t), 3, 3, short, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
		takes(ctx, 10*time.Millisecond)
		return resolved
	})
	few := func(o *consumer.Options) { o.Concurrency = concurrency }
	x.sendN(records)
	killed := x.mortal(instance("w1"), few)
	x.eventually("it is in the middle", func() bool { return done(killed.player) >= 100 })
	committed := done(killed.player)
	killed.kill()
	next := x.launch(instance("w1"), few)
	x.reaches(records)
	x.drained(next)
	if rep := x.counted(nil); rep.Records != records {
		t.Errorf("want %d records: %s", records, rep)
	}
	// What was committed is not handed out again, however slow the machine is.
	if n := x.calledTwice(); n > records-committed {
		t.Errorf("%d records were handed to the handler again, %d of %d were committed", n, committed, records)
	}
}

// c010 tells a child process that it is to crash, and the broker and prefix to do it on.
const c010 = "RECON_DLQ_TEST_C010"

func TestC010APanicIsOneFailedAttemptAndAdvancesNothing(t *testing.T) {
	if addr, prefix, ok := strings.Cut(os.Getenv(c010), " "); ok {
		crash(t, addr, prefix)
	}
	t.Parallel()
	for name, what := range map[string]any{"an error": os.ErrInvalid, "no error": 17} {
		t.Run("with "+name, func(t *testing.T) {
			t.Parallel()
			x := newBench(t, brokers.NewKfake(t), 1, 3, short, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
				if r.DiscrepancyID == "r-1070" && r.Attempt == 0 {
					panic(what)
				}
				return resolved
			})
			x.send(value("r-1070", ""), value("r-1071", ""))
			w := x.start()
			x.settled(2, w)
			copies := x.read(x.names.Tiers()...)
			if len(copies) != 1 || discrepancy(copies[0]) != "r-1070" || header(copies[0], deadletter.HeaderAttempt) != "1" || header(copies[0], deadletter.HeaderErrorClass) != remedy.CausePanic {
				t.Errorf("the tier has %v", copies)
			}
			x.check(true)
		})
	}
	t.Run("in a goroutine of the handler", func(t *testing.T) { // which ends the process
		t.Parallel()
		b := brokers.NewKfake(t)
		x := newBench(t, b, 1, 3, short, always(resolved))
		x.sendTo(0, "r-1070", "r-1071")
		this, _, _ := strings.Cut(t.Name(), "/")
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+this+"$")
		child.Env = append(os.Environ(), c010+"="+b.Addrs()[0]+" "+x.names.Prefix)
		if out, err := child.CombinedOutput(); err == nil || !strings.Contains(string(out), "assignment to entry in nil map") {
			t.Fatalf("the process did not crash: %v\n%s", err, out)
		}
		x.unharmed()
		if at := x.committed(0); at > 0 {
			t.Errorf("committed is %d with the first record open", at)
		}
		w := x.start()
		x.reaches(2)
		w.is(0, "dlq_depth")
		x.counted(nil)
	})
}

// elsewhere is a broker of another process.
type elsewhere string

func (e elsewhere) Name() string             { return "elsewhere" }
func (e elsewhere) Addrs() []string          { return []string{string(e)} }
func (e elsewhere) Opts() []kgo.Opt          { return []kgo.Opt{kgo.SeedBrokers(string(e))} }
func (elsewhere) Features() brokers.Features { return brokers.Features{} }

// crash is the other process: a worker whose handler ends it.
func crash(t *testing.T, addr, prefix string) {
	t.Helper()
	x := &bench{
		t: t, b: elsewhere(addr), names: brokers.NamesOf(prefix, short), parts: 1, mux: remedy.NewMux(),
		rules: []policy.Rule{{Name: "default", Target: "ledger", Attempts: 3, Delays: short, MaxAge: time.Hour}},
	}
	x.target = []consumer.Target{{Name: "ledger", Timeout: 5 * time.Second}}
	x.mux.HandleFunc("ledger", func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		if r.DiscrepancyID != "r-1070" {
			return resolved
		}
		go func() {
			var none map[string]int
			none[r.ID]++ //nolint:staticcheck // SA5000: it is to crash
		}()
		<-ctx.Done()
		return resolved
	})
	x.start()
	<-t.Context().Done()
}

func TestC011APartitionThatGoesAndComesBackIsWorkedOn(t *testing.T) {
	t.Parallel()
	const records = 200
	x := newBench(t, brokers.NewKfake(t), 3, 3, short, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
		takes(ctx, 100*time.Millisecond)
		return resolved
	})
	few := func(o *consumer.Options) { o.Concurrency = 2 }
	x.sendN(records)
	a := x.launch(few)
	ps := []*player{a}
	for range 2 { // one worker, two, one, two, one
		x.eventually("the first has everything", func() bool { return len(a.c.Snapshot().Partitions) == 6 })
		b := x.launch(few)
		ps = append(ps, b)
		x.eventually("the second has its share", func() bool { return len(b.c.Snapshot().Partitions) > 0 })
		b.halt()
	}
	x.eventually(fmt.Sprintf("%d records are done", records), func() bool { return done(ps...) == records })
	x.eventually("committed is the end", func() bool { return x.counted(nil).Lag == 0 })
	x.drained(a)
	if n := x.calledTwice(); n > 0 {
		t.Errorf("%d records were handed to the handler again", n)
	}
}

// once fails each record's first call.
func once(_ context.Context, r *deadletter.Record) deadletter.Outcome {
	if r.Attempt == 0 {
		return failing
	}
	return resolved
}

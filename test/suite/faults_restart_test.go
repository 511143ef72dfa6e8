package suite

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestAWorkerThatIsStoppedAndStartedAgainCallsNoHandlerTwice(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(50*time.Millisecond))
		x.sendN(1500)
		var ps []*player
		for range 3 {
			p := x.launch(instance("w1"))
			ps = append(ps, p)
			x.eventually("some records are done", func() bool { return done(p) >= 150 || done(ps...) == 1500 })
			p.halt()
			if p.err != nil {
				t.Fatalf("a stopped worker returned %v", p.err)
			}
		}
		last := x.launch(instance("w1"))
		x.eventually("all records are done", func() bool { return done(append(ps, last)...) == 1500 })
		x.drained(last)
		if rep := x.counted(nil); rep.Records != 1500 {
			t.Fatalf("want 1500 records: %s", rep)
		}
		if n := x.calledTwice(); n > 0 {
			t.Fatalf("%d records were handed to the handler again although the worker was stopped in order", n)
		}
	})
}

func TestANewWorkerTakesOverFromAKilledOne(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []takeover{
			{"static member", []func(*consumer.Options){instance("w1")}, 30 * time.Second},
			{"dynamic member", nil, 45 * time.Second},
			{"static member at least once", []func(*consumer.Options){instance("w1"), atLeastOnce}, 30 * time.Second},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.play(t, b)
			})
		}
	})
}

// takeover is a worker that is killed in the middle of its work, another one
// that goes on, and the first one's return from the dead.
type takeover struct {
	name   string
	tweaks []func(*consumer.Options) // of both
	bound  time.Duration             // from the other's start to its first commit; the session timeout is 10 s
}

func (c takeover) play(t *testing.T, b brokers.Broker) {
	t.Helper()
	x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(50*time.Millisecond))
	x.sendN(1000)
	killed := x.launch(c.tweaks...)
	x.eventually("some records are done", func() bool { return done(killed) >= 100 })
	killed.wire.cut()
	x.sendN(500) // whatever the first has done by now, there is work for the next
	began := time.Now()
	next := x.launch(c.tweaks...)
	x.eventually("the new worker commits", func() bool { return done(next) > 0 })
	took := time.Since(began)
	t.Logf("took over in %s", took.Round(time.Millisecond))
	if took > c.bound {
		t.Errorf("the first commit of the new worker came after %s, want %s at most", took, c.bound)
	}
	x.reaches(1500)
	x.drained(next)

	// The one that was thought dead comes back, with results in its hands.
	killed.wire.heal()
	x.sendN(300)
	if len(c.tweaks) > 0 { // under the same name
		select {
		case <-killed.end:
		case <-time.After(45 * time.Second):
			t.Fatal("a worker whose name another one has taken goes on")
		}
		if !errors.Is(killed.err, consumer.ErrFenced) || !strings.Contains(killed.err.Error(), `"w1"`) {
			t.Fatalf("want ErrFenced that names the instance, have %v", killed.err)
		}
	} else {
		x.eventually("the worker has joined again", func() bool {
			return len(killed.c.Snapshot().Partitions) > 0 && len(next.c.Snapshot().Partitions) > 0
		})
	}
	x.reaches(1800)
	if next.stopped() {
		t.Fatalf("the new worker was harmed by the old one: %v", next.err)
	}
	x.drained(next)
	t.Log(x.counted(spec(c.tweaks...)))
}

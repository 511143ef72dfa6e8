package suite

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// shutdownBound is the drain bound of these tests, the bound of the last
// transaction, and what leaving the group may take.
const shutdownBound = time.Second + 10*time.Second + 8*time.Second

func quick(o *consumer.Options) {
	o.Targets[0].Timeout, o.Drain, o.Concurrency = 500*time.Millisecond, time.Second, 8
}

// ends stops a worker and returns how long that took.
func (p *player) ends() time.Duration {
	began := time.Now()
	p.halt()
	return time.Since(began)
}

func TestAWorkerStopsInTimeWithItsNetworkGone(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name   string
			tweaks []func(*consumer.Options)
		}{
			{"dynamic", nil},
			{"static", []func(*consumer.Options){instance("w1")}},
			{"at least once", []func(*consumer.Options){atLeastOnce}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(20*time.Millisecond))
				x.sendN(600)
				p := x.launch(append(c.tweaks, quick)...)
				x.eventually("it works", func() bool { return done(p) >= 50 })
				p.wire.cut()
				took := p.ends()
				t.Logf("stopped in %s", took.Round(time.Millisecond))
				if took > shutdownBound || p.err != nil {
					t.Errorf("stopped after %s with %v, want %s at most", took, p.err, shutdownBound)
				}
				next := x.launch(c.tweaks...)
				x.reaches(600)
				x.drained(next)
				x.counted(spec(c.tweaks...))
			})
		}
	})
}

func TestAWorkerStopsInTimeWithTheBrokerKilledOrFrozen(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{})
	for _, c := range []struct {
		name       string
		gone, back func() error
	}{
		{"killed", func() error { b.Kill(1); return nil }, func() error { return b.Start(1) }},
		{"frozen", func() error { return b.Pause(1) }, func() error { return b.Continue(1) }},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other: they share the broker
			x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(20*time.Millisecond))
			x.sendN(600)
			p := x.launch(instance("w1"), quick)
			idle := x.launch(instance("w2"), quick)
			x.eventually("it works", func() bool { return done(p) >= 50 })
			if err := c.gone(); err != nil {
				t.Fatal(err)
			}
			idle.stop()
			took := p.ends()
			took = max(took, idle.ends())
			t.Logf("stopped in %s", took.Round(time.Millisecond))
			if took > shutdownBound || p.err != nil || idle.err != nil {
				t.Errorf("stopped after %s with %v and %v, want %s at most", took, p.err, idle.err, shutdownBound)
			}
			if err := c.back(); err != nil {
				t.Fatal(err)
			}
			if err := b.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := x.launch(instance("w1"))
			x.reaches(600)
			x.drained(next)
			x.counted(nil)
		})
	}
}

// A broker that dies and comes back is waited for.
func TestAWorkerOutlivesItsBroker(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{})
	x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(20*time.Millisecond))
	p := x.launch(instance("w1"), quick)
	x.sendN(600)
	x.eventually("it works", func() bool { return done(p) >= 50 })
	late := newWire() // of one that starts with no broker there
	late.cut()
	starting := x.launch(instance("w2"), quick, func(o *consumer.Options) { o.Client = append(o.Client, kgo.Dialer(late.dial)) })
	x.eventually("it is missed", func() bool { return starting.log.has("no producer id yet") })
	b.Kill(1)
	late.heal()
	if err := b.Start(1); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.reaches(600)
	x.eventually("both are at work", func() bool {
		return len(p.c.Snapshot().Partitions) > 0 && len(starting.c.Snapshot().Partitions) > 0
	})
	x.drained(p, starting)
	x.counted(nil)
}

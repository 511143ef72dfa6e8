package suite

import (
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// revive starts a broker's node again and waits for it.
func revive(t *testing.T, b *brokers.Kafka) {
	t.Helper()
	if err := b.Start(1); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What a single broker's disk can do to a worker that runs.
func TestABrokerWhoseDiskFails(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{Disk: 256 << 20, Properties: map[string]string{
		// How long the controller still counts on a broker that has ended.
		"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500",
	}})
	// One after the other: they share the broker.
	t.Run("it is full", func(t *testing.T) { diskFull(t, b) })
	t.Run("it has lost the source's log", func(t *testing.T) { logLost(t, b) })
	t.Run("it is empty", func(t *testing.T) { diskEmpty(t, b) })
}

// Kafka ends when its only disk fails a write. Nothing is lost or done twice: the
// worker says so, waits, and goes on.
func diskFull(t *testing.T, b *brokers.Kafka) {
	x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(20*time.Millisecond))
	p := x.launch(instance("w1"), quick)
	x.sendN(600)
	x.eventually("it works", func() bool { return done(p) >= 100 })
	if err := b.Fill(1); err != nil {
		t.Fatal(err)
	}
	x.eventually("the broker has ended", func() bool { return b.Ended(1) })
	x.eventually("the worker says so", func() bool {
		return p.log.has("fetching failed and is tried again") && p.metric("recon_dlq_fetch_errors_total") > 0
	})
	if err := b.MakeRoom(1); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	revive(t, b)
	x.reaches(600)
	t.Logf("done %s after the start of the broker", time.Since(began).Round(time.Millisecond))
	x.drained(p)
	x.counted(nil)
}

// The group's progress is beyond the end of the log: what comes next is read, and
// nothing of it is taken for what was done before.
func logLost(t *testing.T, b *brokers.Kafka) {
	x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
	p := x.launch(instance("w1"))
	x.sendAs("old", 300)
	x.ends("old", 300, p)
	p.wire.cut()
	b.Kill(1)
	if err := b.LoseLogs(1, x.names.Source); err != nil {
		t.Fatal(err)
	}
	revive(t, b)
	x.sendAs("new", 100)
	p.wire.heal()
	x.ends("new", 100, p)
	if n := p.metric("recon_dlq_rewound_partitions_total"); n == 0 || !p.log.has("shorter than what was done") {
		t.Errorf("recon_dlq_rewound_partitions_total is %v, and the log:\n%s", n, p.log)
	}
	x.restarts(p)
}

// Topics, progress and transactions are gone; an operator makes the topics again.
func diskEmpty(t *testing.T, b *brokers.Kafka) {
	x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
	p := x.launch(instance("w1"))
	x.sendAs("old", 300)
	x.ends("old", 300, p)
	b.Kill(1)
	if err := b.Wipe(1); err != nil {
		t.Fatal(err)
	}
	revive(t, b)
	x.create(x.names.Source, x.names.Tier(time.Second), x.names.Poison, x.names.Audit)
	began := time.Now()
	x.sendAs("new", 100)
	x.ends("new", 100, p)
	t.Logf("done after %s", time.Since(began).Round(time.Millisecond))
	if !p.log.has("a topic was deleted or created again") {
		t.Errorf("the log does not tell:\n%s", p.log)
	}
	x.restarts(p)
}

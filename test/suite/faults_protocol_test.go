package suite

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Slow is the environment variable that turns on what takes minutes.
const Slow = "RECON_DLQ_SLOW"

// Before KIP-890 (transaction.version 2) offsets were added to a transaction by
// a request of their own, and an epoch outlived its transaction.
func TestTheTransactionProtocolBeforeKIP890KeepsThePromise(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{TransactionVersion: 1})
	t.Run("it is the old one", func(t *testing.T) {
		t.Parallel()
		x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
		p := x.launch(instance("w1"))
		var asked atomic.Int64
		p.wire.treat(func(k kmsg.Key) fate {
			if k == kmsg.AddOffsetsToTxn {
				asked.Add(1)
			}
			return pass
		})
		x.sendN(200)
		x.eventually("all records are done", func() bool { return done(p) == 200 })
		x.drained(p)
		x.counted(nil)
		if asked.Load() == 0 {
			t.Error("no offsets were added by a request of their own: this is not the old protocol")
		}
	})
	for _, c := range []takeover{
		{"static member", []func(*consumer.Options){instance("w1")}, 8 * time.Second},
		{"dynamic member", nil, 45 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t, b)
		})
	}
	for _, c := range lostAnswers {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t, b)
		})
	}
}

// Three nodes, replication 3, and one of them killed and started again in the
// middle. About a minute.
func TestThreeNodesOfWhichOneDiesKeepThePromise(t *testing.T) {
	if os.Getenv(Slow) == "" {
		t.Skipf("takes about a minute: set %s to run it", Slow)
	}
	b := brokers.NewKafka(t, brokers.Options{Nodes: 3, Properties: map[string]string{"default.replication.factor": "3", "min.insync.replicas": "2"}})
	x := newBench(t, b, 6, 3, []time.Duration{time.Second}, slow(20*time.Millisecond))
	p, q := x.launch(instance("w1")), x.launch(instance("w2"))
	x.sendN(3000)
	x.eventually("the work is on its way", func() bool { return done(p, q) >= 200 })
	b.Kill(2)
	x.sendN(500)
	if err := b.Start(2); err != nil {
		t.Fatal(err)
	}
	x.reaches(3500)
	x.drained(p, q)
	t.Log(x.counted(nil))
}

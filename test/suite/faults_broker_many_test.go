package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Progress of all partitions is ready to be committed at the same moment. A commit
// is one batch in the offsets topic: what does not fit it is refused as a whole,
// with UNKNOWN_SERVER_ERROR.
func TestSixHundredPartitionsHaveResultsAtOnce(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{})
	for _, c := range []struct {
		name string
		room string // of a batch in the offsets topic, bytes
		fits bool
	}{
		{"in one commit", "1048588", true},
		{"in more than one commit", "30000", false},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other: they share the offsets topic
			const partitions = 600
			g := newGate()
			x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
				g.pass(ctx)
				return mixed(ctx, r)
			})
			x.target[0].Timeout = 20 * time.Second
			x.widen(partitions, x.names.Source)
			p := x.launch(func(o *consumer.Options) { o.Concurrency = partitions })
			x.eventually("all partitions are there", func() bool { return p.owns() == partitions+1 })
			x.set("max.message.bytes", c.room, "__consumer_offsets")
			var rs []*kgo.Record
			for i := range 2 * partitions {
				rs = append(rs, &kgo.Record{Topic: x.names.Source, Partition: int32(i % partitions), Value: value(fmt.Sprintf("d-%06d", i), "")})
			}
			brokers.ProduceTo(t, b, rs...)
			x.eventually("all partitions have a record in the handler", func() bool { return p.metric("recon_dlq_inflight", "state", "calling") == partitions })
			began := time.Now()
			g.open()
			x.eventually("all records are done", func() bool { return done(p) == 2*partitions })
			took := time.Since(began)
			aborted := p.metric("recon_dlq_transactions_total", "result", "aborted")
			t.Logf("done after %s, in %v transactions, %v more aborted", took.Round(time.Millisecond), p.metric("recon_dlq_transactions_total", "result", "committed"), aborted)
			if took > 20*time.Second {
				t.Errorf("they were done after %s", took)
			}
			if c.fits != (aborted == 0) {
				t.Errorf("%v transactions were aborted", aborted)
			}
			x.drained(p)
			if rep := x.counted(nil); rep.Records != 2*partitions {
				t.Errorf("want %d records: %s", 2*partitions, rep)
			}
		})
	}
}
